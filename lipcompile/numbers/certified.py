"""Certified numbers: interval arithmetic with outward rounding (mpmath's `iv`, 113 bits).

Formal guarantees: if every operand's interval contains the real number it stands for, so does every
result; `upper` is a double not below the interval's upper end. An unknown quantity is the interval [0, ∞),
so a bound that does not depend on it is still found and one that does is infinite.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache, lru_cache, reduce
from operator import add
from typing import Any

from mpmath import libmp
from mpmath.ctx_iv import MPIntervalContext

from lipcompile.numbers import Coefficients, Count, Step
from lipcompile.numbers.scalar import OPERATIONS, Arithmetic, Scalar, Symbol
from lipcompile.numbers.step import then

_IV: Any = MPIntervalContext()
_IV.prec = 113
_ZERO = _IV.zero._mpi_


@dataclass(frozen=True, slots=True)
class Interval:
    """An interval that contains a real number."""

    ends: Any

    def __add__(self, other: Interval | int) -> Interval:
        return _of_ends(libmp.mpi_add(_ends(self), _ends(other), _IV.prec))

    __radd__ = __add__

    def __sub__(self, other: Interval | int) -> Interval:
        return _of_ends(libmp.mpi_sub(_ends(self), _ends(other), _IV.prec))

    def __rsub__(self, other: int) -> Interval:
        return _of_ends(libmp.mpi_sub(_ends(other), _ends(self), _IV.prec))

    def __mul__(self, other: Interval | int) -> Interval:
        left, right = _ends(self), _ends(other)
        # Unknown means finite but unknown, so zero times unknown is zero (the library says [-∞, ∞]).
        return _of_ends(_ZERO if _ZERO in (left, right) else libmp.mpi_mul(left, right, _IV.prec))

    __rmul__ = __mul__

    def __truediv__(self, other: Interval | int) -> Interval:
        return _of_ends(libmp.mpi_div(_ends(self), _ends(other), _IV.prec))

    def __rtruediv__(self, other: int) -> Interval:
        return _of_ends(libmp.mpi_div(_ends(other), _ends(self), _IV.prec))

    @property
    def upper(self) -> float:
        """The smallest double not below the interval; infinite where the number is unknown."""
        return _round_up(self.ends._mpi_[1])


UNKNOWN = Interval(_IV.mpf([0, "inf"]))
# How far above the largest value found a supremum is claimed, relatively; half of it is searched for, so that a
# search which comes closer never exceeds the claim.
CLOSE = 2.0**-40
_MOST_POINTS = 1000


@dataclass(slots=True)
class Certified:
    """The domain of intervals. `named` keeps the enclosure of every name that a formula may contain."""

    named: dict[str, Interval] = field(default_factory=dict)
    memo: dict[object, object] = field(default_factory=dict)

    def of(self, value: Scalar | int) -> Interval:
        """Enclose an exact scalar; a symbol is unknown."""
        if isinstance(value, Symbol):
            return UNKNOWN
        if isinstance(value, Arithmetic):
            found: Interval = OPERATIONS[value.operator](self.of(value.left), self.of(value.right))
            return found
        return _enclosed(value)

    def symbol(self, name: str, value: Scalar | None, meaning: str) -> Interval:
        self.named[name] = UNKNOWN if value is None else self.of(value)
        return self.named[name]

    def unbounded(self) -> Interval:
        return UNKNOWN

    def let(self, name: str, value: Interval, meaning: str) -> Interval:
        """Return `value`, and keep it for the reports: certified numbers need no names."""
        self.named[name] = value
        return value

    def sum(self, *xs: Interval) -> Interval:
        return reduce(add, xs)

    def sqrt(self, x: Interval | Fraction | int) -> Interval:
        """Enclose √x; the part of an enclosure below 0 holds no number that a rule means, and is cut off."""
        lifted = x if isinstance(x, Interval) else _enclosed(x)
        low, high = (libmp.fzero if libmp.mpf_sign(end) < 0 else end for end in _ends(lifted))
        return _of_ends(libmp.mpi_sqrt((low, high), _IV.prec))

    def exp(self, x: Interval) -> Interval:
        """Enclose e^x; of numbers that are too large for the library, what is known without it."""
        try:
            return Interval(_IV.exp(x.ends))
        except OverflowError:
            return Interval(_IV.mpf([0, 1])) if x.ends.b <= 0 else UNKNOWN

    def expm1(self, x: Interval) -> Interval:
        """Enclose e^x - 1, near 0 by x <= e^x - 1 <= x/(1 - x) for x < 1: of e^x >= 1 + x at x and at -x."""
        rough = (self.exp(x) - 1).ends
        if not x.ends.b < 1:
            return Interval(rough)
        return Interval(_IV.mpf([max(rough.a, x.ends.a), min(rough.b, (x.ends.b / (1 - x.ends.b)).b)]))

    def log(self, x: int) -> Interval:
        return Interval(_IV.log(_IV.mpf(x)))

    def minimum(self, *xs: Interval) -> Interval:
        """Enclose the minimum: the minima of both ends."""
        return Interval(_IV.mpf([min(x.ends.a for x in xs), min(x.ends.b for x in xs)]))

    def maximum(self, *xs: Interval) -> Interval:
        """Enclose the maximum: the maxima of both ends."""
        return Interval(_IV.mpf([max(x.ends.a for x in xs), max(x.ends.b for x in xs)]))

    def max_over(self, start: int, stop: int, term: Callable[[Interval], Interval]) -> Interval:
        return self.maximum(*(term(self.of(m)) for m in range(start, stop)))

    def supremum(
        self,
        value: Callable[[Interval], Interval],
        slope: Callable[[Interval], Interval],
        of: tuple[object, ...] = (),
    ) -> Interval:
        """Enclose the supremum; where it is known to more digits than those of CLOSE, these are given away."""
        if not of:
            return _supremum(value, slope)
        found = _found(*(one.ends._mpi_ if isinstance(one, Interval) else one for one in of))
        if not found:
            found.append(_supremum(value, slope))
        return found[0]

    def power(self, step: Step[Interval], count: Count, name: str) -> Step[Interval]:
        """Enclose the power by repeated squaring, all of whose terms are sums and products of the step's."""
        if count.value is None:
            return _any_power(step)
        result: Step[Interval] | None = None
        for bit in f"{count.value:b}":
            result = None if result is None else then(self, result, result)
            if bit == "1":
                result = step if result is None else then(self, result, step)
        assert result is not None, "a step is done at least once"
        return result


