"""Real numbers that are not negative, as intervals of 200-bit floats, rounded outward by mpmath.

∞ stands where nothing is known: bounds grow with what they are made of, and 0·∞ is 0. Exact factors are whole
numbers and fractions: a result that is a 200-bit float stays exact.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from functools import lru_cache
from math import inf, isqrt, nextafter
from typing import Any

from mpmath import libmp

Exact = int | Fraction
ZERO, INFINITE = libmp.fzero, libmp.finf
FARTHEST = 2**16
_DOWN, _UP, _BITS = libmp.round_floor, libmp.round_ceiling, 200


class Real:
    """A number between `lo` and `hi`."""

    __slots__ = ("hi", "lo")

    def __init__(self, lo: Any, hi: Any) -> None:
        """Take the ends, outward where they are so far from 1 that computing with their exponents takes long."""
        if not -FARTHEST <= lo[2] + lo[3] <= FARTHEST:
            lo = ZERO if lo[2] < 0 else libmp.from_man_exp(1, FARTHEST - 1)
        if not -FARTHEST <= hi[2] + hi[3] <= FARTHEST:
            hi = libmp.from_man_exp(1, -FARTHEST) if hi[2] < 0 else INFINITE
        self.lo, self.hi = lo, hi

    def __add__(self, other: Real | Exact) -> Real:
        y = real(other)
        return Real(libmp.mpf_add(self.lo, y.lo, _BITS, _DOWN), libmp.mpf_add(self.hi, y.hi, _BITS, _UP))

    def __mul__(self, other: Real | Exact) -> Real:
        if isinstance(other, Fraction) and other.denominator != 1:
            return self * other.numerator / other.denominator
        y = real(other)
        lo = ZERO if ZERO in (self.lo, y.lo) else libmp.mpf_mul(self.lo, y.lo, _BITS, _DOWN)
        return Real(lo, ZERO if ZERO in (self.hi, y.hi) else libmp.mpf_mul(self.hi, y.hi, _BITS, _UP))

    def __truediv__(self, other: Real | Exact) -> Real:
        if isinstance(other, Fraction) and other.denominator != 1:
            return self * other.denominator / other.numerator
        y = real(other)
        lo = ZERO if ZERO in (self.lo, y.hi) or y.hi == INFINITE else libmp.mpf_div(self.lo, y.hi, _BITS, _DOWN)
        if y.lo == ZERO or self.hi == INFINITE:
            return Real(lo, INFINITE)
        return Real(lo, libmp.mpf_div(self.hi, y.lo, _BITS, _UP))

    def __sub__(self, other: Real | Exact) -> Real:
        """The difference, which is known not to be negative."""
        y = real(other)
        lo = ZERO if y.hi == INFINITE else libmp.mpf_sub(self.lo, y.hi, _BITS, _DOWN)
        hi = INFINITE if self.hi == INFINITE else libmp.mpf_sub(self.hi, y.lo, _BITS, _UP)
        return Real(*(ZERO if libmp.mpf_lt(end, ZERO) else end for end in (lo, hi)))

    __radd__, __rmul__ = __add__, __mul__

    def __rtruediv__(self, other: Exact) -> Real:
        return real(other) / self

    def __rsub__(self, other: Exact) -> Real:
        return real(other) - self

    def exceeds(self, claim: float) -> bool:
        """Whether the number may be above the claim."""
        return not libmp.mpf_le(self.hi, libmp.from_float(claim))

    def falls_below(self, claim: float) -> bool:
        """Whether the number is surely below the claim."""
        return bool(libmp.mpf_lt(self.hi, libmp.from_float(claim)))

    def upper(self) -> float:
        """The upper end, rounded up to a double."""
        found = float(libmp.to_float(self.hi, rnd=_UP)) if self.hi != INFINITE else inf
        return (
            nextafter(found, inf) if self.exceeds(found) else found
        )  # among the smallest doubles it is rounded down


@lru_cache(4096)
def _rational(value: Exact) -> Real:
    numerator, denominator = value.numerator, value.denominator
    ends = (libmp.from_rational(numerator, denominator, _BITS, way) for way in (_DOWN, _UP))
    return Real(*ends)


def real(value: Real | Exact | float) -> Real:
    """Return a number as an interval; an exact one must not be negative."""
    if isinstance(value, Real):
        return value
    return Real(*[libmp.from_float(value)] * 2) if isinstance(value, float) else _rational(value)


UNBOUNDED = Real(INFINITE, INFINITE)


def least(*values: Real | Exact) -> Real:
    """Return the minimum."""
    return _extreme([real(value) for value in values], libmp.mpf_lt)


def most(*values: Real | Exact) -> Real:
    """Return the maximum."""
    return _extreme([real(value) for value in values], libmp.mpf_gt)


def _extreme(values: list[Real], better: Any) -> Real:
    lo, hi = values[0].lo, values[0].hi
    for value in values[1:]:
        lo, hi = value.lo if better(value.lo, lo) else lo, value.hi if better(value.hi, hi) else hi
    return Real(lo, hi)


def total(values: Iterable[Real | Exact]) -> Real:
    """Return the sum."""
    return sum(map(real, values), start=real(0))


def root(value: Real | Exact) -> Real:
    """Return the square root; that of a fraction is exact where it is a fraction."""
    if not isinstance(value, Real):
        ends = isqrt(value.numerator), isqrt(value.denominator)
        if (ends[0] ** 2, ends[1] ** 2) == (value.numerator, value.denominator):
            return real(Fraction(*ends))
    x = real(value)
    return Real(libmp.mpf_sqrt(x.lo, _BITS, _DOWN), libmp.mpf_sqrt(x.hi, _BITS, _UP))


def decay(x: Real) -> Real:
    """Return e^-x."""
    ends = (libmp.mpf_exp(libmp.mpf_neg(end), _BITS, way) for end, way in ((x.hi, _DOWN), (x.lo, _UP)))
    return Real(*ends)


def rise(x: Real) -> Real:
    """Return 1 - e^-x, which is at most x."""
    return least(x, 1 - decay(x))


def log(value: Exact) -> Real:
    """Return the natural logarithm of a number from 1 on."""
    x = real(value)
    return Real(libmp.mpf_log(x.lo, _BITS, _DOWN), libmp.mpf_log(x.hi, _BITS, _UP)) if value != 1 else real(0)


def power(base: Exact, exponent: Exact) -> Real:
    """Return base^-exponent, for a base above 0."""
    return decay(log(base) * exponent) if base >= 1 else 1 / decay(log(1 / Fraction(base)) * exponent)
