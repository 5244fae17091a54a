"""Correlated noise in the `train` block: what it may say, what it costs, and what is emitted for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from lipcompile_privacy.accounting import (
    BudgetError,
    Drawing,
    Mechanism,
    NeighbouringRelation,
    calibrate_noise_multiplier,
    epsilon,
)
from lipcompile_privacy.factorisation import optimal_banded, optimal_blt, strategy_from
from lipcompile_privacy.factorisation.participation import Cyclic
from lipcompile_privacy.planning import Budget, with_bands
from lipcompile_torch import PrivacyEngine
from torch.utils.data import DataLoader, TensorDataset

from lipcompile.cli.shared.privacy import _OPTIONS, Answer, answer, ask
from lipcompile.cli.shared.settings import planned
from lipcompile.core.backend import instantiate
from lipcompile.diagnostics import InputError
from lipcompile.frontends.options import ModelOptions
from lipcompile.pipeline import load
from tests.cli.commands import run
from tests.nights import by_day

pytestmark = pytest.mark.usefixtures("empty_folder")
Capture = pytest.CaptureFixture[str]
MODEL = "model m { input x: tensor[4], norm <= 1\n dense(8) groupsort(2) dense(2) loss cross_entropy }\n"


def write(noise: str, sampling: str = "poisson", more: str = "", epochs: str = ", epochs=2") -> str:
    """Write a model whose plan has 20 steps in each of 2 epochs."""
    plan = f"sampling {sampling}(batch=20, dataset=400)\n noise {noise}\n budget epsilon=3, delta=1e-4{epochs}"
    Path("model.lip").write_text(f"{MODEL}train {{ {plan}\n {more} }}")
    return "model.lip"


@pytest.mark.parametrize(
    ("noise", "sampling", "expected"),
    [
        ("optimal", "poisson", {"noise": "optimal"}),
        ("correlated(bands=4)", "poisson", {"correlation": {"kind": "correlated", "bands": 4}}),
        ("blt", "fixed_order", {"correlation": {"kind": "blt"}}),
        (
            "optimal, blt(buffers=3)",
            "fixed_order",
            {"noise": "optimal", "correlation": {"kind": "blt", "buffers": 3}},
        ),
    ],
)
def test_what_a_plan_says_of_noise(noise: str, sampling: str, expected: dict[str, Any]) -> None:
    plan = planned(load(write(noise, sampling), ModelOptions()))
    assert {key: plan[key] for key in plan if key in ("noise", "correlation")} == expected
    proved = {"correlated": "cyclic_poisson", "blt": "fixed_order", "independent": "poisson"}
    assert plan["sampling"] == proved[expected.get("correlation", {"kind": "independent"})["kind"]]


@pytest.mark.parametrize(
    ("noise", "message"),
    [
        ("correlated(4)", "`noise` takes bands"),
        ("correlated(bands=0)", "whole number of at least 1"),
        ("correlated(bands=2.5)", "whole number of at least 1"),
        ("correlated(bands=2, bands=3)", "`bands` is set twice"),
        ("correlated(buffers=2)", "`noise` takes bands"),
        ("correlated(bands=2), blt", "`correlation` is set twice"),
        ("optimal, global", "`noise` is set twice"),
        ("corelated(bands=2)", "one of global, per_layer, optimal, correlated, blt"),
        ("bands=2", "one of global, per_layer, optimal, correlated, blt"),
    ],
)
def test_what_a_plan_may_not_say_of_noise(noise: str, message: str, capsys: Capture) -> None:
    assert run(f"budget {write(noise)}") != 0
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("target", by_day({0.5, 3}, [0.5, 3, 30]))
def test_a_budget_chooses_the_bands(target: float) -> None:
    """Of all powers of two up to N/b = 20, it takes the one with the least σ·√(mean squared error)."""
    rule, sizes, epochs = NeighbouringRelation.ADD_REMOVE, (20, 400), 4

    def error(bands: int) -> Any:
        charges = -(-20 * epochs // bands)
        sigma = calibrate_noise_multiplier(
            target, 1e-4, lambda noise: Mechanism(0.05 * bands, noise), charges, rule, "rdp"
        )
        return sigma * optimal_banded(20 * epochs, bands, Cyclic(bands)).squared_error("mean") ** 0.5

    found = with_bands(
        {"kind": "correlated"}, Drawing.of("poisson", *sizes), 20 * epochs, Budget(target, 1e-4, rule, "pld")
    )
    assert found == {"kind": "correlated", "bands": min((1, 2, 4, 8, 16), key=error)}


def test_bands_under_replace_one_are_those_of_add_remove() -> None:
    """Where the RDP accountant, which compares them, has no theorem; it asked the user for another one."""
    drawing = Drawing.of("poisson", 20, 400)
    added, replaced = (
        with_bands({"kind": "correlated"}, drawing, 80, Budget(3, 1e-4, relation, "pld"))
        for relation in NeighbouringRelation
    )
    assert added == replaced
    plan = planned(load(write("correlated", more="neighbours replace_one"), ModelOptions()))
    assert plan["correlation"]["bands"] >= 1


def test_bands_that_are_left_out_are_those_of_the_budget() -> None:
    plan = planned(load(write("correlated"), ModelOptions()))
    chosen = with_bands(
        {"kind": "correlated"},
        Drawing.of("poisson", 20, 400),
        40,
        Budget(3, 1e-4, NeighbouringRelation.ADD_REMOVE, "rdp"),
    )
    assert plan["correlation"] == chosen
    with pytest.raises(InputError, match="chosen for a budget: epochs needed"):
        planned(load(write("correlated", epochs=""), ModelOptions()))


@pytest.mark.parametrize(("noise", "sampling"), [("blt", "poisson"), ("optimal", "fixed_order")])
def test_noise_that_the_sampling_has_no_analysis_for_is_refused(noise: str, sampling: str) -> None:
    loaded = load(write(noise, sampling), ModelOptions())
    with pytest.raises(InputError, match="no analysis"):
        planned(loaded)


def rdp(path: str, **given: Any) -> Answer:
    """What the RDP accountant answers; the plan's ε holds where nothing else is given."""
    question = ask({**dict.fromkeys(_OPTIONS), **given}, planned(load(path, ModelOptions())))
    return answer("rdp", question)


