"""Exact scalars of a model: decimal and dyadic fractions, and arithmetic on declared but unvalued parameters.

A `Scalar` is what a model file says (a norm bound, a slope, a temperature) before any domain evaluates it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from operator import add, mul, sub, truediv
from typing import Any, Literal

Operator = Literal["+", "-", "*", "/"]

# Of numbers of any domain.
OPERATIONS: Mapping[Operator, Callable[[Any, Any], Any]] = {"+": add, "-": sub, "*": mul, "/": truediv}


@dataclass(frozen=True, slots=True)
class Symbol:
    """A declared parameter without a value; it stands for an unknown non-negative real number."""

    name: str
    meaning: str = ""


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """An operation on scalars of which at least one is symbolic."""

    operator: Operator
    left: Scalar
    right: Scalar
    size: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", 1 + size(self.left) + size(self.right))


Scalar = Fraction | Symbol | Arithmetic


def combine(operator: Operator, left: Scalar, right: Scalar) -> Scalar:
    """Apply `operator`, folding exact numbers; raises ZeroDivisionError on a division by an exact zero."""
    if isinstance(left, Fraction) and isinstance(right, Fraction):
        exact: Fraction = OPERATIONS[operator](left, right)
        return exact
    return Arithmetic(operator, left, right)


def size(scalar: Scalar) -> int:
    """Return how many digits, symbols and operations a scalar is written with, about."""
    if isinstance(scalar, Arithmetic):
        return scalar.size
    return 1 if isinstance(scalar, Symbol) else _digits(scalar.numerator) + _digits(scalar.denominator)


def _digits(number: int) -> int:
    return number.bit_length() * 3 // 10


def symbols_of(scalar: Scalar) -> Iterator[Symbol]:
    """Yield the symbols in `scalar`, left to right, with repetitions."""
    if isinstance(scalar, Symbol):
        yield scalar
    elif isinstance(scalar, Arithmetic):
        yield from symbols_of(scalar.left)
        yield from symbols_of(scalar.right)


def text(scalar: Scalar) -> str:
    """Return `scalar` as a person writes it: an integer, a decimal, a fraction or an expression."""
    if isinstance(scalar, Symbol):
        return scalar.name
    if isinstance(scalar, Arithmetic):
        return f"({text(scalar.left)} {scalar.operator} {text(scalar.right)})"
    if scalar.denominator == 1:
        return str(scalar.numerator)
    short = repr(float(scalar))
    return short if Fraction(short) == scalar else f"{scalar.numerator}/{scalar.denominator}"
