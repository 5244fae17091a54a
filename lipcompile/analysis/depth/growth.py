"""The order in which a formula grows with depth: O(T), O(sqrt(T)), O(alpha**T), O(1)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import sympy

from lipcompile.numbers.known import CLOSE, DIGITS, Definition, Known
from lipcompile.numbers.symbolic import MaxOver


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

    counts: the symbols of those numbers. definitions: what other names stand for, each resting on earlier ones
    only; numbers: those of them that are numbers. bounded: names of what no number of copies takes above some
    number. sample: a value of the rate that formulas leave open, if there is one: 1, or a number that stands for
    all below 1, or for all above.
    """

    counts: frozenset[Any]
    definitions: Mapping[str, Definition]
    bounded: frozenset[str]
    sample: Mapping[Any, Any]
    numbers: Known
    _dependent: set[Any] = field(default_factory=set)
    _orders: dict[str, Order | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Go through the definitions in their order: chains of them are longer than calls may be deep."""
        self._dependent.update(self.counts)
        for name, definition in self.definitions.items():
            if definition.expression is not None and self._depends(definition.expression):
                self._dependent.add(sympy.Symbol(name, positive=True))
                self._orders[name] = CONSTANT if name in self.bounded else self._known(definition.expression)

    def _known(self, expression: Any) -> Order | None:
        try:
            return self.of(expression)
        except NoOrderError:
            return None

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
        """Return the largest of orders; raises NoOrderError if that depends on the open rate."""
        found = orders[0]
        for order in orders[1:]:
            found = self._larger(found, order)
        return found

    def smallest(self, expressions: Sequence[Any]) -> Order:
        """Return the smallest order of those known, as far as they can be compared."""
        known = [order for order in map(self._known, expressions) if order is not None]
        if not known:
            raise NoOrderError("of a minimum")
        return self._smallest(known)

    def cases(self, expression: Any) -> list[Any]:
        """Return what a Piecewise may be, for one value or another that the sample stands for."""
        found = []
        for value, condition in expression.args:
            holds = self._holds(condition)
            found += [] if holds is False else [value]
            if holds:
                break
        return found

    def _holds(self, condition: Any) -> bool | None:
        """Whether a condition holds; None if for some values only."""
        for rate, sample in self.sample.items():
            if sample == 1:
                condition = condition.subs(rate, 1)
            for equation in condition.atoms(sympy.Eq):
                meeting = self.numbers.number(equation.rhs) if equation.lhs == rate else None
                if meeting is not None and _sign(meeting, 1) != _sign(sample, 1):
                    return False
        if any(self._never(equation) for equation in condition.atoms(sympy.Eq)):
            return False
        return None if condition not in (sympy.true, sympy.false) else condition == sympy.true

    def _never(self, equation: Any) -> bool:
        """Whether an equation is one of numbers, and wrong."""
        one, other = self.numbers.number(equation.lhs), self.numbers.number(equation.rhs)
        return one is not None and other is not None and _sign(one, other) != 0

    def _smallest(self, orders: Sequence[Order]) -> Order:
        found = orders[0]
        for order in orders[1:]:
            found = order if self._compared(order, found) == -1 else found
        return found

    def _larger(self, one: Order, two: Order) -> Order:
        compared = self._compared(one, two)
        if compared is None:
            one, two = (CONSTANT if self._decays(order) else order for order in (one, two))
            compared = self._compared(one, two)
        if compared is None:
            raise NoOrderError("that is not the same for all rates")
        return two if compared == -1 else one

    def _compared(self, one: Order, two: Order) -> int | None:
        """Return -1 if the first order is smaller, 1 if larger, None if neither is for all rates."""
        if one == two:  # as most terms of a sum are: dividing and rounding their rates takes long
            return 0
        signs = {_sign(number, 1) for number in self._sides_of_one(one.rate / two.rate)}
        if signs == {0}:
            return _sign(one.power, two.power)
        signs -= {0}
        return signs.pop() if len(signs) == 1 else None

    def _decays(self, order: Order) -> bool:
        signs = {_sign(number, 1) for number in self._sides_of_one(order.rate)}
        return signs <= {-1, 0} and signs != {0}

    def _sides_of_one(self, rate: Any) -> tuple[Any, ...]:
        """Return numbers that stay on their sides of 1, whatever the open rate is; their product is a rate."""
        numbers: list[Any] = []
        for symbol, sample in self.sample.items():
            exponent = rate.as_powers_dict()[symbol]
            rate = rate / symbol**exponent
            numbers.append(sample**exponent)
        known = self.numbers.number(rate)
        if known is None:
            raise NoOrderError("that depends on several rates")
        return known, *numbers

    def _symbol(self, symbol: Any) -> Order:
        if symbol in self.counts:
            return Order(sympy.S.One, sympy.S.One)
        if symbol in self.sample:
            return CONSTANT
        order = self._orders.get(symbol.name, CONSTANT)
        if order is None:
            raise NoOrderError(f"of {symbol}")
        return order

    def _depends(self, expression: Any) -> bool:
        """Whether the counts occur in an expression, or in what its names stand for."""
        return not self._dependent.isdisjoint(expression.free_symbols)

    def _power(self, expression: Any) -> Order:
        base, exponent = expression.as_base_exp()
        if not self._depends(exponent):
            if not exponent.is_number:
                raise NoOrderError(f"of {expression}")
            return self._inverse(base, -exponent) if exponent < 0 else self.of(base).raised(exponent)
        if self._depends(base) or exponent.free_symbols - self.counts:
            raise NoOrderError(f"of {expression}")
        return self._exponential(base, exponent)

    def _exponential(self, base: Any, exponent: Any) -> Order:
        linear = sympy.Poly(exponent, *sorted(self.counts & exponent.free_symbols, key=str))
        if linear.total_degree() > 1:
            raise NoOrderError(f"of an exponent {exponent}")
        slope = sum(linear.coeff_monomial(symbol) for symbol in linear.gens)
        forgotten = base == 0  # 0^0 = 1, else 0
        return CONSTANT if forgotten or base.subs(self.sample) == 1 else Order(base**slope, sympy.S.Zero)

    def _exp(self, expression: Any) -> Order:
        """e^-x of x >= 0."""
        if (-expression.args[0]).is_nonnegative:
            return CONSTANT
        raise NoOrderError(f"of {expression}")

    def _inverse(self, base: Any, exponent: Any) -> Order:
        """1/x^e of x >= 0: what x is at least, not what it is at most, says how it grows."""
        if base in self.counts:
            return Order(sympy.S.One, -exponent)
        if not self._depends(base):
            return CONSTANT
        if base.is_Symbol:
            return self._inverse(self.definitions[base.name].expression, exponent)
        if base.is_Mul:
            return _product([self._inverse(factor, exponent) for factor in base.args])
        if base.is_Pow:
            return self._inverse_of_power(base, exponent)
        if base.is_Add and all(term.is_nonnegative for term in base.args):
            return self.smallest([term**-exponent for term in base.args])
        raise NoOrderError(f"of 1/({base})")

    def _inverse_of_power(self, power: Any, exponent: Any) -> Order:
        base, inner = power.as_base_exp()
        if not self._depends(base):
            return self._exponential(base, -inner * exponent)
        if inner.is_number and inner > 0:
            return self._inverse(base, inner * exponent)
        raise NoOrderError(f"of 1/({power})")


def _sign(one: Any, other: Any) -> int:
    """Return the sign of a difference; numbers that agree in all digits looked at are taken for the same."""
    difference = sympy.N(one - other, DIGITS)
    return 0 if abs(difference) < CLOSE * abs(one) else int(sympy.sign(difference))


_RULES: Sequence[tuple[Any, Callable[[Growth, Any], Order]]] = (
    (sympy.Add, lambda growth, e: growth.largest([growth.of(term) for term in e.args])),
    (sympy.Mul, lambda growth, e: _product([growth.of(factor) for factor in e.args])),
    (sympy.exp, lambda growth, e: growth._exp(e)),
    (sympy.Pow, lambda growth, e: growth._power(e)),
    (sympy.Max, lambda growth, e: growth.largest([growth.of(term) for term in e.args])),
    (sympy.Min, lambda growth, e: growth.smallest(e.args)),
    (sympy.Piecewise, lambda growth, e: growth.largest([growth.of(case) for case in growth.cases(e)])),
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


def formula(order: Order, depth: str) -> Any:
    """Return what is written in the brackets of an order: rate^T·T^power."""
    symbol = sympy.Symbol(depth, positive=True)
    return order.rate**symbol * symbol**order.power


def _rate(rate: Any) -> str:
    if rate.is_Rational:
        short = repr(float(rate))
        return short.removesuffix(".0") if Fraction(short) == Fraction(int(rate.p), int(rate.q)) else f"({rate})"
    return str(rate) if rate.is_Symbol else f"({rate})"
