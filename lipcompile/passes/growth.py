"""The order in which a formula grows with depth: O(T), O(sqrt(T)), O(alpha**T), O(1)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import sympy

from lipcompile.numbers.symbolic import Definition, MaxOver


@dataclass(frozen=True, slots=True)
class Order:
    """At most a constant times rate^T·T^power."""

    rate: Any
    power: Any

    def times(self, other: Order) -> Order:
        """Return the order of a product."""
        return Order(self.rate * other.rate, self.power + other.power)

    def raised(self, exponent: Any) -> Order:
        """Return the order of a power."""
        return Order(self.rate**exponent, self.power * exponent)


CONSTANT = Order(sympy.S.One, sympy.S.Zero)


class NoOrderError(ValueError):
    """No order is known."""


@dataclass(frozen=True, slots=True)
class Growth:
    """Orders of expressions in T, the number of copies in every loop.

    counts: the symbols of those numbers. definitions: what other names stand for. bounded: names of what no number
    of copies takes above some number. sample: a value of the rate that formulas leave open, by which cases and the
    larger of two rates are decided.
    """

    counts: frozenset[Any]
    definitions: Mapping[str, Definition]
    bounded: frozenset[str]
    sample: Mapping[Any, Any]

    def of(self, expression: Any) -> Order:
        """Return an order of |expression|, never too small; raises NoOrderError."""
        if expression.is_Symbol:
            return self._symbol(expression)
        if not self._depends(expression):
            return CONSTANT
        for kind, rule in _RULES:
            if isinstance(expression, kind):
                return rule(self, expression)
        raise NoOrderError(f"of {expression}")

    def largest(self, orders: Sequence[Order]) -> Order:
        """Return the largest of orders."""
        found = orders[0]
        for order in orders[1:]:
            found = order if self._key(order) > self._key(found) else found
        return found

    def smallest(self, expressions: Sequence[Any]) -> Order:
        """Return the smallest order of those known."""
        known = []
        for expression in expressions:
            try:
                known.append(self.of(expression))
            except NoOrderError:
                continue
        if not known:
            raise NoOrderError("of a minimum")
        return min(known, key=self._key)

    def case(self, expression: Any) -> Any:
        """Return the case of a Piecewise that holds for the sample."""
        for value, condition in expression.args:
            if condition.subs(self.sample) == sympy.true:
                return value
        raise NoOrderError("of cases that depend on several symbols")

    def _key(self, order: Order) -> tuple[Any, Any]:
        rate = order.rate.subs(self.sample)
        if rate.free_symbols:
            raise NoOrderError("that depends on several rates")
        return _exact(rate), order.power

    def _symbol(self, symbol: Any) -> Order:
        if symbol in self.counts:
            return Order(sympy.S.One, sympy.S.One)
        definition = self.definitions.get(symbol.name)
        if (
            definition is None
            or definition.expression is None
            or symbol in self.sample
            or symbol.name in self.bounded
        ):
            return CONSTANT
        return self.of(definition.expression)

    def _depends(self, expression: Any) -> bool:
        """Whether the counts occur in an expression, or in what its names stand for."""
        waiting, seen = list(expression.free_symbols), set()
        while waiting:
            symbol = waiting.pop()
            if symbol in self.counts:
                return True
            definition = self.definitions.get(symbol.name)
            if symbol not in seen and definition is not None and definition.expression is not None:
                seen.add(symbol)
                waiting += definition.expression.free_symbols
        return False

    def _power(self, expression: Any) -> Order:
        base, exponent = expression.as_base_exp()
        if not self._depends(exponent):
            if exponent.is_number and exponent < 0:
                return self._inverse(base, -exponent)
            return self.of(base).raised(exponent)
        if self._depends(base) or exponent.free_symbols - self.counts:
            raise NoOrderError(f"of {expression}")
        return self._exponential(base, exponent)

    def _exponential(self, base: Any, exponent: Any) -> Order:
        linear = sympy.Poly(exponent, *sorted(self.counts & exponent.free_symbols, key=str))
        if linear.total_degree() > 1:
            raise NoOrderError(f"of an exponent {exponent}")
        slope = sum(linear.coeff_monomial(symbol) for symbol in linear.gens)
        return CONSTANT if base.subs(self.sample) == 1 else Order(base**slope, sympy.S.Zero)

    def _exp(self, expression: Any) -> Order:
        """e^-x of x >= 0."""
        if (-expression.args[0]).is_nonnegative:
            return CONSTANT
        raise NoOrderError(f"of {expression}")

    def _inverse(self, base: Any, exponent: Any) -> Order:
        """1/x^e with x a sum of non-negative terms is at most that of one of them that does not depend on T."""
        if base.is_Add and all(_positive(term) for term in base.args):
            if any(not self._depends(term) for term in base.args):
                return CONSTANT
        elif base.is_Symbol or base.is_Pow:
            return self.of(base).raised(-exponent)
        raise NoOrderError(f"of 1/({base})")


def _positive(term: Any) -> bool:
    return bool(term.is_nonnegative)


def _exact(rate: Any) -> Any:
    return rate if rate.is_Rational else rate.evalf(50)


_RULES: Sequence[tuple[Any, Callable[[Growth, Any], Order]]] = (
    (sympy.Add, lambda growth, e: growth.largest([growth.of(term) for term in e.args])),
    (sympy.Mul, lambda growth, e: _product([growth.of(factor) for factor in e.args])),
    (sympy.exp, lambda growth, e: growth._exp(e)),
    (sympy.Pow, lambda growth, e: growth._power(e)),
    (sympy.Max, lambda growth, e: growth.largest([growth.of(term) for term in e.args])),
    (sympy.Min, lambda growth, e: growth.smallest(e.args)),
    (sympy.Piecewise, lambda growth, e: growth.of(growth.case(e))),
    (MaxOver, lambda growth, e: growth.of(e.args[0])),
)


def _product(orders: Sequence[Order]) -> Order:
    found = CONSTANT
    for order in orders:
        found = found.times(order)
    return found


def written(order: Order, depth: str) -> str:
    """Return an order as people write it: `O(1)`, `O(sqrt(T))`, `O(1.1**T * T)`; a rate below 1 decays to O(1)."""
    factors = []
    if order.rate != 1:
        factors.append(f"{_rate(order.rate)}**{depth}")
    if order.power != 0:
        factors.append(str(sympy.Symbol(depth, positive=True) ** order.power))
    return f"O({' * '.join(factors) or '1'})"


def _rate(rate: Any) -> str:
    if rate.is_Rational:
        short = repr(float(rate))
        return short.removesuffix(".0") if Fraction(short) == Fraction(int(rate.p), int(rate.q)) else f"({rate})"
    return str(rate) if rate.is_Symbol else f"({rate})"
