"""The rules in real arithmetic, as good as: mpmath's floats of so many bits that no rounding is seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import mpmath

from lipcompile.numbers import Arithmetic, Count, Scalar, Step, Symbol

REAL = mpmath.mp.clone()
REAL.prec = 1500  # of differences near 1 that are 1e-300, 500 bits are left


def real(value: Any) -> Any:
    """Return a fraction, an integer or a double as a float of many bits."""
    return value if isinstance(value, REAL.mpf) else REAL.mpf(Fraction(value).numerator) / Fraction(value).denominator


@dataclass
class Precise:
    """The domain of such floats, which take integers in all operations."""

    memo: dict[object, object] = field(default_factory=dict)

    def of(self, value: Scalar | int) -> Any:
        assert not isinstance(value, Symbol | Arithmetic)
        return real(value)

    def symbol(self, name: str, value: Scalar | None, meaning: str) -> Any:  # noqa: ARG002
        assert value is not None, f"{name} is open"
        return self.of(value)

    def unbounded(self) -> Any:
        return REAL.inf

    def let(self, name: str, value: Any, meaning: str) -> Any:  # noqa: ARG002
        return value

    def sum(self, *xs: Any) -> Any:
        return REAL.fsum(xs)

    def sqrt(self, x: Any) -> Any:
        return REAL.sqrt(real(x))

    def exp(self, x: Any) -> Any:
        return REAL.exp(x)

    def expm1(self, x: Any) -> Any:
        return REAL.exp(x) - 1

    def log(self, x: int) -> Any:
        return REAL.log(x)

    def minimum(self, *xs: Any) -> Any:
        return min(xs)

    def maximum(self, *xs: Any) -> Any:
        return max(xs)

    def max_over(self, start: int, stop: int, term: Callable[[Any], Any]) -> Any:
        return max(term(real(m)) for m in range(start, stop))

    def power(self, step: Step[Any], count: Count, name: str) -> Step[Any]:  # noqa: ARG002
        raise AssertionError("programs are written of graphs that are unrolled")
