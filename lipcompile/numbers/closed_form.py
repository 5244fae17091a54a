"""Powers of affine steps in closed form: geometric sums, polynomial ones where a rate is 1, cases where it may be.

The norm at the input of copy s + 1 of n, s = 0 … n - 1, is X_s = a^s·X + c·(a^s - 1)/(a - 1), or X + s·c for a =
1: a sum of terms b^s·s^j, as are its powers. What the copy adds to the squared gradient bound is a polynomial in
X_s times l^(2(n-1-s)). So all sums are of the kind D_j(r, m) = Σ_s s^j·r^s·m^(n-1-s), with D_j = m^(n-1)·Σ_s s^j
if r = m, else by summation by parts (r - m)·D_j = n^j·r^n - [j = 0]·m^n - r·Σ_{i<j} C(j, i)·D_i.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from math import comb
from typing import Any

import sympy

from lipcompile.numbers import Coefficients, Step
from lipcompile.numbers.known import CLOSE, DIGITS
from lipcompile.numbers.simplify import common
from lipcompile.numbers.step import added, changed, scaled

# Σ coefficient·base^s·s^j, by (base, j).
Series = Mapping[tuple[Any, int], Any]
# Numbers that differ in the first half of so many digits are not the same.
_DIGITS = 40
# What is assumed of rates in one case: equations, in the order in which they were made.
Case = tuple[Any, ...]
# A symbol and a value at which it makes two rates equal.
Meeting = tuple[Any, Any]


class _Undecided(Exception):  # noqa: N818
    """Two rates may be equal or not, for a value of a symbol: the sums differ."""

    def __init__(self, meeting: Meeting) -> None:
        super().__init__(meeting)
        self.meeting = meeting


@dataclass(frozen=True, slots=True)
class _Rates:
    """What is known of symbols: their numbers, and values which they are assumed not to have."""

    numbers: Mapping[Any, Any]
    excluded: frozenset[Meeting] = frozenset()

    def equal(self, one: Any, other: Any) -> bool:
        """Whether two rates are equal; raises _Undecided if that depends on symbols."""
        if one == other:
            return True
        if one == 0 or other == 0 or not (one / other).free_symbols:
            return _same_number(one, other)
        meeting = _solved(one, other)
        if meeting in self.excluded or self._is_not_one(one / other):
            return False
        raise _Undecided(meeting)

    def _is_not_one(self, ratio: Any) -> bool:
        """Whether a ratio of symbols that stand for numbers is not 1."""
        if ratio.free_symbols - self.numbers.keys():
            return False
        return bool(abs(ratio.evalf(DIGITS, subs=self.numbers) - 1) > CLOSE)

    def without(self, meeting: Meeting) -> _Rates:
        """Return the rates where the symbol does not have the value."""
        return replace(self, excluded=self.excluded | {meeting})

    def where(self, meeting: Meeting) -> _Rates:
        """Return the rates where the symbol has the value."""
        pairs = [[side.subs(*meeting) for side in other] for other in self.excluded]
        excluded = frozenset(_solved(*pair) for pair in pairs if (pair[0] / pair[1]).free_symbols)
        return replace(self, excluded=excluded)


def _same_number(one: Any, other: Any) -> bool:
    difference = one - other
    if abs(difference.evalf(_DIGITS)) > sympy.Float(10) ** (-_DIGITS // 2) * abs(one.evalf(_DIGITS)):
        return False
    same = difference.equals(0)
    assert same is not None, f"{one} and {other} cannot be told apart"
    return bool(same)


def power(step: Step[Any], count: Any, numbers: Mapping[Any, Any]) -> Step[Any]:
    """Return the step `count` times, over sympy expressions; rates are numbers, symbols or powers of one symbol.

    Where sums depend on whether rates are equal, coefficients are `Piecewise`, the special cases first. `numbers`
    are those of symbols that stand for one.
    """
    cases = list(_cases(step, count, _Rates(numbers)))
    if len(cases) == 1:
        return cases[0][1]
    steps = [found for _, found in cases]

    def merged(parts: list[Coefficients[Any]]) -> dict[int, Any]:
        degrees = sorted({degree for part in parts for degree in part})
        return {
            d: _piecewise([part.get(d, sympy.S.Zero) for part in parts], [case for case, _ in cases])
            for d in degrees
        }

    last = steps[-1]
    return Step(
        norm=merged([one.norm for one in steps]),
        lipschitz=last.lipschitz,  # l^n in every case
        squares={name: merged([one.squares[name] for one in steps]) for name in last.squares},
        shared={name: merged([one.shared[name] for one in steps]) for name in last.shared},
        exact=last.exact,
    )


def _piecewise(values: list[Any], cases: list[Case]) -> Any:
    """Return the last value, and those before it in their cases, unless what follows holds there as well."""
    general = values[-1]
    kept: list[tuple[Any, Case]] = []
    for found, case in reversed(list(zip(values[:-1], cases[:-1], strict=True))):
        follows = bool(kept) and kept[-1][0] == found and set(kept[-1][1]) <= set(case)
        if not follows and general.subs([(equation.lhs, equation.rhs) for equation in case]) != found:
            kept.append((found, case))
    if not kept:
        return general
    return sympy.Piecewise(*((found, sympy.And(*case)) for found, case in reversed(kept)), (general, True))


def _cases(step: Step[Any], count: Any, rates: _Rates) -> Iterator[tuple[Case, Step[Any]]]:
    try:
        yield (), _power(step, count, rates)
    except _Undecided as undecided:
        meeting = undecided.meeting
        same = changed(step, lambda coefficient: coefficient.subs(*meeting))
        special = _cases(same, count, rates.where(meeting))
        yield from (((sympy.Eq(*meeting), *case), found) for case, found in special)
        yield from _cases(step, count, rates.without(meeting))


def _solved(one: Any, other: Any) -> Meeting:
    """Solve one = other, products of powers of positive symbols, for the first symbol that does not cancel."""
    ratio = one / other
    symbol = min(ratio.free_symbols, key=lambda found: found.name)
    exponent = ratio.as_powers_dict()[symbol]
    return symbol, (ratio / symbol**exponent) ** (-1 / exponent)


def _power(step: Step[Any], n: Any, rates: _Rates) -> Step[Any]:
    a, c = step.norm.get(1, sympy.S.Zero), step.norm.get(0, sympy.S.Zero)
    entering = _norm_series(a, c, rates)

    @cache
    def of_degree(degree: int, gain: Any) -> Mapping[int, Any]:
        """Return Σ_s X_s^degree·gain^(n-1-s) by degree in X."""
        return {
            d: _tidy(sum(k * _sum(j, base, gain, n, rates) for (base, j), k in series.items()))
            for d, series in _raised(entering, degree).items()
        }

    def summed(of: Coefficients[Any], gain: Any) -> dict[int, Any]:
        found: dict[int, Any] = {}
        for degree, coefficient in of.items():
            found = added(found, scaled(coefficient, of_degree(degree, gain)))
        # To look for common factors takes long where there are symbols.
        return {d: _tidy(k) if k.free_symbols <= n.free_symbols else k for d, k in found.items()}

    offset = _tidy(c * _sum(0, a, sympy.S.One, n, rates)) if c != 0 else sympy.S.Zero
    return Step(
        norm={degree: value for degree, value in ((1, a**n), (0, offset)) if value != 0},
        lipschitz=step.lipschitz**n,
        squares={name: summed(k, step.lipschitz**2) for name, k in step.squares.items()},
        shared={name: summed(k, step.lipschitz) for name, k in step.shared.items()},
        exact=step.exact,
    )


def _norm_series(a: Any, c: Any, rates: _Rates) -> dict[int, Series]:
    """Return X_s by degree in X: a^s, and c·(a^s - 1)/(a - 1)."""
    one = sympy.S.One
    slope: Series = {(a, 0): one}
    if c == 0:
        return {1: slope}
    if rates.equal(a, one):
        return {1: slope, 0: {(one, 1): c}}
    return {1: slope, 0: {(a, 0): c / (a - 1), (one, 0): -c / (a - 1)}}


def _raised(affine: Mapping[int, Series], exponent: int) -> dict[int, Series]:
    """Return a power of an affine function of X with series as coefficients, by degree in X."""
    result: dict[int, Series] = {0: {(sympy.S.One, 0): sympy.S.One}}
    for _ in range(exponent):
        product: dict[int, Series] = {}
        for d, series in result.items():
            for e, factor in affine.items():
                product[d + e] = _plus(product.get(d + e, {}), _times(series, factor))
        result = product
    return result


def _plus(one: Series, other: Series) -> Series:
    return {key: one.get(key, sympy.S.Zero) + other.get(key, sympy.S.Zero) for key in {**one, **other}}


def _times(one: Series, other: Series) -> Series:
    result: Series = {}
    for (base, i), coefficient in one.items():
        for (b, j), k in other.items():
            # One term at a time: products with the base 0 are alike.
            result = _plus(result, {(base * b, i + j): coefficient * k})
    return result


def _sum(j: int, r: Any, m: Any, n: Any, rates: _Rates) -> Any:
    """Return D_j(r, m)."""
    if r == 0 or m == 0:  # one term, 0^0 = 1
        return (r + m) ** (n - 1) * ((n - 1) ** j if r != 0 or j == 0 else 0)
    if rates.equal(r, m):
        return m ** (n - 1) * _sum_of_powers(j).subs(_N, n)
    shared = common([r, m])
    if shared != 1:  # in front of the sum, so that nothing is divided by a rate that may be 0
        return shared ** (n - 1) * _sum(j, r / shared, m / shared, n, rates)
    lower = sum(comb(j, i) * _sum(i, r, m, n, rates) for i in range(j))
    return (n**j * r**n - (m**n if j == 0 else 0) - r * lower) / (r - m)


_N = sympy.Symbol("n", positive=True)


@cache
def _sum_of_powers(j: int) -> Any:
    """Return Σ_{s<n} s^j."""
    return sympy.factor((sympy.bernoulli(j + 1, _N) - sympy.bernoulli(j + 1, 0)) / (j + 1))


def _tidy(expression: Any) -> Any:
    """Put what terms have in common in front of their sum."""
    return sympy.factor_terms(expression)
