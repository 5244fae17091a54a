"""Intervals contain what exact arithmetic gives."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from fractions import Fraction
from itertools import product
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lipcompile_torch.certify import intervals as num
from lipcompile_torch.certify.intervals import Interval, Intervals

from tests.suprema import SUPREMA

doubles = st.floats(-1e100, 1e100, allow_subnormal=False).filter(lambda x: x == 0 or abs(x) > 1e-100)
intervals = st.tuples(doubles, doubles).map(lambda ends: Interval(min(ends), max(ends)))
operations = st.sampled_from([operator.add, operator.sub, operator.mul, operator.truediv])


def inside(x: Interval, share: float) -> Fraction:
    """A number of the interval."""
    return Fraction(x.low) + Fraction(share) * (Fraction(x.high) - Fraction(x.low))


def contains(interval: Interval, number: Fraction) -> bool:
    low = -math.inf if interval.low == -math.inf else Fraction(interval.low)
    return low <= number and (interval.high == math.inf or number <= Fraction(interval.high))


@given(operations, intervals, intervals, st.floats(0, 1), st.floats(0, 1))
def test_operations_contain_the_exact_result(
    operation: Callable[[Any, Any], Any], x: Interval, y: Interval, s: float, t: float
) -> None:
    first, second = inside(x, s), inside(y, t)
    if operation is operator.truediv and second == 0:
        return
    assert contains(operation(x, y), operation(first, second))


@given(operations, st.fractions(-1000, 1000), doubles.filter(bool))
def test_floats_stand_for_what_rounds_to_them(operation: Callable[[Any, Any], Any], x: Fraction, y: float) -> None:
    """A literal of an emitted program is the nearest double of an exact number."""
    assert contains(operation(float(x), Interval.exactly(y)), operation(x, Fraction(y)))
    if x:
        assert contains(operation(Interval.exactly(y), float(x)), operation(Fraction(y), x))


def test_roots_are_close_and_begin_at_zero() -> None:
    """What rounding puts below 0 has the root 0; of 4 to 9 it is 2 to 3, and no more than two steps around."""
    assert Interval(-1e-320, 4.0).sqrt().low == 0
    root, step = Interval(4.0, 9.0).sqrt(), math.ulp(3.0)
    assert 2 - 2 * step <= root.low <= 2
    assert 3 <= root.high <= 3 + 2 * step


SMALL = [0.0, 5e-324, 1e-310, 2.0**-1022, 1e-200, 1.0, 1e200, 1.7e308]


@pytest.mark.parametrize("operation", [operator.add, operator.sub, operator.mul, operator.truediv])
def test_the_ends_of_the_range_of_doubles(operation: Callable[[Any, Any], Any]) -> None:
    for x, y in product(SMALL, SMALL):
        for a, b in ((x, y), (-x, y), (x, -y)):
            if b or operation is not operator.truediv:
                assert contains(
                    operation(Interval.exactly(a), Interval.exactly(b)), operation(Fraction(a), Fraction(b))
                )


def test_literals_beyond_doubles() -> None:
    assert contains(Interval.around(float(Fraction(1, 3 * 10**400))), Fraction(1, 3 * 10**400))
    assert contains(Interval.around(10**400), Fraction(10**400))
    assert contains(Interval.around(2**53 + 1), Fraction(2**53 + 1))


def test_integers_are_exact() -> None:
    assert Interval.around(3) == Interval(3.0, 3.0)
    assert (Interval.exactly(0.5) * 2).high == math.nextafter(1.0, 2)


@given(st.floats(0, 1e100))
def test_roots(x: float) -> None:
    root = num.sqrt(Interval.exactly(x))
    assert max(Fraction(0), Fraction(root.low)) ** 2 <= Fraction(x) <= Fraction(root.high) ** 2


exponents = st.one_of(
    st.floats(-800, 800), st.floats(-1e-3, 1e-3), st.sampled_from([0.0, 5e-324, -5e-324, -1e300])
)


@given(exponents)
def test_exponentials(x: float) -> None:
    found, less_one = num.exp(Interval.exactly(x)), num.expm1(Interval.exactly(x))
    with mpmath.workprec(1200):
        assert mpmath.mpf(found.low) <= mpmath.exp(mpmath.mpf(x)) <= mpmath.mpf(found.high)
        assert mpmath.mpf(less_one.low) <= mpmath.expm1(mpmath.mpf(x)) <= mpmath.mpf(less_one.high)


@given(exponents)
def test_libraries_may_be_off_by_three_units_in_the_last_place(x: float) -> None:
    """Of the mantissa's: what is enclosed if the C library errs so, beside its own value."""
    for found, value in (
        (num.exp(Interval.exactly(x)), mpmath.exp),
        (num.expm1(Interval.exactly(x)), mpmath.expm1),
    ):
        exact = float(value(mpmath.mpf(x)))
        if 2.0**-1022 < abs(exact) < math.inf:
            up, down = exact + 3 * math.ulp(exact), exact - 3 * math.ulp(exact)
            assert found.high >= min(up, 1.0 if value is mpmath.exp else 0.0) if x <= 0 else found.high >= up
            assert found.low <= max(down, -1.0, x) if value is mpmath.expm1 else found.low <= down


def test_logarithms() -> None:
    assert num.log(1) == Interval(0.0, 0.0)
    for x in (2, 3, 10, 1000, 10**12):
        found = num.log(x)
        assert mpmath.mpf(found.low) < mpmath.log(x) < mpmath.mpf(found.high) < found.low * (1 + 1e-14)


