"""The privacy of correlated noise: losses simulated from dense matrices, against what the accounting says."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from lipcompile_privacy.accounting import Mechanism, epsilon
from lipcompile_privacy.factorisation import BandedToeplitz, Cyclic, MinSeparation, optimal_banded, optimal_blt

SAMPLES = 200_000
DELTA = 0.02
STEPS, PERIOD, RATE = 6, 3, 0.3


def toeplitz(column: Any) -> Any:
    """The matrix of STEPS rows with this first column."""
    full = np.zeros(STEPS)
    full[: len(column)] = column[:STEPS]
    return sum(np.diag(np.full(STEPS - i, c), -i) for i, c in enumerate(full))


def densities(outputs: Any, means: Any, weights: Any) -> Any:
    """Logarithms, up to a common constant, of the mixture of unit Gaussians at these means."""
    squares = ((outputs[:, None, :] - means[None]) ** 2).sum(axis=2) / 2
    return np.logaddexp.reduce(np.log(weights)[None] - squares, axis=1)


def simulated_delta(c: Any, sigma: float, rate: float, turns: list[int], at: float, removed: bool) -> float:
    """δ at ε = `at` of CG + Z with and without an example that enters each of its turns at this rate.

    The mixture over all outcomes of the coins is taken as it is, without the blocks that the proof goes by.
    δ = E[(1 - exp(ε - loss))₊] over outputs of the first of the two data sets; `removed`: that with the example.
    """
    coins = np.array(list(itertools.product((0, 1), repeat=len(turns))))
    weights = np.prod(np.where(coins == 1, rate, 1 - rate), axis=1)
    coins, weights = coins[weights > 0], weights[weights > 0]
    present = coins @ c[:, turns].T / sigma
    absent, one = np.zeros((1, STEPS)), np.ones(1)
    (mine, mine_weights), (other, other_weights) = (
        ((present, weights), (absent, one)) if removed else ((absent, one), (present, weights))
    )
    random = np.random.default_rng(3)
    outputs = random.standard_normal((SAMPLES, STEPS)) + mine[random.choice(len(mine), SAMPLES, p=mine_weights)]
    losses = densities(outputs, mine, mine_weights) - densities(outputs, other, other_weights)
    return float(np.maximum(0, -np.expm1(at - losses)).mean())


def margin() -> float:
    """Five standard errors of an average of numbers in [0, 1] with mean DELTA: wrong in 3e-7 of simulations."""
    return 5 * float(np.sqrt(DELTA / SAMPLES))


@pytest.mark.parametrize("group", range(PERIOD))
@pytest.mark.parametrize("bands", [1, 2, 3])
def test_cyclic_sampling_is_as_private_as_accounted(bands: int, group: int) -> None:
    strategy = optimal_banded(STEPS, bands, Cyclic(PERIOD))
    c, turns = toeplitz(strategy.coefficients) / strategy.sensitivity, list(range(group, STEPS, PERIOD))
    spent = epsilon([(Mechanism(RATE, 1.0), 2)], DELTA)
    deltas = [simulated_delta(c, 1.0, RATE, turns, spent, removed) for removed in (True, False)]
    assert max(deltas) <= DELTA + margin()
    if group == 0:  # whose columns are whole
        assert max(deltas) >= DELTA - margin() - 1e-4


def test_bands_that_overlap_would_be_less_private_than_accounted() -> None:
    c = toeplitz(np.ones(STEPS)) / np.sqrt(STEPS)  # columns of norm 1, or less, which meet
    spent = epsilon([(Mechanism(RATE, 1.0), 2)], DELTA)
    assert simulated_delta(c, 1.0, RATE, [0, 3], spent, True) > DELTA + margin()


@pytest.mark.parametrize(
    "strategy",
    [
        optimal_blt(STEPS, 2, 3, 2),
        BandedToeplitz((1.0, 0.8, 0.5, 0.1), STEPS, MinSeparation(2, 2)),
        optimal_banded(STEPS, 3, MinSeparation(3, 2)),
    ],
)
def test_a_fixed_order_is_as_private_as_accounted(strategy: Any) -> None:
    c, pattern = toeplitz(strategy.column()) / strategy.sensitivity, strategy.participation
    spent = epsilon([(Mechanism(1.0, 1.0), 1)], DELTA)
    turns = [j * pattern.separation for j in range(pattern.count(STEPS))]
    delta = simulated_delta(c, 1.0, 1.0, turns, spent, True)
    assert DELTA - margin() - 1e-4 <= delta <= DELTA + margin()
    assert simulated_delta(c / 0.95, 1.0, 1.0, turns, spent, True) > DELTA + margin()
