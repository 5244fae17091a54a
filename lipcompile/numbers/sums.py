"""Sums of formulas in time linear in their terms: what is common in front, and long ones by powers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sympy

# Longer sums are multiplied out, if that makes them shorter.
MOST_TERMS = 8
# A polynomial: the number before each product of powers.
Polynomial = Mapping[Any, Any]


def total(terms: Sequence[Any]) -> Any:
    """Write the sum of one or more expressions, with powers of symbols that all of them share in front."""
    shared = common(terms)
    rest = terms if shared == 1 else [term / shared for term in terms]
    return sympy.Mul(shared, _added(rest))


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
