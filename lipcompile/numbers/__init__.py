"""The abstract number of the rules, and the domains that evaluate it.

A rule is written once, over `Numbers[N]`, and evaluated as a formula (`symbolic`), as a rigorous upper
bound (`certified`) and as a Python program for the emitted module (`traced`).

Imports: lipcompile.limits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Generic, Protocol, Self, TypeVar

from lipcompile.numbers.scalar import Arithmetic as Arithmetic
from lipcompile.numbers.scalar import Scalar as Scalar
from lipcompile.numbers.scalar import Symbol as Symbol
from lipcompile.numbers.scalar import combine as combine
from lipcompile.numbers.scalar import size as size
from lipcompile.numbers.scalar import symbols_of as symbols_of
from lipcompile.numbers.scalar import text as text


class Number(Protocol):
    """What a rule may do with a number: the four operations, with integers mixed in freely."""

    def __add__(self, other: Self | int) -> Self: ...
    def __radd__(self, other: int) -> Self: ...
    def __sub__(self, other: Self | int) -> Self: ...
    def __rsub__(self, other: int) -> Self: ...
    def __mul__(self, other: Self | int) -> Self: ...
    def __rmul__(self, other: int) -> Self: ...
    def __truediv__(self, other: Self | int) -> Self: ...
    def __rtruediv__(self, other: int) -> Self: ...


N = TypeVar("N", bound=Number)


@dataclass(frozen=True, slots=True)
class Count:
    """How many copies: as formulas write it, and as a number where that is known."""

    scalar: Scalar
    value: int | None


# Coefficients by degree.
Coefficients = Mapping[int, N]


@dataclass(frozen=True, slots=True)
class Step(Generic[N]):
    """An affine step.

    squares: k² of each parameter that every copy has for itself. shared: k of each that all copies have in common.
    exact: whether the step gives what the rules give; else it is not below that.
    """

    norm: Coefficients[N]
    lipschitz: N
    squares: Mapping[str, Coefficients[N]]
    shared: Mapping[str, Coefficients[N]]
    exact: bool

    @property
    def linear(self) -> bool:
        """Whether the norm is mapped to a multiple of itself."""
        return set(self.norm) <= {1}


class Numbers(Protocol[N]):
    """A domain of numbers. Every number that a rule meets is a non-negative real, known or not.

    `memo` keeps, by any key, what a rule finds in this domain and another rule of the same op needs as well.
    """

    memo: dict[object, object]

    def of(self, value: Scalar | int) -> N:
        """Bring an exact scalar into the domain."""

    def symbol(self, name: str, value: Scalar | None, meaning: str) -> N:
        """Introduce a quantity that formulas keep by name, with its value where one is known."""

    def unbounded(self) -> N:
        """Return the constant of what is not Lipschitz: +∞."""

    def let(self, name: str, value: N, meaning: str) -> N:
        """Name a derived quantity, so that formulas which use it stay short."""

    def sum(self, *xs: N) -> N:
        """Return the sum of one or more numbers."""

    def sqrt(self, x: N | Fraction | int) -> N:
        """Return √x."""

    def exp(self, x: N) -> N:
        """Return e^x."""

    def expm1(self, x: N) -> N:
        """Return e^x - 1: for rules in which the difference may be small, as 1 - e^-x is near 0."""

    def log(self, x: int) -> N:
        """Return the natural logarithm of a positive integer."""

    def minimum(self, *xs: N) -> N:
        """Return the smallest of one or more numbers."""

    def maximum(self, *xs: N) -> N:
        """Return the largest of one or more numbers."""

    def max_over(self, start: int, stop: int, term: Callable[[N], N]) -> N:
        """Return the largest `term(m)` over the integers start <= m < stop (at least one)."""

    def supremum(self, value: Callable[[N], N], slope: Callable[[N], N], of: tuple[object, ...] = ()) -> N:
        """Return the largest `value(s)` over the reals 0 <= s <= 1; `slope` is the derivative of `value`.

        of: a name of `value`, and all that it depends on besides s: a search costs as much as many layers, and
        what was found once is known by them. Nothing is kept without them.
        """

    def power(self, step: Step[N], count: Count, name: str) -> Step[N]:
        """Return `step` done `count` times; `name` is that of the repetition, for formulas."""
