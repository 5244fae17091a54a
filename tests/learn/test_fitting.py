"""A fit as a whole: what it costs, what it learns, and that all it keeps was paid for or is public."""

from __future__ import annotations

import math
import pickle
import warnings
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lipcompile_privacy.accounting import Mechanism, Selection
from lipcompile_privacy.errors import BudgetError, DataError
from lipcompile_privacy.ledger import read_ledger
from lipcompile_torch.train.engine import SeededWarning

from lipcompile.learn import fitting, selection
from lipcompile.learn import head as heads
from lipcompile.learn.account import Account, Budget, default_delta
from lipcompile.learn.fitting import Fitted, fit
from lipcompile.learn.recipe import recipe_for
from lipcompile.learn.targets import Classes, Problem

ROWS = 3000
BOUNDED = Problem(2, np.full(3, -3.0), np.full(3, 3.0))


def waves(classes: int = 2, rows: int = ROWS) -> tuple[Any, Any]:
    """Rows of three columns, and classes that no linear function of them tells apart."""
    source = np.random.default_rng(0)
    x = source.uniform(-2, 2, (rows, 3))
    return x, (x[:, 0] * x[:, 1] > 0) + (x[:, 2] > 1) * (classes - 2)


def phi(value: float) -> float:
    return 0.5 * math.erfc(-value / math.sqrt(2))


def gaussian_delta(mu: float, epsilon: float) -> float:
    """Balle and Wang 2018, Theorem 8, of one Gaussian mechanism with σ = 1/μ."""
    return phi(mu / 2 - epsilon / mu) - math.exp(epsilon) * phi(-mu / 2 - epsilon / mu)


@pytest.mark.parametrize("problem", [BOUNDED, Problem(2), Problem(3)])
@pytest.mark.parametrize("fits", [1, 4])
def test_all_releases_together_cost_the_budget(problem: Problem, fits: int) -> None:
    x, y = waves(problem.classes)
    budget = Budget(2.0, 1e-5, fits)
    fitted = fit(x, y, problem, budget)
    mu = math.sqrt(fits * sum(line.steps / line.noise_multiplier**2 for line in fitted.spent))
    assert 0.99e-5 < gaussian_delta(mu, 2.0) <= 1e-5
    assert fitted.epsilon <= 2.0
    assert [line.purpose for line in fitted.spent][-2:] == ["means and scales of columns and target", "head"]
    assert (fitted.spent[0].purpose == "ranges of 3 columns") == (problem.low is None)


def test_the_ledger_holds_every_release(tmp_path: Path) -> None:
    x, y = waves()
    fitted = fit(x, y, Problem(2), Budget(2.0, 1e-5), ledger=tmp_path / "ledger.jsonl")
    record = read_ledger(tmp_path / "ledger.jsonl")
    charged = {Mechanism(line.sampling_rate, line.noise_multiplier): line.steps for line in fitted.spent}
    assert dict(record.runs) == charged
    assert record.epsilon(1e-5) == fitted.epsilon
    assert not record.seeded
    # What it holds counts against the budget of a second fit.
    with pytest.raises(BudgetError):
        fit(x, y, Problem(2), Budget(2.0, 1e-5), ledger=tmp_path / "ledger.jsonl")
    assert read_ledger(tmp_path / "ledger.jsonl").epsilon(1e-5) == fitted.epsilon
    again = fit(x, y, Problem(2), Budget(4.0, 1e-5), ledger=tmp_path / "ledger.jsonl")
    assert 3.9 < again.epsilon <= 4.0


@pytest.mark.parametrize("classes", [2, 3])
def test_it_learns_classes(classes: int) -> None:
    x, y = waves(classes, 10_000)
    fitted = fit(x[:8000], y[:8000], replace(BOUNDED, classes=classes), Budget(3.0, 1e-5))
    points = Problem(classes).points(fitted.head, fitted.outputs(x[8000:]), y[8000:])
    assert points.mean() > 0.85  # a linear function has 0.5


@pytest.mark.parametrize("target_range", [None, (-5.0, 15.0)])
def test_it_learns_numbers(target_range: tuple[float, float] | None) -> None:
    x, _ = waves(rows=10_000)
    y = 4 + 3 * np.sin(x[:, 0]) + x[:, 1]
    fitted = fit(x[:8000], y[:8000], Problem(target_range=target_range), Budget(2.0, 1e-5))
    errors = fitted.numbers(fitted.outputs(x[8000:])) - y[8000:]
    assert (errors**2).mean() < 0.1 * y.var()


