"""What the compiler's norms add for rounding: each term by itself, where computed norms are too small."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lipcompile.numbers.certified import _IV, Certified, Interval
from lipcompile.numbers.rounding import UP, above, below, round_up
from lipcompile.ops import norms
from lipcompile.ops.counting import windows_of
from tests.rounding import DIGITS, each_is_needed, length, nearly_rank_one
from tests.suprema import SUPREMA

Array = NDArray[Any]
OFF: dict[tuple[Any, str], Any] = {(norms, "UP"): 1.0, (norms, "_gamma"): lambda _: 0.0}
GAMMA = {"γ": {(norms, "_gamma"): norms._gamma}}
ONE_STEP = {"one step": {(norms, "UP"): UP}}
UNIT = 2.0**-53


def gauss(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape)


@pytest.mark.parametrize("terms", [0, 1, 100, 10**6])
def test_gamma_is_above_what_theorems_ask_for(terms: int) -> None:
    """√2·γ_2k for complex numbers, with two roundings more."""
    most = (2 * terms + 4) * Fraction(1, 2**53)
    assert Fraction(norms._gamma(terms)) ** 2 >= 2 * (most / (1 - most)) ** 2


def test_frobenius_norms_are_rounded_up() -> None:
    each_is_needed(OFF, GAMMA, norms._frobenius, length, [gauss(seed, 3000) for seed in range(20)])
    each_is_needed(OFF, ONE_STEP, norms._frobenius, length, [gauss(seed, 2) for seed in range(40)])


def test_a_gram_matrix_that_is_too_small_is_paid_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one row it is a sum of squares, and that is the largest eigenvalue."""
    monkeypatch.setattr(norms, "_largest_eigenvalue", lambda grams: float(grams.max()))
    monkeypatch.setattr(norms, "_frobenius", lambda entries: float(length(entries)) * (1 + 1e-9))
    long, short = ([gauss(seed, 1, 1, entries) for seed in range(20)] for entries in (3000, 2))
    each_is_needed(OFF, GAMMA, norms._stack_norm, length, long)
    each_is_needed(OFF, GAMMA, lambda row: norms._stack_norm(row.swapaxes(1, 2)), length, long)
    each_is_needed(OFF, ONE_STEP, norms._stack_norm, length, short)


