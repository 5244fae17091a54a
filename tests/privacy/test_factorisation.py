"""Strategies of correlated noise against dense matrices: sensitivity over all patterns, error, optimality."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lipcompile_privacy.factorisation import (
    BandedToeplitz,
    Blt,
    Cyclic,
    FactorisationError,
    MinSeparation,
    Strategy,
    optimal_banded,
    optimal_blt,
    planned_strategy,
    strategy_from,
)
from lipcompile_privacy.factorisation.strategies import Objective

# --- the oracle: dense matrices, written down from the definitions -----------------------------------------------


def first_column(strategy: Strategy) -> list[Fraction]:
    """Column 0 of C, exactly."""
    if isinstance(strategy, BandedToeplitz):
        given = [Fraction(value) for value in strategy.coefficients]
        return [*given, *[Fraction(0)] * (strategy.steps - len(given))]
    assert isinstance(strategy, Blt)
    buffers = [(Fraction(t), Fraction(w)) for t, w in zip(strategy.decays, strategy.scales, strict=True)]
    return [
        Fraction(1),
        *(sum((w * t**i for t, w in buffers), Fraction(0)) for i in range(strategy.steps - 1)),
    ]


def matrix(strategy: Strategy) -> Any:
    column, n = first_column(strategy), strategy.steps
    return np.array([[float(column[i - j]) if i >= j else 0.0 for j in range(n)] for i in range(n)])


def patterns(steps: int, separation: int, most: int) -> Iterator[tuple[int, ...]]:
    """Yield every set of participations that the pattern allows."""
    for count in range(1, most + 1):
        for chosen in combinations(range(steps), count):
            if all(later - earlier >= separation for earlier, later in pairwise(chosen)):
                yield chosen


def worst(strategy: Strategy, separation: int, most: int) -> float:
    """The largest norm of a sum of columns over all patterns."""
    c = matrix(strategy)
    return max(
        float(np.linalg.norm(c[:, list(chosen)].sum(axis=1)))
        for chosen in patterns(strategy.steps, separation, most)
    )


def check_covers(strategy: Strategy, sensitivity: float) -> None:
    """The sensitivity is not below that of any pattern, and not above by more than rounding."""
    pattern = strategy.participation
    if isinstance(pattern, Cyclic):
        true = max(np.linalg.norm(matrix(strategy), axis=0))
    else:
        true = worst(strategy, pattern.separation, pattern.participations)
    assert true * (1 - 1e-14) <= sensitivity <= true * (1 + 1e-12)


@st.composite
def banded(draw: Any, steps: int = 9) -> BandedToeplitz:
    values = draw(st.lists(st.floats(0, 1), min_size=0, max_size=steps - 1))
    first = draw(st.floats(0.5, 2))
    pattern = MinSeparation(draw(st.integers(1, steps + 2)), draw(st.integers(1, steps + 2)))
    decreasing = sorted((value * first for value in values), reverse=True)
    return BandedToeplitz((first, *decreasing), steps, pattern)


@st.composite
def blt(draw: Any, steps: int = 9) -> Blt:
    buffers = draw(st.integers(0, 3))
    decays = draw(st.lists(st.floats(0, 1), min_size=buffers, max_size=buffers))
    scales = draw(st.lists(st.floats(0, 0.99 / max(1, buffers)), min_size=buffers, max_size=buffers))
    pattern = MinSeparation(draw(st.integers(1, steps + 2)), draw(st.integers(1, steps + 2)))
    return Blt(tuple(decays), tuple(scales), steps, pattern)


# --- sensitivity -------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(st.one_of(banded(), blt()))
def test_sensitivity_is_that_of_the_worst_of_all_patterns(strategy: Strategy) -> None:
    check_covers(strategy, strategy.sensitivity)


@pytest.mark.nightly
@settings(deadline=None, max_examples=300)
@given(st.one_of(banded(13), blt(13)))
def test_sensitivity_is_that_of_the_worst_of_many_more_patterns(strategy: Strategy) -> None:
    check_covers(strategy, strategy.sensitivity)


@settings(deadline=None, max_examples=20)
@given(st.one_of(banded(), blt()))
def test_a_sensitivity_that_is_smaller_by_a_twentieth_is_noticed(strategy: Strategy) -> None:
    with pytest.raises(AssertionError):
        check_covers(strategy, 0.95 * strategy.sensitivity)


@settings(deadline=None, max_examples=40)
@given(st.one_of(banded(7), blt(7)), st.integers(0, 2**32 - 1))
def test_vectors_of_any_direction_move_no_further_than_the_sensitivity(strategy: Strategy, seed: int) -> None:
    random, pattern, c = np.random.default_rng(seed), strategy.participation, matrix(strategy)
    assert isinstance(pattern, MinSeparation)
    for chosen in patterns(strategy.steps, pattern.separation, pattern.participations):
        moved = np.zeros((strategy.steps, 3))
        vectors = random.standard_normal((len(chosen), 3))
        moved[list(chosen)] = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        assert np.linalg.norm(c @ moved) <= strategy.sensitivity * (1 + 1e-14)


@settings(deadline=None, max_examples=60)
@given(st.one_of(banded(12), blt(12)))
def test_the_rounding_is_outward(strategy: Strategy) -> None:
    column, pattern, n = first_column(strategy), strategy.participation, strategy.steps
    assert isinstance(pattern, MinSeparation)
    starts = range(0, min(n, pattern.separation * pattern.participations), pattern.separation)
    sums = [sum((column[i - start] for start in starts if start <= i), Fraction(0)) for i in range(n)]
    assert Fraction(strategy.sensitivity) ** 2 >= sum(value * value for value in sums)


@pytest.mark.parametrize(("steps", "bands", "period"), [(12, 3, 3), (11, 3, 4), (5, 5, 5), (4, 1, 1), (3, 2, 7)])
def test_turns_of_a_group_meet_orthogonal_columns_of_norm_at_most_one(steps: int, bands: int, period: int) -> None:
    strategy = BandedToeplitz(tuple(1 / (j + 1) for j in range(bands)), steps, Cyclic(period))
    check_covers(strategy, strategy.sensitivity)
    assert strategy.round_steps == period
    c = matrix(strategy) / strategy.sensitivity
    for group in range(min(period, steps)):
        gram = c[:, group::period].T @ c[:, group::period]
        assert np.all(np.diag(gram) <= 1)
        assert np.count_nonzero(gram - np.diag(np.diag(gram))) == 0


def test_sensitivities_by_hand() -> None:
    # Columns (2, 1, 0, …), (0, 2, 1, …): once √5; at 0 and 1, (2, 3, 1): √14; at 0 and 2, (2, 1, 2, 1): √10.
    for separation, times, whole in ((1, 1, 5), (1, 2, 14), (2, 2, 10), (3, 2, 10)):
        strategy = BandedToeplitz((2, 1), 9, MinSeparation(separation, times))
        assert strategy.sensitivity == pytest.approx(math.sqrt(whole), rel=1e-12)
    # The last column is (2): at 0, 2 and 4 of 5 steps 5 + 5 + 4.
    assert BandedToeplitz((2, 1), 5, MinSeparation(2, 9)).sensitivity == pytest.approx(math.sqrt(14), rel=1e-12)
    # c = (1, 1/2, 1/4): at 0 and 1, (1, 3/2, 3/4).
    square = 1 + 9 / 4 + 9 / 16
    assert Blt((0.5,), (0.5,), 3, MinSeparation(1, 2)).sensitivity == pytest.approx(math.sqrt(square), rel=1e-12)


# --- error -------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(st.one_of(banded(), blt()))
def test_error_and_inverse_are_those_of_the_dense_matrices(strategy: Strategy) -> None:
    inverse = np.linalg.inv(matrix(strategy))
    assert np.allclose(inverse[:, 0], strategy.noising_column(), rtol=1e-9, atol=1e-9)
    rows = (np.tri(strategy.steps) @ inverse * strategy.sensitivity) ** 2
    assert strategy.squared_error("mean") == pytest.approx(rows.sum() / strategy.steps, rel=1e-9)
    assert strategy.squared_error("max") == pytest.approx(rows.sum(axis=1).max(), rel=1e-9)


@pytest.mark.parametrize(
    ("strategy", "objective", "loss"),
    [
        # Optimal losses of a published implementation, to all the digits given.
        (lambda: optimal_banded(2048, 32), "mean", "42.864463"),
        (lambda: optimal_banded(10000, 64), "mean", "97.074962"),
        (lambda: optimal_blt(2000, 100, 20, objective="max"), "max", "725.12"),
    ],
)
def test_published_optima(strategy: Callable[[], Strategy], objective: Objective, loss: str) -> None:
    digits = len(loss.partition(".")[2])
    assert f"{strategy().squared_error(objective):.{digits}f}" == loss


def test_one_band_is_independent_noise() -> None:
    strategy = optimal_banded(10, 1)
    assert strategy.coefficients == (1.0,)
    assert strategy.squared_error("mean") == pytest.approx(5.5, rel=1e-12)
    assert strategy.squared_error("max") == pytest.approx(10, rel=1e-12)
    assert optimal_blt(10, 1, 10).decays == ()  # who takes part in every step gains nothing from correlation


@pytest.mark.parametrize("objective", ["mean", "max"])
@pytest.mark.parametrize("bands", [2, 5, 20])
def test_no_change_of_the_banded_optimum_is_better(bands: int, objective: Objective) -> None:
    strategy = optimal_banded(20, bands, objective=objective)
    best, random = strategy.squared_error(objective), np.random.default_rng(1)
    for size in (1e-1, 1e-2, 1e-3):
        for _ in range(20):
            moved = np.array(strategy.coefficients) + size * random.standard_normal(bands)
            inverse = np.linalg.inv(sum(np.diag(np.full(20 - j, value), -j) for j, value in enumerate(moved)))
            squares = ((np.tri(20) @ inverse) ** 2).sum(axis=1)
            other = moved @ moved * (squares.mean() if objective == "mean" else squares.max())
            assert other >= best * (1 - 1e-9)


@pytest.mark.parametrize("objective", ["mean", "max"])
@pytest.mark.parametrize(("separation", "times"), [(1, 1), (6, 4), (4, 2)])
def test_no_change_of_the_blt_optimum_is_better(separation: int, times: int, objective: Objective) -> None:
    strategy = optimal_blt(24, separation, times, 2, objective)
    best, random, tried = strategy.squared_error(objective), np.random.default_rng(1), 0
    for size in (1e-1, 1e-2, 1e-3):
        for _ in range(40):
            decays, scales = (
                np.array(values) * np.exp(size * random.standard_normal(2))
                for values in (strategy.decays, strategy.scales)
            )
            if decays.max() < 1 and scales.sum() < 1:
                other = replace(strategy, decays=tuple(decays.tolist()), scales=tuple(scales.tolist()))
                tried += 1
                assert other.squared_error(objective) >= best * (1 - 1e-6)
    assert tried > 20


def test_more_of_it_is_not_worse() -> None:
    errors = [optimal_banded(64, bands).squared_error() for bands in (1, 2, 4, 8, 16, 32, 64)]
    assert all(later < earlier for earlier, later in pairwise(errors))
    buffered = [optimal_blt(64, 16, 4, buffers).squared_error() for buffers in (1, 2, 3)]
    assert all(later <= earlier * (1 + 1e-6) for earlier, later in pairwise(buffered))
    # All Toeplitz matrices are better than banded ones or BLTs, by little: 1/√(1 - x) is near the optimum.
    assert optimal_blt(64).squared_error() == pytest.approx(errors[-1], rel=0.01)


# --- what is refused, and what is kept ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda: BandedToeplitz((), 5), "at least one coefficient"),
        (lambda: BandedToeplitz((0.0, 0.0), 5), "first coefficient"),
        (lambda: BandedToeplitz((math.nan,), 5), "first coefficient"),
        (lambda: BandedToeplitz((1.0, math.nan), 5), "coefficient 1"),
        (lambda: BandedToeplitz((1.0, 0.5, 0.6), 5), "coefficient 2"),
        (lambda: BandedToeplitz((1.0, -0.1), 5), "coefficient 1"),
        (lambda: BandedToeplitz((1.0, 0.5), 1), "bands for 1 steps"),
        (lambda: BandedToeplitz((1.0, 0.5), 0), "steps"),
        (lambda: BandedToeplitz((1.0, 0.5, 0.2), 9, Cyclic(2)), "overlap"),
        (lambda: BandedToeplitz("11", 5), "must be numbers"),  # type: ignore[arg-type]
        (lambda: Blt((0.5,), (0.5, 0.1), 5), "each buffer needs one"),
        (lambda: Blt((1.5,), (0.5,), 5), "must lie in"),
        (lambda: Blt((0.5,), (-0.5,), 5), "must lie in"),
        (lambda: Blt((0.5,), (math.nan,), 5), "must lie in"),
        (lambda: Blt((0.5, 0.4), (0.5, 0.5), 5), "add up to 1"),
        (lambda: Blt((0.5,), (0.5,), 5, Cyclic(5)), "no bands"),  # type: ignore[arg-type]
        (lambda: MinSeparation(0, 1), "separation"),
        (lambda: MinSeparation(1, 1.0), "participations"),  # type: ignore[arg-type]
        (lambda: Cyclic(True), "period"),
        (lambda: optimal_banded(9, 4, MinSeparation(3, 2)), "at most 3 bands"),
        (lambda: optimal_banded(9, 4, objective="least"), "unknown objective"),  # type: ignore[arg-type]
        (lambda: optimal_blt(9, buffers=0), "buffers"),
        (lambda: optimal_blt(0), "steps"),
        (lambda: strategy_from({"kind": "dense"}), "one of banded, blt"),
        (lambda: strategy_from([1.0]), "one of banded, blt"),
        (lambda: strategy_from({"kind": "banded", "coefficients": [1.0], "steps": 3, "scale": 9}), "entries"),
        (lambda: strategy_from({"kind": "blt", "participation": {"kind": "often"}}), "one of min_separation"),
        (lambda: planned_strategy({"kind": "correlated", "bands": 9}, 3, 8), "fewer bands"),
        (lambda: planned_strategy({"kind": "correlated"}, 3, 8), "bands"),
        (lambda: planned_strategy({"kind": "white"}, 3, 8), "must be correlated or blt"),
    ],
)
def test_refusals(build: Callable[[], Any], reason: str) -> None:
    with pytest.raises(FactorisationError, match=reason):
        build()


@settings(deadline=None, max_examples=40)
@given(st.one_of(banded(), blt()))
def test_a_strategy_survives_json(strategy: Strategy) -> None:
    again = strategy_from(json.loads(json.dumps(strategy.to_dict())))
    assert again == strategy
    assert again.sensitivity == strategy.sensitivity


def test_the_sensitivity_is_not_taken_from_data() -> None:
    data = {**BandedToeplitz((1.0, 0.5), 4).to_dict(), "sensitivity": 0.1}
    with pytest.raises(FactorisationError, match="entries"):
        strategy_from(data)


def test_plans() -> None:
    cyclic = planned_strategy({"kind": "correlated", "bands": 4}, 3, 10)
    assert (cyclic.steps, cyclic.participation, cyclic.round_steps) == (30, Cyclic(4), 4)
    assert cyclic == optimal_banded(30, 4, Cyclic(4))
    fixed = planned_strategy({"kind": "blt", "buffers": 2}, 3, 10)
    assert (fixed.steps, fixed.participation, fixed.round_steps) == (30, MinSeparation(10, 3), 30)
    assert fixed == optimal_blt(30, 10, 3, 2)
    assert planned_strategy({"kind": "blt"}, 3, 10) == optimal_blt(30, 10, 3)
