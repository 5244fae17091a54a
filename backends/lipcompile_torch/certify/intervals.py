"""Intervals of doubles, rounded outward: emitted rules evaluated on them give certified numbers.

Assumptions: IEEE 754 double precision, rounded to nearest, so that sums, differences, products, quotients and
square roots are off by half a unit in the last place, and no flushing of subnormal numbers to 0; and a C library
whose exponential, `expm1` and logarithm are off by less than three units (glibc documents one). Nothing else is.

The functions at the end are those that emitted bounds call, as `num`: they take intervals, and numbers as
`Interval.around` reads them.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, reduce
from math import inf, nextafter
from typing import Any, Self

import numpy as np

# How far a function of the C library may be off: 2**-49 is at least four units in the last place, and what is left
# covers the rounding of the end itself. Among subnormal doubles 2**-1070 is sixteen units.
_LIBRARY, _SUBNORMAL = 2.0**-49, 2.0**-1070
_LARGEST = 2.0**1023  # a lower bound of what overflows
CLOSE = 2.0**-32  # how far above the largest value found a supremum may be claimed, relatively
_MOST_POINTS = 1000


@dataclass(slots=True)
class Interval:
    """Numbers between two doubles, or infinities.

    Formal guarantees: a sum, difference, product, quotient, root or exponential contains those of all numbers in
    the operands, given what this file assumes. A float among the operands stands for all numbers that round to it,
    an integer for itself, and an infinity for any number that is not negative. An exact 0 stays exact.
    """

    low: float
    high: float

    @classmethod
    def around(cls, value: Interval | float) -> Interval:
        """Return an interval that contains what `value` stands for."""
        if isinstance(value, Interval):
            return value
        if isinstance(value, int) and abs(value) <= 2**53:
            return cls(float(value), float(value))
        if value == inf:
            return cls(0.0, inf)
        return outward(_double(value), _double(value))

    @classmethod
    def exactly(cls, value: float) -> Self:
        """Return the interval of this double alone."""
        return cls(value, value)

    def __add__(self, other: Interval | float) -> Interval:
        right = other if type(other) is Interval else Interval.around(other)
        return _sum(self.low + right.low, self.high + right.high)

    __radd__ = __add__

    def __sub__(self, other: Interval | float) -> Interval:
        right = other if type(other) is Interval else Interval.around(other)
        return _sum(self.low - right.high, self.high - right.low)

    def __rsub__(self, other: float) -> Interval:
        return Interval.around(other) - self

    def __mul__(self, other: Interval | float) -> Interval:
        right = other if type(other) is Interval else Interval.around(other)
        if self.low >= 0 <= right.low:  # almost all numbers that rules multiply
            return _ratio(self.low * right.low, self.high * right.high, not self.high or not right.high)
        corners = [x * y for x in (self.low, self.high) for y in (right.low, right.high)]
        return _ANYTHING if any(map(math.isnan, corners)) else outward(min(corners), max(corners))

    __rmul__ = __mul__

    def __truediv__(self, other: Interval | float) -> Interval:
        right = other if type(other) is Interval else Interval.around(other)
        if right.low <= 0 <= right.high:
            return _ANYTHING
        if self.low >= 0 < right.low:
            return _ratio(self.low / right.high, self.high / right.low, not self.high)
        corners = [x / y for x in (self.low, self.high) for y in (right.low, right.high)]
        return _ANYTHING if any(map(math.isnan, corners)) else outward(min(corners), max(corners))

    def __rtruediv__(self, other: float) -> Interval:
        return Interval.around(other) / self

    def sqrt(self) -> Interval:
        """Return √x; of what lies below 0 by rounding alone, 0."""
        low, high = math.sqrt(max(0.0, self.low)), math.sqrt(max(0.0, self.high))
        return _ratio(low, high, not high)

    def exp(self) -> Interval:
        """Return e^x, which is not negative, and at most 1 where x is at most 0."""
        low, high = _library(math.exp, self.low), _library(math.exp, self.high)
        return Interval(max(0.0, low.low), min(1.0, high.high) if self.high <= 0 else high.high)

    def expm1(self) -> Interval:
        """Return e^x - 1, which is at least x and -1, and at most 0 where x is."""
        low, high = _library(math.expm1, self.low), _library(math.expm1, self.high)
        return Interval(max(-1.0, self.low, low.low), min(0.0, high.high) if self.high <= 0 else high.high)


_ANYTHING = Interval(-inf, inf)


class Intervals(Interval):
    """Several intervals, their ends in arrays [n]; operations are those of each, one interval goes with all."""

    low: Any
    high: Any

    def __init__(self, low: Any, high: Any) -> None:
        super().__init__(low, high)

    def __add__(self, other: Interval | float) -> Intervals:
        right = Interval.around(other)
        return _rounded(self.low + right.low, self.high + right.high)

    __radd__ = __add__

    def __sub__(self, other: Interval | float) -> Intervals:
        right = Interval.around(other)
        return _rounded(self.low - right.high, self.high - right.low)

    def __rsub__(self, other: Interval | float) -> Intervals:
        left = Interval.around(other)
        return _rounded(left.low - self.high, left.high - self.low)

    def __mul__(self, other: Interval | float) -> Intervals:
        return _cornered(operator.mul, self, Interval.around(other))

    __rmul__ = __mul__

    def __truediv__(self, other: Interval | float) -> Intervals:
        return _quotients(self, Interval.around(other))

    def __rtruediv__(self, other: Interval | float) -> Intervals:
        return _quotients(Interval.around(other), self)

    def sqrt(self) -> Intervals:
        """Return √x of each."""
        return self._each(Interval.sqrt)

    def exp(self) -> Intervals:
        """Return e^x of each."""
        return self._each(Interval.exp)

    def expm1(self) -> Intervals:
        """Return e^x - 1 of each."""
        return self._each(Interval.expm1)

    def _each(self, function: Callable[[Interval], Interval]) -> Intervals:
        found = [function(Interval(*ends)) for ends in zip(self.low.tolist(), self.high.tolist(), strict=True)]
        return Intervals(np.array([x.low for x in found]), np.array([x.high for x in found]))


def outward(low: float, high: float) -> Interval:
    """Return an interval whose ends are rounded away from it; not a number stands for anything."""
    return Interval(nextafter(low, -inf), nextafter(high, inf)) if low <= high else _ANYTHING


def _extreme(choose: Callable[[list[float]], float], xs: tuple[Interval | float, ...]) -> Interval:
    """Return the least or the largest of several numbers, as `choose` is min or max."""
    known = [Interval.around(x) for x in xs]
    if any(isinstance(x, Intervals) for x in known):
        one_by_one = np.minimum if choose is min else np.maximum
        return Intervals(reduce(one_by_one, [x.low for x in known]), reduce(one_by_one, [x.high for x in known]))
    return Interval(choose([x.low for x in known]), choose([x.high for x in known]))


def _sum(low: float, high: float) -> Interval:
    """Round the ends of a sum outward: a sum of doubles that rounds to 0 is 0."""
    if not low <= high:
        return _ANYTHING
    return Interval(nextafter(low, -inf) if low else low, nextafter(high, inf) if high else high)


def _ratio(low: float, high: float, zero: bool) -> Interval:
    """Round the ends of what is not negative outward, but not below 0; `zero`: it is exactly 0."""
    if not low <= high:
        return _ANYTHING
    return Interval(nextafter(low, 0.0), high if zero else nextafter(high, inf))


def _cornered(operation: Callable[[Any, Any], Any], left: Interval, right: Interval) -> Intervals:
    corners = [operation(x, y) for x in (left.low, left.high) for y in (right.low, right.high)]
    return _rounded(reduce(np.minimum, corners), reduce(np.maximum, corners))


def _quotients(left: Interval, right: Interval) -> Intervals:
    found, unknown = _cornered(np.divide, left, right), (right.low <= 0) & (right.high >= 0)
    return Intervals(np.where(unknown, -inf, found.low), np.where(unknown, inf, found.high))


def _rounded(low: Any, high: Any) -> Intervals:
    """Round ends outward by a unit in the last place or two, which is faster than finding their neighbours."""
    bottom, top = np.minimum(low, _LARGEST), np.maximum(high, -_LARGEST)
    bottom, top = bottom - abs(bottom) * 2.0**-52 - 2.0**-1074, top + abs(top) * 2.0**-52 + 2.0**-1074
    known = low <= high
    return Intervals(np.where(known, bottom, -inf), np.where(known, top, inf))


def _library(function: Callable[[float], float], x: float) -> Interval:
    """Enclose the value of a function of the C library."""
    try:
        value = function(x)
    except OverflowError:
        return Interval(_LARGEST, inf)
    error = abs(value) * _LIBRARY + _SUBNORMAL
    return Interval(value - error, value + error) if value < inf else Interval(_LARGEST, inf)


def _double(value: float) -> float:
    """Return a float, or an integer as the nearest one, which is infinite beyond the largest."""
    try:
        return float(value)
    except OverflowError:
        return inf if value > 0 else -inf


Number = Interval | float


def exactly(norms: Mapping[str, float]) -> dict[str, Number]:
    """Return each double as the interval of it alone."""
    return {name: Interval.exactly(norm) for name, norm in norms.items()}


def upper(x: Number) -> float:
    """Return a double that is not below what `x` stands for."""
    return Interval.around(x).high


def sqrt(x: Number) -> Interval:
    """Return √x."""
    return Interval.around(x).sqrt()


def exp(x: Number) -> Interval:
    """Return e^x."""
    return Interval.around(x).exp()


def expm1(x: Number) -> Interval:
    """Return e^x - 1."""
    return Interval.around(x).expm1()


def log(x: int) -> Interval:
    """Return the natural logarithm of a positive integer: 0, or above ½, where no double is subnormal."""
    value = math.log(x)
    return Interval(value * (1 - _LIBRARY), value * (1 + _LIBRARY))


def minimum(*xs: Number) -> Interval:
    """Return the smallest of several numbers."""
    return _extreme(min, xs)


def maximum(*xs: Number) -> Interval:
    """Return the largest of several numbers."""
    return _extreme(max, xs)


def max_over(start: int, stop: int, term: Callable[[Interval], Number]) -> Interval:
    """Return the largest term(m) over the integers start <= m < stop, which are exact, computed at once."""
    integers = np.arange(start, stop, dtype=np.float64)
    with np.errstate(all="ignore"):
        found = Interval.around(term(Intervals(integers, integers)))
    return Interval(float(np.max(found.low)), float(np.max(found.high)))


def supremum(value: Callable[[Interval], Interval], slope: Callable[[Interval], Interval]) -> Interval:
    """Return the largest value(s) over the reals 0 <= s <= 1, `slope` being the derivative; up to CLOSE above it.

    From a to b, f <= f(a) + (b - a)·max(f', 0) and f <= f(b) + (b - a)·max(-f', 0), with f' over all of the part.
    Parts that may hold more than was found are halved.
    """
    whole, at = value(Interval(0.0, 1.0)), cache(lambda s: value(Interval.exactly(s)))

    def bound(low: float, high: float) -> float:
        between, width = slope(Interval(low, high)), Interval.exactly(high - low)
        rising = at(low) + maximum(between, 0) * width
        falling = at(high) + maximum(0 - between, 0) * width
        return min(whole.high, rising.high, falling.high)

    points, parts = [0.0, 1.0], {(0.0, 1.0): bound(0.0, 1.0)}
    while True:
        largest = max(at(s).high for s in points)
        parts = {part: most for part, most in parts.items() if most > largest * (1 + CLOSE)}
        if not parts or len(points) > _MOST_POINTS:
            break
        halves = [half for low, high in parts for m in [(low + high) / 2] for half in ((low, m), (m, high))]
        points += [low for low, _ in halves]
        parts = {half: bound(*half) for half in halves}
    claimed = min(whole.high, max([nextafter(largest * (1 + CLOSE), inf), *parts.values()]))
    return Interval(max(at(s).low for s in points), claimed)
