"""Correlated noise in the engine: the sampling that it is proved for, its charges, and what is released."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lipcompile_privacy.accounting import BudgetError, Mechanism
from lipcompile_privacy.factorisation import BandedToeplitz, Cyclic, MinSeparation, planned_strategy
from lipcompile_torch import PrivacyEngine
from lipcompile_torch.train.engine import SeededWarning
from lipcompile_torch.train.ledger import read_ledger

from tests.torch.private_net import Net, Wide, backward, make_loader
from tests.torch.private_net import private as made_private

N, B = 64, 8  # 8 steps an epoch
BANDED: dict[str, Any] = {"kind": "correlated", "bands": 4}
BLT: dict[str, Any] = {"kind": "blt", "buffers": 2}


def private(engine: PrivacyEngine, noise_multiplier: float = 1.0, max_steps: int | None = 16, **how: Any) -> Any:
    options = {
        "noise_multiplier": noise_multiplier,
        "max_steps": max_steps,
        "data_loader": make_loader(N, B),
        **how,
    }
    return made_private(engine=engine, **options)


@pytest.mark.parametrize(("epsilon", "bands"), [(0.5, 1), (100.0, 8)])
def test_the_target_chooses_the_bands(epsilon: float, bands: int) -> None:
    """64 examples in batches of 8: little noise is worth all 8 bands, much noise none."""
    engine = PrivacyEngine(accountant="rdp")
    module = Net()
    _, _, loader = engine.make_private_with_epsilon(
        module=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
        data_loader=make_loader(N, B),
        target_epsilon=epsilon,
        target_delta=1e-3,
        epochs=2,
        correlation={"kind": "correlated"},
    )
    assert loader.scheme.drawing.groups == bands


def train(module: Any, optimizer: Any, loader: Any, *, steps: int) -> None:
    taken = 0
    while taken < steps:
        for x, y in loader:
            backward(module, x, y)
            optimizer.step()
            taken += 1
            if taken == steps:
                return


@pytest.mark.parametrize(
    ("correlation", "release", "charges"), [(BANDED, Mechanism(4 * 8 / 64, 1.0), 3), (BLT, Mechanism(1.0, 1.0), 1)]
)
def test_what_is_charged(correlation: Any, release: Mechanism, charges: int, tmp_path: Path) -> None:
    engine = PrivacyEngine(ledger=tmp_path / "ledger.jsonl")
    triple = private(engine, correlation=correlation)
    train(*triple, steps=11)  # of 4 steps a turn: 2 whole turns and a begun one
    engine.close()
    record = read_ledger(tmp_path / "ledger.jsonl")
    assert record.charges == {release: charges}
    assert record.total_steps == 11


@pytest.mark.parametrize("correlation", [BANDED, BLT])
def test_released_noise_is_correlated_as_the_strategy_says(correlation: Any) -> None:
    # σ = 10⁴ drowns the gradients. Each of the 136 covariances of two steps, of 4096 entries, is within 6·√2/√n of
    # what C⁻¹ says, in units of the two deviations, but for 3e-7 of seeds.
    strategy = planned_strategy(correlation, 2, 8)
    inverse = np.array(strategy.noising_column())
    lower = np.array([[inverse[i - j] if i >= j else 0.0 for j in range(16)] for i in range(16)])
    expected = strategy.sensitivity**2 * lower @ lower.T
    with pytest.warns(SeededWarning):
        module, optimizer, loader = private(PrivacyEngine(), 1e4, correlation=correlation, seed=0, module=Wide())
    released: list[torch.Tensor] = []
    optimizer.optimizer.register_step_pre_hook(
        lambda *_: released.append(torch.cat([p.grad.flatten() for p in module.parameters()]).double())
    )
    train(module, optimizer, loader, steps=16)
    total = 1e4 * math.hypot(*Wide.bounds.values()) / B
    entries = (torch.stack(released) / total).numpy()
    covariance = entries @ entries.T / entries.shape[1]
    deviations = np.sqrt(np.diag(expected))
    assert np.abs((covariance - expected) / np.outer(deviations, deviations)).max() < 6 * math.sqrt(2) / math.sqrt(
        entries.shape[1]
    )


def test_noise_follows_the_number_of_the_step_over_steps_that_were_left_out() -> None:
    # A stream that counts the steps taken would let an example of group 0 meet its own band after a gap.
    with pytest.warns(SeededWarning):
        module, optimizer, loader = private(PrivacyEngine(), correlation=BANDED, seed=0)
    loader.scheme.drawn = 3  # as if workers had drawn three steps ahead for an epoch that was broken off
    train(module, optimizer, loader, steps=1)
    assert {memory.taken for memory in optimizer._noise._stream._memories.values()} == {4}


def test_steps_beyond_the_plan_are_refused_before_they_are_counted() -> None:
    engine = PrivacyEngine()
    module, optimizer, loader = private(engine, correlation=BANDED)
    loader.scheme.drawn = 16
    with pytest.raises(BudgetError, match="correlated over 16 steps"):
        train(module, optimizer, loader, steps=1)
    assert engine.ledger is not None
    assert engine.ledger.record.total_steps == 0


def test_a_strategy_of_ones_own_is_checked_against_the_sampling() -> None:
    wide = BandedToeplitz((1.0, 0.5), 16, MinSeparation(9, 2))
    with pytest.raises(BudgetError, match="2 times, 9 steps apart; here it would be 2 times, 8 apart"):
        private(PrivacyEngine(), correlation=wide)
    rare = BandedToeplitz((1.0, 0.5), 16, MinSeparation(8, 1))
    with pytest.raises(BudgetError, match="1 times, 8 steps apart; here it would be 2 times"):
        private(PrivacyEngine(), correlation=rare)
    short = BandedToeplitz((1.0, 0.5), 15, Cyclic(2))
    with pytest.raises(BudgetError, match="correlated over 15 steps, but 16 are planned"):
        private(PrivacyEngine(), correlation=short.to_dict())
    private(PrivacyEngine(), correlation=BandedToeplitz((1.0, 0.5), 16, MinSeparation(8, 2)))


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"correlation": BANDED, "sampling": "poisson"}, "proved private for cyclic_poisson sampling only"),
        ({"correlation": BLT, "sampling": "balls_in_bins"}, "proved private for fixed_order sampling only"),
        ({"sampling": "cyclic_poisson"}, "is only for correlated noise"),
        ({"sampling": "fixed_order"}, "is only for correlated noise"),
        ({"correlation": BANDED, "secure": True}, "use one of the two"),
        ({"correlation": BANDED, "max_steps": None}, "give max_steps"),
        ({"correlation": {"kind": "correlated", "bands": 9}}, "9 bands need 9 batches"),
        ({"correlation": {"kind": "correlated"}}, "without a target epsilon and delta"),
        ({"correlation": {"kind": "pink"}}, "must be correlated or blt"),
        ({"secure": True, "seed": 1}, "leave the seed out"),
    ],
)
def test_combinations_without_an_analysis_are_refused_with_the_reason(how: dict[str, Any], said: str) -> None:
    with pytest.raises(BudgetError, match=said):
        private(PrivacyEngine(), **how)