@pytest.mark.parametrize("shape", [(1, 2, 900), (1, 900, 2)])
def test_the_error_of_a_gram_matrix_is_that_of_long_sums(
    shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sum of 900 products of ones is off by 900·u of the sum of their moduli, which is 1800 in all."""
    monkeypatch.setattr(norms, "_largest_eigenvalue", lambda _: 0.0)
    assert norms._stack_norm(np.ones(shape)) ** 2 >= 900 * UNIT * 1800


def test_what_maps_are_off_is_added() -> None:
    assert norms._stack_norm(np.ones((1, 1, 1)), 0.5) >= 1.5
    assert norms._stack_norm(np.zeros((1, 1, 1)), 0.5) == 0.5


def test_the_largest_of_all_matrices_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    stack = np.stack([np.eye(3) * k for k in (1.0, 5.0, 2.0)])
    assert 5 <= norms._stack_norm(stack) <= 5.001
    monkeypatch.setattr(norms, "_certified", lambda *_: False)
    assert norms._stack_norm(stack) >= 5


@pytest.mark.parametrize("size", [4, 10])
def test_a_factorisation_that_should_not_end_proves_nothing(size: int) -> None:
    """τI - G is not positive for τ just below an eigenvalue, but with rounding Cholesky may run to its end."""
    ended = 0
    for seed in range(100):
        rows, eigenvalue = nearly_rank_one(gauss(seed, size).tolist())
        gram, limit = np.array([rows]), float(eigenvalue)
        while limit >= eigenvalue:
            limit = math.nextafter(limit, 0)
        try:
            np.linalg.cholesky(limit * np.eye(size) - gram)
            ended += 1
        except np.linalg.LinAlgError:
            continue
        assert not norms._certified(gram, limit)
        assert norms._certified(gram, limit * (1 + 1e-9))
    assert ended


def test_bounds_of_reshaped_kernels_are_rounded_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """√3, for as many reads and taps, times a norm that is known: of one of both shapes alone."""
    monkeypatch.setattr(norms, "_rounded_up", lambda bound, _: bound)
    monkeypatch.setattr(norms, "_frequencies_pay", lambda *_: False)
    windows = windows_of((5,), (3,), (1,), (1,), ((1, 1),))
    numbers = np.random.default_rng(0).uniform(0.5, 2, 40).tolist()
    for shape in ((1, 4, 6), (1, 2, 12)):  # [F, C·k] and [C, F·k] of four filters and two channels

        def bound(number: float, shape: tuple[int, ...] = shape) -> float:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(norms, "_stack_norm", lambda maps, _: number if maps.shape == shape else math.inf)
                return float(norms.convolution_norm(np.ones((4, 2, 3)), windows).bound)

        each_is_needed(OFF, ONE_STEP, bound, lambda number: DIGITS.sqrt(3) * DIGITS.mpf(number), numbers)


def test_the_bound_over_frequencies_is_rounded_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an axis padded by reflection, on which some entry stands twice."""
    monkeypatch.setattr(norms, "_rounded_up", lambda bound, _: bound)
    monkeypatch.setattr(norms, "_frequencies_pay", lambda *_: True)
    windows = windows_of((5,), (3,), (1,), (1,), ((1, 1),), "reflect")

    def bound(number: float) -> float:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(norms, "_frequency_maps", lambda *_: (np.ones((1, 1, 1)), number))
            patch.setattr(norms, "_stack_norm", lambda _, error: error or math.inf)
            return float(norms.convolution_norm(np.ones((1, 1, 3)), windows).bound)

    numbers = np.random.default_rng(0).uniform(0.5, 2, 40).tolist()
    each_is_needed(OFF, ONE_STEP, bound, lambda number: DIGITS.sqrt(2) * DIGITS.mpf(number), numbers)


def test_the_error_of_a_transform_is_that_of_its_sums_and_phases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of three products, γ_3 of each, and cosines of angles up to 6π that are rounded a dozen times."""
    windows = windows_of((5,), (3,), (1,), (1,), ((1, 1),))
    _, error = norms._frequency_maps(np.ones((1, 1, 3)), windows, 1)
    assert error >= math.sqrt(3) * math.sqrt(3) * (12 * math.tau + 3) * UNIT
    monkeypatch.setattr(norms, "_PHASE_ERROR", 0.0)
    _, error = norms._frequency_maps(np.ones((1, 1, 3)), windows, 1)
    assert error >= math.sqrt(3) * math.sqrt(3) * 3 * UNIT


def test_decimals_are_rounded_up() -> None:
    for value in (Fraction(1, 3), Fraction(2, 3), Fraction(10) ** 9 + Fraction(1, 7), Fraction(1, 7 * 10**12)):
        for digits in (3, 9, 15):
            found = round_up(value, digits)
            assert value <= found <= value * (1 + Fraction(10) ** (1 - digits))


@pytest.mark.parametrize("exponent", [-1080, -1074, -1070, -1022, 0, 900])
def test_doubles_are_rounded_up_at_any_scale(exponent: int) -> None:
    for numerator in (1, 3, 2**60 + 1, 2**53 + 1):
        value = Fraction(numerator) * Fraction(2) ** exponent / 3
        found = Certified().of(value).upper
        assert Fraction(found) >= value
        assert Fraction(math.nextafter(found, 0)) < value


def test_extremes_and_roots_are_those_of_both_ends() -> None:
    num = Certified()
    wide, narrow = Interval(_IV.mpf([1, 4])), Interval(_IV.mpf([2, 3]))
    for first, second in ((wide, narrow), (narrow, wide)):
        least, most = num.minimum(first, second).ends, num.maximum(first, second).ends
        assert [float(end) for end in (least.a, least.b, most.a, most.b)] == [1, 3, 2, 4]
    root = num.sqrt(Interval(_IV.mpf([-1, 4]))).ends
    assert [float(root.a), float(root.b)] == [0, 2]
    assert float(num.sqrt(Interval(_IV.mpf([4, 9]))).ends.a) == 2
    assert num.max_over(1, 5, lambda m: num.of(10) - m).upper == 9


@pytest.mark.parametrize(("value", "slope", "exact"), SUPREMA)
def test_a_supremum_is_enclosed_to_twelve_digits(value: Any, slope: Any, exact: Fraction) -> None:
    found = Certified().supremum(value, slope)
    assert Fraction(float(found.ends.a)) <= exact * (1 + Fraction(1, 10**15))
    assert exact <= Fraction(found.upper) <= exact * (1 + Fraction(1, 10**12))


def test_of_a_function_that_is_unknown_the_supremum_is_that_of_all_its_values() -> None:
    num = Certified()
    unknown = num.unbounded()
    assert num.supremum(lambda s: 1 / (1 + s * unknown), lambda _: 0 - unknown).upper == 1
    assert num.supremum(lambda s: s * unknown, lambda _: unknown).upper == math.inf


def test_a_slope_that_is_said_too_small_is_seen() -> None:
    """The tests above are not blind: without the slope, a peak between the ends is missed."""
    value, _, exact = SUPREMA[1]
    assert Fraction(Certified().supremum(value, lambda s: s * 0).upper) < exact


def test_a_supremum_is_searched_for_once_for_all_that_it_depends_on() -> None:
    searched: list[int] = []

    def found(top: int, *of: object) -> float:
        def value(s: Any) -> Any:
            searched.append(top)
            return s * top

        return Certified().supremum(value, lambda s: s * 0 + top, of).upper

    one, two = Certified().of(Fraction(1, 3)), Certified().of(Fraction(2, 3))
    once = [found(top, "a test", limit) for top, limit in ((2, one), (5, two))]
    assert 2 in searched
    assert 5 in searched
    searched.clear()
    assert found(7, "a test", Certified().of(Fraction(2, 3))) == once[1]  # by what it is said to depend on alone
    assert [found(2, "a test", one), found(5, "a test", two)] == once
    assert searched == []
    assert [found(2), found(5)] == once
    assert searched


def test_an_outward_step_covers_thirty_operations_and_itself() -> None:
    assert Fraction(UP) * (1 - Fraction(1, 2**53)) ** 31 >= 1


@pytest.mark.parametrize(
    "exact", [Fraction(1, 10), Fraction(3, 10), Fraction(2**53 + 1), Fraction(7, 3), Fraction(0)]
)
def test_exact_numbers_lie_between_the_doubles_beside_them(exact: Fraction) -> None:
    for number in (exact, -exact):
        low, high = below(number), above(number)
        assert Fraction(low) <= number <= Fraction(high)
        assert high in (low, math.nextafter(low, math.inf))
        assert (low == high) == (Fraction(float(number)) == number)