def test_the_budget_of_cyclic_sampling() -> None:
    # 40 steps of rate 20/400 with 3 bands: ⌈40/3⌉ = 14 mechanisms of rate 3/20.
    path = write("correlated(bands=3)")
    assert rdp(path, noise_multiplier=2.0).epsilon == epsilon(
        [(Mechanism(0.05 * 3, 2.0), 14)], 1e-4, accountant="rdp"
    )
    steps = rdp(path, noise_multiplier=2.0, epsilon=3.0).steps
    assert steps is not None
    assert steps % 3 == 0
    for charges, within in ((steps // 3, True), (steps // 3 + 1, False)):
        assert (epsilon([(Mechanism(0.05 * 3, 2.0), charges)], 1e-4, accountant="rdp") <= 3) is within
    sigma = rdp(path).noise_multiplier
    assert sigma is not None
    assert rdp(path, noise_multiplier=sigma).epsilon == pytest.approx(3, rel=1e-3)


def test_the_budget_of_a_fixed_order(capsys: Capture) -> None:
    path = write("blt", "fixed_order", "neighbours replace_one")
    expected = epsilon([(Mechanism(1.0, 4.0), 1)], 1e-4, NeighbouringRelation.REPLACE_ONE, "rdp")
    assert rdp(path, noise_multiplier=4.0).epsilon == expected
    assert rdp(path, noise_multiplier=4.0, neighbours="add_remove").epsilon == epsilon(
        [(Mechanism(1.0, 4.0), 1)], 1e-4, accountant="rdp"
    )
    assert run(f"budget {path} --noise-multiplier 4 --epsilon 2") == 2
    assert "the whole run is one mechanism" in capsys.readouterr().err


def test_what_a_budget_counts_is_told(capsys: Capture) -> None:
    assert run(f"budget --noise-multiplier 4 {write('correlated(bands=3)')}") == 0
    assert "3 steps count as one of rate 0.15" in capsys.readouterr().out
    assert (
        run(f"budget --noise-multiplier 4 --format json {write('blt', 'fixed_order', 'neighbours replace_one')}")
        == 0
    )
    assert json.loads(capsys.readouterr().out)["steps_per_mechanism"] is None


def test_more_bands_than_batches_cannot_be_accounted(capsys: Capture) -> None:
    assert run(f"budget {write('correlated(bands=21)')}") == 2
    assert "use at most 20 bands" in capsys.readouterr().err


def compiled(path: str) -> Any:
    assert run(f"compile {path} -o module.py") == 0
    return instantiate(Path("module.py"), Path("module.py").read_text())


def test_what_is_compiled_carries_the_strategy() -> None:
    module = compiled(write("correlated(bands=4)"))
    assert strategy_from(module.noise_strategy) == optimal_banded(40, 4, Cyclic(4))
    wide = compiled(write("correlated(bands=20)"))
    assert strategy_from(wide.noise_strategy) == optimal_banded(40, 20, Cyclic(20))
    fixed = compiled(write("blt(buffers=2)", "fixed_order"))
    assert strategy_from(fixed.noise_strategy) == optimal_blt(40, 20, 2, 2)


def test_an_engine_follows_what_was_compiled() -> None:
    module = compiled(write("correlated(bands=4)"))

    def private(**how: Any) -> Any:
        data = TensorDataset(torch.randn(400, 4), torch.zeros(400, dtype=torch.int64))
        _, optimizer, _ = PrivacyEngine("rdp").make_private(
            module=module,
            optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
            data_loader=DataLoader(data, batch_size=20),
            noise_multiplier=1.0,
            **how,
        )
        return optimizer

    assert private(max_steps=40).charges_left == (Mechanism(0.2, 1.0), 10)
    assert private(max_steps=40, correlation=None).charges_left == (Mechanism(0.05, 1.0), 40)
    with pytest.raises(BudgetError, match="correlated over 40 steps, but 41 are planned"):
        private(max_steps=41)
    with pytest.raises(BudgetError, match="give max_steps"):
        private()


def test_independent_noise_leaves_no_trace() -> None:
    assert compiled(write("optimal")).noise_strategy is None
    assert "noise_strategy" not in Path("module.py").read_text()


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (lambda: write("correlated(bands=21)"), "21 bands need 21 batches"),
        (lambda: write("correlated(bands=4)", epochs=""), "epochs needed"),
    ],
)
def test_a_strategy_that_cannot_be_is_refused(path: Any, message: str, capsys: Capture) -> None:
    assert run(f"compile {path()} -o module.py") == 2
    assert message in capsys.readouterr().err
    assert not Path("module.py").exists()