@lru_cache(1024)
def _found(*of: object) -> list[Interval]:
    """Return where the supremum of a function is kept that depends on these; empty before it is searched for."""
    return []


def _supremum(value: Callable[[Interval], Interval], slope: Callable[[Interval], Interval]) -> Interval:
    """Enclose the largest value over 0 <= s <= 1, by halving the parts that may hold more than was found.

    From a to b, f <= f(a) + (b - a)·max(f', 0) and f <= f(b) + (b - a)·max(-f', 0), with f' over all of the part.
    """
    whole = value(Interval(_IV.mpf([0, 1])))
    at = cache(lambda s: value(Interval(_IV.mpf(s))))

    def bound(low: float, high: float) -> float:
        between, width = slope(Interval(_IV.mpf([low, high]))).ends, high - low
        rising = Interval(at(low).ends + max(between.b, 0) * width)
        falling = Interval(at(high).ends + max(-between.a, 0) * width)
        return min(whole.upper, rising.upper, falling.upper)

    points, parts = [0.0, 1.0], {(0.0, 1.0): bound(0.0, 1.0)}
    while True:
        largest = max(at(s).upper for s in points)
        parts = {part: most for part, most in parts.items() if most > largest * (1 + CLOSE / 2)}
        if not parts or len(points) > _MOST_POINTS:
            break
        halves = [half for low, high in parts for m in [(low + high) / 2] for half in ((low, m), (m, high))]
        points += [low for low, _ in halves]
        parts = {half: bound(*half) for half in halves}
    claimed = min(whole.ends.b, max([largest * (1 + CLOSE), *parts.values()]))
    return Interval(_IV.mpf([max(at(s).ends.a for s in points), claimed]))


def _any_power(step: Step[Interval]) -> Step[Interval]:
    """Enclose all powers: a rate of exactly 1 stays so."""
    norm = {degree: k if degree == 1 and _is_one(k) else UNKNOWN for degree, k in step.norm.items()}
    lipschitz = step.lipschitz if _is_one(step.lipschitz) else UNKNOWN
    squares = {name: _any_sum(k, step) for name, k in step.squares.items()}
    shared = {name: _any_sum(k, step) for name, k in step.shared.items()}
    return Step(norm, lipschitz, squares, shared, step.exact)


def _any_sum(k: Coefficients[Interval], step: Step[Interval]) -> dict[int, Interval]:
    """Enclose what any number of copies add up: with an offset, later ones do not read 0 where the first does."""
    return dict.fromkeys(range(max(k) + 1) if k and 0 in step.norm else k, UNKNOWN)


def _is_one(number: Interval) -> bool:
    return bool(number.ends.a == 1 and number.ends.b == 1)


@lru_cache(4096)
def _enclosed(value: Fraction | int) -> Interval:
    """Enclose a number: a derivation has few of them, and asks for each one at every layer."""
    exact = Fraction(value)
    return Interval(_IV.mpf(exact.numerator) / exact.denominator)


def _of_ends(ends: tuple[Any, Any]) -> Interval:
    return Interval(_IV.make_mpf(ends))


def _ends(x: Interval | int) -> tuple[Any, Any]:
    """Return both ends as the library's tuples: its operations on these are those of its classes, but faster."""
    return _ends_of_whole(x) if isinstance(x, int) else x.ends._mpi_


@lru_cache(1024)
def _ends_of_whole(number: int) -> tuple[Any, Any]:
    ends: tuple[Any, Any] = _IV.mpf(number)._mpi_
    return ends


def _round_up(number: tuple[int, int, int, int]) -> float:
    sign, mantissa, exponent, bits = number
    if mantissa == 0:
        return math.inf if exponent else 0.0  # mpmath writes the infinities with a zero mantissa
    signed = -int(mantissa) if sign else int(mantissa)
    # What no double holds: binary digits after the 53rd, and those of less than the least double.
    excess = max(bits - 53, -1074 - exponent, 0)
    try:
        return math.ldexp(-(-signed >> excess), exponent + excess)
    except OverflowError:
        return math.inf
