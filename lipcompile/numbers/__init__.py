"""The abstract number of the rules, and the domains that evaluate it.

A rule is written once, over `Numbers[N]`, and evaluated as a formula (`symbolic`), as a rigorous upper
bound (`certified`) and as a Python program for the emitted module (`traced`).
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Protocol

from lipcompile.numbers.number import N, Number
from lipcompile.numbers.scalar import Arithmetic, Scalar, Symbol, combine, size, symbols_of, text
from lipcompile.numbers.step import Count, Step

__all__ = [
    "Arithmetic",
    "Count",
    "N",
    "Number",
    "Numbers",
    "Scalar",
    "Step",
    "Symbol",
    "combine",
    "size",
    "symbols_of",
    "text",
]


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

    def power(self, step: Step[N], count: Count, name: str) -> Step[N]:
        """Return `step` done `count` times; `name` is that of the repetition, for formulas."""
