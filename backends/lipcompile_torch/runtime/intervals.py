"""Intervals of doubles, rounded outward: emitted rules evaluated on them give certified numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

# What emitted programs compute of constants alone, in plain doubles, takes less than a thousand roundings.
_CONSTANT = 2.0**-42
_EXP = 2.0**-50  # of the C library's exponential, which is off by less than a unit in the last place


@dataclass(frozen=True, slots=True)
class Interval:
    """Numbers between two doubles, or infinities.

    Formal guarantees: a sum, difference, product, quotient, root or exponential contains those of all numbers in
    the operands. A float among the operands stands for all numbers within a relative 2⁻⁴² of it, an integer for
    itself.
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
        return outward(value - abs(value) * _CONSTANT, value + abs(value) * _CONSTANT)

    @classmethod
    def exactly(cls, value: float) -> Self:
        """Return the interval of this double alone."""
        return cls(value, value)

    def __add__(self, other: Interval | float) -> Interval:
        right = Interval.around(other)
        return outward(self.low + right.low, self.high + right.high)

    __radd__ = __add__

    def __neg__(self) -> Interval:
        return Interval(-self.high, -self.low)

    def __sub__(self, other: Interval | float) -> Interval:
        return self + -Interval.around(other)

    def __rsub__(self, other: float) -> Interval:
        return -self + other

    def __mul__(self, other: Interval | float) -> Interval:
        right = Interval.around(other)
        corners = [x * y for x in (self.low, self.high) for y in (right.low, right.high)]
        return outward(min(corners), max(corners)) if not any(map(math.isnan, corners)) else _ANYTHING

    __rmul__ = __mul__

    def __truediv__(self, other: Interval | float) -> Interval:
        right = Interval.around(other)
        if right.low <= 0 <= right.high:
            return _ANYTHING
        return self * outward(1 / right.high, 1 / right.low)

    def __rtruediv__(self, other: float) -> Interval:
        return Interval.around(other) / self

    def sqrt(self) -> Interval:
        """Return √x; of what lies below 0 by rounding alone, 0."""
        return outward(*(math.sqrt(max(0.0, end)) for end in (self.low, self.high)))

    def exp(self) -> Interval:
        """Return e^x."""
        return outward(_exp(self.low) * (1 - _EXP), _exp(self.high) * (1 + _EXP))


_ANYTHING = Interval(-math.inf, math.inf)


def outward(low: float, high: float) -> Interval:
    """Return an interval whose ends are rounded away from it; not a number stands for anything."""
    if math.isnan(low) or math.isnan(high):
        return _ANYTHING
    return Interval(math.nextafter(low, -math.inf), math.nextafter(high, math.inf))


def extreme(choose: Callable[[list[float]], float], xs: tuple[Interval | float, ...]) -> Interval:
    """Return the least or the largest of several numbers, as `choose` is min or max."""
    known = [Interval.around(x) for x in xs]
    return Interval(choose([x.low for x in known]), choose([x.high for x in known]))


def _exp(x: float) -> float:
    try:
        return math.exp(x)
    except OverflowError:
        return math.inf
