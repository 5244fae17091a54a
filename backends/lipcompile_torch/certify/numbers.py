"""The functions that emitted bounds call: they take intervals, and numbers as `Interval.around` reads them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from .intervals import Interval, extreme, largest, logarithm

__all__ = [
    "Interval",
    "Number",
    "exactly",
    "exp",
    "expm1",
    "log",
    "max_over",
    "maximum",
    "minimum",
    "sqrt",
    "upper",
]

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
    """Return the natural logarithm of a positive integer."""
    return logarithm(x)


def minimum(*xs: Number) -> Interval:
    """Return the smallest of several numbers."""
    return extreme(min, xs)


def maximum(*xs: Number) -> Interval:
    """Return the largest of several numbers."""
    return extreme(max, xs)


def max_over(start: int, stop: int, term: Callable[[Interval], Number]) -> Interval:
    """Return the largest `term(m)` over the integers start <= m < stop."""
    return largest(term, start, stop - 1)