def test_large_tables_are_sampled_within_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads, "_KEPT", 1000)  # bytes: features are computed for each batch
    monkeypatch.setattr(heads, "_PIECE", 300)
    x, y = waves()
    recipe = recipe_for(*x.shape, batch=600, steps=20)
    fitted = fit(x, y, BOUNDED, Budget(3.0, 1e-5), recipe=recipe)
    assert fitted.spent[-1].sampling_rate == 0.2
    assert 2.9 < fitted.epsilon <= 3.0
    with pytest.raises(BudgetError, match="leave fits at 1"):
        fit(x, y, BOUNDED, Budget(3.0, 1e-5, fits=2), recipe=recipe)


def test_features_of_each_batch_train_as_features_that_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = waves()
    with pytest.warns(SeededWarning):
        kept = fit(x, y, BOUNDED, Budget(3.0, 1e-5), seed=3)
    monkeypatch.setattr(heads, "_KEPT", 1000)
    monkeypatch.setattr(heads, "_PIECE", 700)
    with pytest.warns(SeededWarning):
        mapped = fit(x, y, BOUNDED, Budget(3.0, 1e-5), seed=3)
    np.testing.assert_allclose(mapped.weights, kept.weights, rtol=1e-6, atol=1e-9)


def test_a_search_is_paid_for_with_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "number_of_runs", lambda *_: 2)
    x, y = waves()
    fitted = fit(x, y, BOUNDED, Budget(3.0, 1e-5, search=1.0))
    assert fitted.spent[0].purpose == "search of settings"
    assert 2.9 < fitted.epsilon <= 3.0
    with pytest.raises(BudgetError, match="less than epsilon"):
        Budget(1.0, 1e-5, search=1.0)
    with pytest.raises(BudgetError, match="leave fits"):
        Budget(1.0, 1e-5, fits=2, search=0.5)


def test_a_search_is_charged_before_its_first_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = waves()

    def killed(*_: Any, **__: Any) -> int:
        raise RuntimeError("killed")

    monkeypatch.setattr(selection, "number_of_runs", killed)
    with pytest.raises(RuntimeError, match="killed"):
        fit(x, y, BOUNDED, Budget(3.0, 1e-5, search=1.0), ledger=tmp_path / "ledger.jsonl")
    ((release, charges),) = read_ledger(tmp_path / "ledger.jsonl").runs
    assert isinstance(release, Selection)
    assert charges == 1


def test_a_ledger_that_holds_a_search_pays_for_a_model_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selection, "number_of_runs", lambda *_: 1)
    x, y = waves(rows=300)
    recipe, ledger = recipe_for(300, 3, steps=2), tmp_path / "ledger.jsonl"
    before = fit(x, y, BOUNDED, Budget(1.0, 1e-5, search=0.3), recipe=recipe, ledger=ledger)
    after = fit(x, y, BOUNDED, Budget(2.0, 1e-5), recipe=recipe, ledger=ledger)
    assert before.epsilon <= 1.0 < 1.9 < after.epsilon <= 2.0
    assert after.epsilon == read_ledger(ledger).epsilon(1e-5, "rdp")


def test_warnings_do_not_tell_the_number_of_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    trained = fitting._trained

    def warned(*arguments: Any) -> Any:
        warnings.warn("a run", UserWarning, 2)
        return trained(*arguments)

    monkeypatch.setattr(fitting, "_trained", warned)
    x, y = waves(rows=300)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        fit(x, y, BOUNDED, Budget(1.0, 1e-5, search=0.3), recipe=recipe_for(300, 3, steps=2))
    assert [str(one.message) for one in told] == ["a run"]  # of the model that is kept