def test_zero_stays_exact() -> None:
    """A bound of 0 means that a parameter gets no noise."""
    zero, some = Interval.exactly(0.0), Interval(1e-300, 2.0)
    exact = [
        zero + zero,
        zero - zero,
        zero * some,
        some * zero,
        zero / some,
        num.sqrt(zero),
        num.expm1(zero),
        0 * some,
    ]
    assert exact == [Interval(0.0, 0.0)] * len(exact)
    assert (Interval.exactly(1e-200) * Interval.exactly(1e-200)).high > 0
    assert (Interval.exactly(5e-324) / 2).high > 0


def test_what_has_no_bound_is_unbounded() -> None:
    one = Interval.exactly(1.0)
    assert (one / Interval(-1.0, 1.0)).high == math.inf
    assert (Interval.exactly(0.0) * Interval.exactly(math.inf)).high == math.inf
    assert (Interval.exactly(math.inf) - Interval.exactly(math.inf)) == Interval(-math.inf, math.inf)
    assert num.exp(Interval.exactly(1e4)).high == math.inf
    assert Interval.around(math.inf).high == math.inf


@pytest.mark.parametrize(("function", "expected"), [(num.minimum, (1.0, 2.0)), (num.maximum, (3.0, 4.0))])
def test_extremes(function: Callable[..., Any], expected: tuple[float, float]) -> None:
    found = function(Interval(1.0, 4.0), Interval(3.0, 2.0 if function is num.minimum else 3.5), 3)
    assert (found.low, found.high) == expected


@given(operations, intervals, intervals, st.floats(0, 1), st.floats(0, 1))
def test_many_contain_the_exact_result(
    operation: Callable[[Any, Any], Any], x: Interval, y: Interval, s: float, t: float
) -> None:
    first, second = inside(x, s), inside(y, t)
    if operation is operator.truediv and second == 0:
        return
    many = Intervals(np.array([x.low] * 2), np.array([x.high] * 2))
    other = Intervals(np.array([y.low] * 2), np.array([y.high] * 2))
    with np.errstate(all="ignore"):
        for found in (operation(many, other), operation(many, y), operation(x, other)):
            assert contains(Interval(float(found.low[1]), float(found.high[1])), operation(first, second))


def test_extremes_over_a_range() -> None:
    found = num.max_over(1, 4, lambda m: Interval.exactly(0.5) * m)
    assert found.low <= 1.5 <= found.high
    assert contains(num.max_over(1, 4, lambda m: m / 3), Fraction(1))
    assert contains(num.max_over(1, 4, lambda _: 2), Fraction(2))
    assert contains(num.max_over(1, 2, lambda m: 1 / m), Fraction(1))
    assert num.max_over(1, 4, lambda m: m * math.inf).high == math.inf


def test_functions_over_a_range() -> None:
    """m = 2 is the largest of m·e^(-m/2), √m - m/3 and min(m, 4 - m) from 1 to 3; e^(m/9) - 1 is so at 3."""
    terms: dict[Callable[[Any], Any], float] = {
        lambda m: m * num.exp(0 - m / 2): 2 * math.exp(-1),
        lambda m: num.sqrt(m) - m / 3: math.sqrt(2) - 2 / 3,
        lambda m: num.minimum(m, 4 - m): 2.0,
        lambda m: num.maximum(num.expm1(m / 9), 0): math.expm1(1 / 3),
    }
    for term, expected in terms.items():
        found = num.max_over(1, 4, term)
        assert found.low <= expected <= found.high <= expected * (1 + 1e-14)


@pytest.mark.parametrize(("value", "slope", "exact"), SUPREMA)
def test_suprema(value: Any, slope: Any, exact: Fraction) -> None:
    found = num.supremum(value, slope)
    assert contains(found, exact)
    assert Fraction(found.high) <= exact * (1 + Fraction(1, 10**9))


def test_a_slope_that_is_said_too_small_is_seen() -> None:
    value, _, exact = SUPREMA[1]
    assert num.supremum(value, lambda s: s * 0).high < exact


def test_the_supremum_of_what_is_unknown() -> None:
    assert num.supremum(lambda s: 1 / (1 + s * math.inf), lambda s: 0 - s * math.inf).high == pytest.approx(1)
    assert num.supremum(lambda s: s * math.inf, lambda s: 1 + s * math.inf).high == math.inf


@pytest.mark.parametrize(("off", "truth"), [(1 - 2.0**-52, Fraction(1)), (1 + 2.0**-52, 1 - Fraction(1, 2**60))])
def test_an_exponential_that_is_off_by_a_unit_is_contained(
    off: float, truth: Fraction, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Around a power of two units are of two lengths: the next number is not enough."""
    monkeypatch.setattr(math, "exp", lambda _: off)
    assert contains(num.exp(Interval.exactly(1e-300)), truth)


def test_every_end_is_rounded_outward() -> None:
    """Of sums, products, quotients and roots that are not exact, either way."""
    for k in range(1, 60):
        x, y = Interval.exactly(1 + k / 61), Interval.exactly(1 + k / 67)
        for operation in (operator.add, operator.sub, operator.mul, operator.truediv):
            found, exact = operation(x, y), operation(Fraction(x.low), Fraction(y.low))
            assert Fraction(found.low) < exact < Fraction(found.high)
        root = num.sqrt(x)
        assert Fraction(root.low) ** 2 < Fraction(x.low) < Fraction(root.high) ** 2


def test_many_products_below_the_normal_numbers_are_rounded_outward() -> None:
    """k·2^-1074 times 1/3 and 2/3: whole ones are the nearest, above or below."""
    for share in (1 / 3, 2 / 3):
        for k in (1, 2, 4, 5, 7, 8):
            ends = np.array([math.ldexp(k, -1074)])
            found = num.Intervals(ends, ends) * Interval.exactly(share)
            assert (
                Fraction(found.low.item()) < Fraction(k, 2**1074) * Fraction(share) < Fraction(found.high.item())
            )
