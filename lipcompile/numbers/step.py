"""Affine steps: what one copy of a repeated part of a graph does to bounds, and how steps compose.

A step maps the norm X at its input to a·X + c at its output and the cotangent G at its output to l·G at its input;
each of its parameters has a gradient bound k(X)·G with k or k² a polynomial. Steps form a monoid: Theorem 1 of
Béthune et al. (ICLR 2024) is about the powers of one. Coefficients are non-negative numbers of any domain; a
polynomial leaves out those that are exactly zero.
"""

from __future__ import annotations

from collections.abc import Callable
from math import comb
from typing import TypeVar

from lipcompile.numbers import Coefficients, N, Number, Numbers, Step

M = TypeVar("M", bound=Number)


def then(num: Numbers[N], first: Step[N], second: Step[N]) -> Step[N]:
    """Return the step that does `first` and then `second`, copies of the same part."""
    squared = second.lipschitz * second.lipschitz
    return Step(
        norm=composed(num, second.norm, first.norm),
        lipschitz=first.lipschitz * second.lipschitz,
        squares={
            name: added(scaled(squared, k), composed(num, second.squares[name], first.norm))
            for name, k in first.squares.items()
        },
        shared={
            name: added(scaled(second.lipschitz, k), composed(num, second.shared[name], first.norm))
            for name, k in first.shared.items()
        },
        exact=first.exact and second.exact,
    )


def changed(step: Step[N], change: Callable[[N], M]) -> Step[M]:
    """Return the step with every coefficient brought into another domain."""

    def each(of: Coefficients[N]) -> dict[int, M]:
        return {degree: change(coefficient) for degree, coefficient in of.items()}

    return Step(
        norm=each(step.norm),
        lipschitz=change(step.lipschitz),
        squares={name: each(k) for name, k in step.squares.items()},
        shared={name: each(k) for name, k in step.shared.items()},
        exact=step.exact,
    )


def scaled(factor: N, of: Coefficients[N]) -> dict[int, N]:
    """Return factor·p."""
    return {degree: factor * coefficient for degree, coefficient in of.items()}


def added(one: Coefficients[N], other: Coefficients[N]) -> dict[int, N]:
    """Return p + q."""
    result = dict(one)
    for degree, coefficient in other.items():
        result[degree] = result[degree] + coefficient if degree in result else coefficient
    return result


def multiplied(one: Coefficients[N], other: Coefficients[N]) -> dict[int, N]:
    """Return p·q."""
    result: dict[int, N] = {}
    for degree, coefficient in one.items():
        result = added(result, {degree + d: coefficient * c for d, c in other.items()})
    return result


def composed(num: Numbers[N], outer: Coefficients[N], inner: Coefficients[N]) -> dict[int, N]:
    """Return p(aX + c)."""
    result: dict[int, N] = {}
    for degree, coefficient in outer.items():
        result = added(result, scaled(coefficient, _power(num, inner, degree)))
    return result


def value(num: Numbers[N], of: Coefficients[N], at: N) -> N:
    """Return p(X)."""
    terms = [coefficient * power(num, at, degree) for degree, coefficient in sorted(of.items())]
    return sum(terms[1:], start=terms[0]) if terms else num.of(0)


def power(num: Numbers[N], base: N, exponent: int) -> N:
    """Return X^j of a whole j >= 0."""
    result = num.of(1)
    for _ in range(exponent):
        result = result * base
    return result


def _power(num: Numbers[N], affine: Coefficients[N], exponent: int) -> dict[int, N]:
    """Return (aX + c)^j, term by term."""
    if 0 not in affine or 1 not in affine:
        degree = 1 if 1 in affine else 0
        if degree not in affine and exponent:
            return {}
        base = affine.get(degree, num.of(1))
        return {degree * exponent: power(num, base, exponent)}
    a, c = affine[1], affine[0]
    return {i: comb(exponent, i) * power(num, a, i) * power(num, c, exponent - i) for i in range(exponent + 1)}