def test_a_run_of_a_search_costs_one_gaussian_mechanism(monkeypatch: pytest.MonkeyPatch) -> None:
    """What trains and what scores see different rows, and each costs no more than the charge says of a run."""
    seen: list[Account] = []
    made = Account.__init__

    def noted(self: Account, *arguments: Any, **names: Any) -> None:
        made(self, *arguments, **names)
        seen.append(self)

    monkeypatch.setattr(Account, "__init__", noted)
    x, y = waves()
    monkeypatch.setattr(selection, "number_of_runs", lambda *_: 3)
    fitted = fit(x, y, Problem(2), Budget(3.0, 1e-5, search=1.0))
    sigma = fitted.spent[0].noise_multiplier
    _, *runs = seen
    assert len(runs) == 6
    assert [account.rows for account in runs] == [4 * ROWS // 5, ROWS // 5] * 3
    for account in runs:
        assert account.engine.ledger is not None
        charged = account.engine.ledger.record.runs
        assert sum(count / release.noise_multiplier**2 for release, count in charged) <= 1 / sigma**2 * (1 + 1e-9)
        assert all(isinstance(release, Mechanism) and release.sampling_rate == 1 for release, _ in charged)


def released(fitted: Fitted) -> dict[str, Any]:
    return {
        "ranges": (fitted.scaling.units.low, fitted.scaling.units.high),
        "moments": (fitted.scaling.mean, fitted.scaling.scale),
        "weights": fitted.weights,
        "head": (fitted.head.start, fitted.head.offset, fitted.head.unit),
    }


def test_one_row_changes_nothing_but_what_was_released() -> None:
    """Two fits with one seed, of tables that differ in one row: every artefact but the releases is the same."""
    x, y = waves()
    other_x, other_y = x.copy(), y.copy()
    other_x[17], other_y[17] = [1e6, -1e6, np.nan], 1 - y[17]
    with pytest.warns(SeededWarning):
        one, other = (fit(*rows, Problem(2), Budget(2.0, 1e-5), seed=1) for rows in ((x, y), (other_x, other_y)))
    public = {"features", "budget", "epsilon", "spent", "recipe", "private"}
    assert public | {"scaling", "weights", "head"} == {field.name for field in fields(Fitted)}
    for name in public - {"features"}:
        assert getattr(one, name) == getattr(other, name)
    np.testing.assert_array_equal(one.features.directions, other.features.directions)
    assert (one.head.loss, one.head.outputs) == (other.head.loss, other.head.outputs)
    assert not one.head.targets.size  # what was trained on is not kept
    assert released(one).keys() == {"ranges", "moments", "weights", "head"}
    # What is pickled is no larger than what was released and drawn in public.
    numbers = one.weights.size + 4 * 3 + one.features.directions.size  # type: ignore[union-attr]
    assert len(pickle.dumps(one)) < 8 * numbers + 3000


def test_missing_and_infinite_values_have_predictions() -> None:
    x, y = waves()
    x[::3, 0], x[1::3, 1] = np.nan, np.inf
    fitted = fit(x, y, Problem(2), Budget(2.0, 1e-5))
    assert np.isfinite(fitted.outputs(x)).all()
    assert fitted.outputs(x[:0]).shape == (0, 1)


def test_shapes_that_do_not_fit_are_refused() -> None:
    for x, y in ((np.ones((3, 2)), np.ones(2)), (np.ones((0, 2)), np.ones(0)), (np.ones(3), np.ones(3))):
        with pytest.raises(DataError, match="the same number of rows"):
            fit(x, y, Problem(2), Budget(1.0, 1e-5))
    with pytest.raises(DataError, match="no column to learn from"):
        fit(np.ones((3, 0)), np.ones(3), Problem(2), Budget(1.0, 1e-5))


def test_delta_is_below_one_over_the_rows() -> None:
    assert default_delta(100) == 1e-5
    assert default_delta(10**7) == 1e-8


def test_progress_is_told() -> None:
    x, y = waves()
    told: list[tuple[int, int]] = []
    recipe = recipe_for(*x.shape, steps=5)
    fitted = fit(x, y, BOUNDED, Budget(1.0, 1e-5), recipe=recipe, watch=lambda *at: told.append(at[:2]))
    assert told == [(step, 5) for step in range(1, 6)]
    spent = [fitted.epsilon_after(steps) for steps in range(6)]
    assert spent == sorted(spent)
    assert spent[-1] == fitted.epsilon


def test_the_noise_of_a_step_moves_weights_by_the_agitation() -> None:
    """With labels that say nothing, what one step does to a weight is noise: its deviation is the agitation."""
    source = np.random.default_rng(0)
    x = source.uniform(-1, 1, (200, 40))
    y = source.integers(0, 2, 200)
    recipe = recipe_for(*x.shape, kind="waves", steps=1, agitation=0.5, width=4000, momentum=0.0)
    fitted = fit(x, y, Problem(2, np.full(40, -1.0), np.ones(40)), Budget(0.05, 1e-5), recipe=recipe)
    # 4,040 weights beside the constant's: their sample deviation is within 6 % of the truth but for 1e-7 of runs.
    assert fitted.weights[:, :-1].std() == pytest.approx(0.5, rel=0.06)


def test_noise_of_shares_does_not_become_odds() -> None:
    target = Classes(np.zeros(3, dtype=np.int64), 2)
    assert target.head(np.array([-0.3]), 0.2, 0.1).start == pytest.approx(np.log(0.2 / 1.0) / 0.1)
    assert target.head(np.array([0.5]), 0.2, 0.1).start == pytest.approx(0.0)
    assert target.head(np.array([9.0]), 7.0, 0.1).start == pytest.approx(np.log(2.0) / 0.1)
