"""Sums, minima and maxima of formulas, made shorter as they are written.

Sums take time linear in their terms: what is common stands in front, and long ones are by powers. Minima and
maxima leave out the operands that another one makes redundant. sympy's own evaluation factors every pair of
operands, and its assumptions try every rule on every difference: together most of the time of a deep network. Here
two formulas are compared term by term.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import sympy

# Longer sums are multiplied out, if that makes them shorter.
MOST_TERMS = 8
# A polynomial: the number before each product of powers.
Polynomial = Mapping[Any, Any]


def total(terms: Sequence[Any]) -> Any:
    """Write the sum of one or more expressions, with powers of symbols that all of them share in front."""
    shared = common(terms)
    rest = terms if shared == 1 else [_divided(term, shared) for term in terms]
    return sympy.Mul(shared, _added(rest))


def _divided(term: Any, shared: Any) -> Any:
    """Return term/shared, by leaving factors out where that is all: sympy would look at all others again."""
    taken, factors = sympy.Mul.make_args(shared), sympy.Mul.make_args(term)
    rest = [factor for factor in factors if factor not in taken]
    if len(rest) + len(taken) == len(factors) and not any(factor.is_number for factor in rest):
        return sympy.Mul._from_args(rest)
    return term / shared


def common(terms: Sequence[Any]) -> Any:
    """Return the product of what all terms are multiples of, symbols alone."""
    shared: dict[Any, Any] = {b: e for b, e in terms[0].as_powers_dict().items() if b.is_Symbol and e.is_Integer}
    for term in terms[1:]:
        if not shared:
            break
        powers = term.as_powers_dict()
        shared = {b: min(e, powers[b]) for b, e in shared.items() if b in powers and powers[b].is_Integer}
    return sympy.Mul(*(b**e for b, e in shared.items()))


def _added(terms: Sequence[Any]) -> Any:
    """Write Σ(X + kB)² over many k as aX² + bXB + cB²: as many terms, whatever their number was."""
    plain = sympy.Add(*terms)
    if len(sympy.Add.make_args(plain)) <= MOST_TERMS:
        return plain
    found: dict[Any, Any] = {}
    products: dict[tuple[Any, Any], Any] = {}
    for term in sympy.Add.make_args(plain):
        for power, number in _multiplied_out(term, products).items():
            found[power] = found.get(power, sympy.S.Zero) + number
    return sympy.Add(*(n * power for power, n in found.items())) if len(found) < len(plain.args) else plain


def _multiplied_out(term: Any, products: dict[tuple[Any, Any], Any]) -> Polynomial:
    """Return a term as a polynomial: sums and squares of sums multiplied out, other factors as they are.

    So are sums with a negative number: multiplied out, they would lose digits where they are evaluated.
    """
    result: Polynomial = {sympy.S.One: sympy.S.One}
    for factor in sympy.Mul.make_args(term):
        base, exponent = factor.as_base_exp()
        summands = dict(one.as_coeff_Mul()[::-1] for one in sympy.Add.make_args(base))
        if exponent not in (1, 2) or any(number < 0 for number in summands.values()):
            summands, exponent = {factor: sympy.S.One}, 1
        for _ in range(exponent):
            result = _times(result, summands, products)
    return result


def _times(one: Polynomial, other: Polynomial, products: dict[tuple[Any, Any], Any]) -> Polynomial:
    """Multiply polynomials; `products` remembers those of powers, which are few."""
    result: dict[Any, Any] = {}
    for first, a in one.items():
        for second, b in other.items():
            if (first, second) not in products:
                products[first, second] = first * second
            power = products[first, second]
            result[power] = result.get(power, sympy.S.Zero) + a * b
    return result


# Numbers that differ by less, relatively, are told apart exactly.
_CLEAR = 1e-9
# The coefficient of a product of factors that are no numbers.
Coefficients = Mapping[tuple[Any, ...], Any]


def extreme(kind: Any, expressions: Iterable[Any]) -> Any:
    """Write the `kind`, sympy's Min or Max, of formulas for non-negative numbers."""
    kept: list[Any] = []
    for one in (part for expression in expressions for part in kind.make_args(expression)):
        if not any(_redundant(kind, one, other) for other in kept):
            kept = [other for other in kept if not _redundant(kind, other, one)]
            kept.append(one)
    return kept[0] if len(kept) == 1 else kind(*kept, evaluate=False)


def _redundant(kind: Any, one: Any, other: Any) -> bool:
    """Whether `other` is never on the wrong side of `one`, as far as that can be seen."""
    larger, smaller = (one, other) if kind is sympy.Min else (other, one)
    return larger == smaller or larger is sympy.oo or _never_below(larger, smaller)


@lru_cache(maxsize=1024)
def _never_below(larger: Any, smaller: Any) -> bool:
    """Whether no term of the difference can be negative."""
    above, below = coefficients(larger), coefficients(smaller)
    if any(not _at_least(above.get(factors, sympy.S.Zero), number) for factors, number in below.items()):
        return False
    extra = {factors: number for factors, number in above.items() if factors not in below}
    return all(_at_least(number, sympy.S.Zero) for number in extra.values()) and all(
        _is_nonnegative(factor) for factors in {**above, **below} for factor in factors
    )


@lru_cache(maxsize=1024)
def coefficients(expression: Any) -> Coefficients:
    """Return the terms of a formula, numbers apart."""
    found: dict[tuple[Any, ...], Any] = {}
    for term in sympy.Add.make_args(expression):
        factors = sympy.Mul.make_args(term)
        symbolic = tuple(factor for factor in factors if not factor.is_number)
        number = sympy.Mul(*(factor for factor in factors if factor.is_number))
        sum_alone = len(symbolic) == 1 and symbolic[0].is_Add  # as in √2·(X + 1)
        for inner, times in (coefficients(symbolic[0]) if sum_alone else {symbolic: sympy.S.One}).items():
            found[inner] = found.get(inner, sympy.S.Zero) + number * times
    return found


@lru_cache(maxsize=1024)
def _at_least(one: Any, other: Any) -> bool:
    if one.is_Rational and other.is_Rational:
        return bool(one >= other)
    first, second = float(one), float(other)
    if abs(first - second) > _CLEAR * max(abs(first), abs(second)):
        return first > second
    return bool((one - other).is_extended_nonnegative)


def _is_nonnegative(factor: Any) -> bool:
    """Whether a factor can be seen not to be negative."""
    if isinstance(factor, sympy.exp):
        return True
    if factor.is_Pow:
        return _is_nonnegative(factor.base)
    if factor.is_number:
        return _at_least(factor, sympy.S.Zero)
    if factor.args and isinstance(factor, sympy.Add | sympy.Mul | sympy.Max | sympy.Min):
        return all(map(_is_nonnegative, factor.args))
    return bool(factor.is_extended_nonnegative)
