"""A fit as a whole: what it costs, what it learns, and that all it keeps was paid for or is public."""

from __future__ import annotations

import math
import pickle
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lipcompile_privacy.accounting import Mechanism, Selection
from lipcompile_privacy.errors import BudgetError, DataError
from lipcompile_privacy.ledger import read_ledger
from lipcompile_torch import PrivacyEngine
from lipcompile_torch.train.engine import SeededWarning

from lipcompile.learn import fitting
from lipcompile.learn import head as heads
from lipcompile.learn.account import Account, Budget, default_delta
from lipcompile.learn.features import Features
from lipcompile.learn.fitting import Fitted, fit
from lipcompile.learn.recipe import recipe_for
from lipcompile.learn.targets import Classes, Head, Problem

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


@pytest.mark.slow
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


@pytest.mark.slow
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
    found = fitted.probabilities(fitted.outputs(x[8000:])).argmax(axis=1)
    assert (found == y[8000:]).mean() > 0.85  # a linear function has 0.5


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
    recipe = recipe_for(len(x), batch=600, steps=20)
    fitted = fit(x, y, BOUNDED, Budget(3.0, 1e-5), recipe=recipe)
    assert fitted.spent[-1].sampling_rate == 0.2
    assert 2.9 < fitted.epsilon <= 3.0
    with pytest.raises(BudgetError, match="leave fits at 1"):
        fit(x, y, BOUNDED, Budget(3.0, 1e-5, fits=2), recipe=recipe)


@pytest.mark.slow
def test_features_of_each_batch_train_as_features_that_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = waves()
    with pytest.warns(SeededWarning):
        kept = fit(x, y, BOUNDED, Budget(3.0, 1e-5), seed=3)
    monkeypatch.setattr(heads, "_KEPT", 1000)
    monkeypatch.setattr(heads, "_PIECE", 700)
    with pytest.warns(SeededWarning):
        mapped = fit(x, y, BOUNDED, Budget(3.0, 1e-5), seed=3)
    np.testing.assert_allclose(mapped.weights, kept.weights, rtol=1e-6, atol=1e-9)


