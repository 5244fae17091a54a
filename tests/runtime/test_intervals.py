"""Intervals contain what exact arithmetic gives."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import mpmath
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lipcompile_torch.runtime import numbers as num
from lipcompile_torch.runtime.intervals import Interval

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


@given(operations, doubles.filter(bool), doubles.filter(bool))
def test_floats_stand_for_their_neighbours(operation: Callable[[Any, Any], Any], x: float, y: float) -> None:
    """A constant of an emitted program, rounded a few hundred times."""
    off = Fraction(x) * (1 + Fraction(500, 2**52))
    assert contains(operation(x, Interval.exactly(y)), operation(off, Fraction(y)))
    assert contains(operation(Interval.exactly(y), x), operation(Fraction(y), off))


def test_integers_are_exact() -> None:
    assert Interval.around(3) == Interval(3.0, 3.0)
    assert (Interval.exactly(0.5) * 2).high == math.nextafter(1.0, 2)


@given(st.floats(0, 1e100))
def test_roots(x: float) -> None:
    root = num.sqrt(Interval.exactly(x))
    assert max(Fraction(0), Fraction(root.low)) ** 2 <= Fraction(x) <= Fraction(root.high) ** 2


@given(st.floats(-700, 700))
def test_exponentials(x: float) -> None:
    found = num.exp(Interval.exactly(x))
    with mpmath.workdps(50):
        assert mpmath.mpf(found.low) <= mpmath.exp(mpmath.mpf(x)) <= mpmath.mpf(found.high)


def test_what_has_no_bound_is_unbounded() -> None:
    one = Interval.exactly(1.0)
    assert (one / Interval(-1.0, 1.0)).high == math.inf
    assert (Interval.exactly(0.0) * Interval.exactly(math.inf)).high == math.inf
    assert num.exp(Interval.exactly(1e4)).high == math.inf
    assert Interval.around(math.inf).high == math.inf


@pytest.mark.parametrize(("function", "expected"), [(num.minimum, (1.0, 2.0)), (num.maximum, (3.0, 4.0))])
def test_extremes(function: Callable[..., Any], expected: tuple[float, float]) -> None:
    found = function(Interval(1.0, 4.0), Interval(3.0, 2.0 if function is num.minimum else 3.5), 3)
    assert (found.low, found.high) == expected


def test_extremes_over_a_range() -> None:
    found = num.max_over(1, 4, lambda m: Interval.exactly(0.5) * m)
    assert found.low <= 1.5 <= found.high
    assert num.max_over(1, 4, lambda m: m / 2) == 1.5