@pytest.fixture
def searching(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a search pay for few rows."""
    monkeypatch.setattr(fitting, "_LEAST", 1.0)


@pytest.mark.usefixtures("searching")
@pytest.mark.parametrize("fits", [1, 4])
def test_a_search_and_a_model_together_cost_the_budget(fits: int) -> None:
    x, y = waves()
    recipe = recipe_for(len(x), steps=5)
    fitted = fit(x, y, Problem(2), Budget(2.0, 1e-5, fits, search=True), recipe=recipe)
    purposes = ["head, default", "head, richer", "scores of the search"]
    assert [line.purpose for line in fitted.spent][2:] == purposes
    mu = math.sqrt(fits * sum(line.steps / line.noise_multiplier**2 for line in fitted.spent))
    assert 0.99e-5 < gaussian_delta(mu, 2.0) <= 1e-5
    assert fitted.epsilon <= 2.0
    assert fitted.searched in (fitting.BOTH, *fitting.CHOICES)


@pytest.mark.parametrize(("rows", "found"), [(5999, False), (6000, True)])
def test_whether_a_search_pays_is_said_by_public_facts(rows: int, found: bool) -> None:
    assert fitting.pays(rows, 2.0) == found  # three thousand rows for each unit of noise


def test_a_search_that_cannot_pay_costs_nothing() -> None:
    x, y = waves(rows=300)
    recipe = recipe_for(300, steps=2)
    with pytest.warns(UserWarning, match="no search was made"):
        fitted = fit(x, y, BOUNDED, Budget(1.0, 1e-5, search=True), recipe=recipe)
    assert fitted.spent == fit(x, y, BOUNDED, Budget(1.0, 1e-5), recipe=recipe).spent
    assert (fitted.recipe, fitted.searched) == (replace(recipe, kind="waves"), None)


@pytest.mark.slow
@pytest.mark.usefixtures("searching")
def test_a_search_on_samples_keeps_both_within_the_budget() -> None:
    x, y = waves()
    recipe = recipe_for(len(x), batch=600, steps=20)
    fitted = fit(x, y, BOUNDED, Budget(3.0, 1e-5, search=True), recipe=recipe)
    assert [line.purpose for line in fitted.spent][1:] == ["head, default", "head, richer"]
    assert fitted.searched == fitting.BOTH
    assert fitted.spent[1].noise_multiplier == pytest.approx(fitted.spent[2].noise_multiplier, rel=0.01)
    assert 2.9 < fitted.epsilon <= 3.0


@pytest.mark.usefixtures("searching")
@pytest.mark.parametrize("kind", ["waves", "plain"])
def test_the_mean_of_both_is_one_model(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[tuple[Features, Any]] = []

    def noted(*arguments: Any) -> Any:
        weights = heads.train_head(*arguments)
        trained.append((arguments[4], weights))
        return weights

    monkeypatch.setattr(fitting, "train_head", noted)
    monkeypatch.setattr(fitting, "_CLEARLY", math.inf)
    x, y = waves(3)
    recipe = recipe_for(len(x), steps=5, kind=kind)
    fitted = fit(x, y, replace(BOUNDED, classes=3), Budget(2.0, 1e-5, search=True), recipe=recipe)
    rows = fitted.scaling(x[:50])
    means = sum(features(rows) @ weights.T for features, weights in trained) / 2
    np.testing.assert_allclose(fitted.outputs(x[:50]), means, atol=1e-5)
    assert np.linalg.norm(fitted.features(rows), axis=1).max() <= fitted.features.radius


@pytest.mark.parametrize(
    ("errors", "kept"),
    [
        ((20.0, 20.4), "default"),
        ((20.4, 20.0), "richer"),
        ((20.0, 20.0), fitting.BOTH),
        ((29.0, 20.0), "richer"),
    ],
)
def test_a_model_is_kept_if_its_gain_stands_out(errors: tuple[float, float], kept: str) -> None:
    """Each of 1,000 rows has these errors; that of the mean lies between. A row counts for a quarter at most."""
    sums = []
    account = Account.opened(Budget(5.0, 1e-5), 1000, None, 0)
    release = account.release

    def noted(purpose: str, share: float) -> Any:
        def released(total: Any, norm: float) -> Any:
            sums.append((total, norm))
            return release(purpose, share)(total, norm)

        return released

    account.release = noted  # type: ignore[method-assign]
    features = Features.of(3, recipe_for(1000))
    models = [(features, np.full((1, 260), float(number))) for number in range(2)]
    found, (_, weights) = fitting.chosen(
        models,
        lambda model: np.full((1000, 1), errors[int(model[1][0, 0])]),
        np.zeros(1000),
        Head("regression", 1, np.zeros(1)),
        Problem(),
        account,
        0.5,
    )
    assert found == kept
    assert weights.shape == (1, 260 + 256 * (kept == fitting.BOTH))
    ((total, norm),) = sums
    half = min(0.25, max(-0.25, (errors[1] - errors[0]) / 2))
    np.testing.assert_allclose(total, [1000 * half, -1000 * half], atol=1e-6)
    assert 0.25 * math.sqrt(2) < norm < 0.25 * math.sqrt(2) * (1 + 1e-8)


@pytest.mark.usefixtures("searching")
@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("odd", [1.7e308, -1.7e308, np.inf])
def test_no_target_ends_a_search(odd: float) -> None:
    """Errors beyond the doubles differ by NaN, which must not end a fit: a row counts 0 then."""
    x, y = waves()
    y = y.astype(np.float64)
    y[17] = odd
    problem = Problem(target_range=(0.0, 1.0))
    recipe = recipe_for(len(x), steps=2, width=4)
    fitted = fit(x, y, problem, Budget(2.0, 1e-5, search=True), recipe=recipe)
    assert fitted.searched is not None


def test_losses_are_those_of_the_targets() -> None:
    """Odds of 3 to 1 and of 1 to 2 to 1; an error of two scales."""
    odds = np.log([[3.0], [1 / 3]])
    binary = Problem(2).losses(Head("binary", 1, np.zeros(1)), odds, np.array([1, 1]))
    np.testing.assert_allclose(binary, -np.log([0.75, 0.25]))
    three = Problem(3).losses(Head("multiclass", 3, np.zeros(3)), np.log([[1.0, 2.0, 1.0]]), np.array([1]))
    np.testing.assert_allclose(three, -np.log([0.5]))
    head = Head("regression", 1, np.zeros(1), offset=10.0, unit=2.0)
    np.testing.assert_allclose(Problem().losses(head, np.array([[1.0]]), np.array([16.0])), [2.0])


def test_fits_are_counted_by_a_ledger(tmp_path: Path) -> None:
    """Three fits of the same rows take a third each, within one ε; for a fourth nothing is left."""
    x, y = waves(rows=300)
    recipe, path = recipe_for(300, steps=2), tmp_path / "ledger.jsonl"
    budget = Budget(2.0, 1e-5, fits=3)
    fitted = [fit(x, y, BOUNDED, budget, recipe=recipe, ledger=path) for _ in range(3)]
    assert fitted[2].spent == fitted[1].spent == fitted[0].spent
    assert 1.9 < fitted[2].epsilon <= 2.0
    with pytest.raises(BudgetError, match="is spent"):
        fit(x, y, BOUNDED, budget, recipe=recipe, ledger=path)


@pytest.mark.parametrize("fits", [0, 1.5, 2.0])
def test_fits_are_a_whole_number(fits: Any) -> None:
    """With 1.5 a cross-validation of five fits would have cost 5/1.5 times ε, and was not refused."""
    with pytest.raises(BudgetError, match="a whole number of at least 1"):
        Budget(2.0, 1e-5, fits)


def test_a_ledger_with_a_selection_is_read_by_divergences(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    engine = PrivacyEngine("rdp", path)
    ledger = engine.open_ledger(300)
    ledger.declare(Selection(20.0, 10.0))
    ledger.record_step(Selection(20.0, 10.0))
    engine.close()
    x, y = waves(rows=300)
    fitted = fit(x, y, BOUNDED, Budget(2.0, 1e-5), recipe=recipe_for(300, steps=2), ledger=path)
    assert 1.9 < fitted.epsilon <= 2.0
    assert fitted.epsilon == read_ledger(path).epsilon(1e-5, "rdp")


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
    public = {"features", "budget", "epsilon", "spent", "recipe", "private", "searched"}
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
    recipe = recipe_for(len(x), steps=5)
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
    recipe = recipe_for(len(x), kind="waves", steps=1, agitation=0.5, width=4000, momentum=0.0)
    fitted = fit(x, y, Problem(2, np.full(40, -1.0), np.ones(40)), Budget(0.05, 1e-5), recipe=recipe)
    # 4,040 weights beside the constant's: their sample deviation is within 6 % of the truth but for 1e-7 of runs.
    assert fitted.weights[:, :-1].std() == pytest.approx(0.5, rel=0.06)


def test_noise_of_shares_does_not_become_odds() -> None:
    target = Classes(np.zeros(3, dtype=np.int64), 2)
    assert target.head(np.array([-0.3]), 0.2, 0.1).start == pytest.approx(np.log(0.2 / 1.0) / 0.1)
    assert target.head(np.array([0.5]), 0.2, 0.1).start == pytest.approx(0.0)
    assert target.head(np.array([9.0]), 7.0, 0.1).start == pytest.approx(np.log(2.0) / 0.1)
