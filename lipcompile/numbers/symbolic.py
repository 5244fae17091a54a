"""Symbolic numbers: sympy expressions over non-negative symbols, with long subterms bound by `let`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import sympy
from sympy.printing.latex import LatexPrinter
from sympy.printing.str import StrPrinter

from lipcompile import limits
from lipcompile.numbers import Count, Step, closed_form
from lipcompile.numbers.known import Definition, Known
from lipcompile.numbers.scalar import OPERATIONS, Arithmetic, Scalar, Symbol
from lipcompile.numbers.simplify import extreme, total
from lipcompile.numbers.step import changed

# Above this many operations a named quantity is bound to its name instead of being written out.
LONGEST_INLINE = 8
# So is one with a number of more binary digits: those of 2^n would take time and space quadratic in n.
LONGEST_NUMBER = 128
# Whether two rates are one function is looked at up to so many operations.
LONGEST_COMPARED = 80


class MaxOver(sympy.Function):  # type: ignore[misc]
    """`MaxOver(term, m, start, last)`: the largest `term` over start <= m <= last, unevaluated.

    m runs over the integers if it is one by assumption, else over the reals.
    """

    nargs = 4

    @classmethod
    def eval(cls, *args: Any) -> None:
        """Stay as written: the maximum has no simpler form."""

    def _sympystr(self, printer: StrPrinter) -> str:
        term, index, start, last = (printer._print(part) for part in self.args)
        over = f"{index}={start}..{last}" if self.args[1].is_integer else f"{start}<={index}<={last}"
        return f"max[{over}]({term})"

    def _latex(self, printer: LatexPrinter, exp: Any = None) -> str:
        term, index, start, last = (printer._print(part) for part in self.args)
        body = rf"\max_{{{start}\le {index}\le {last}}} {term}"
        return body if exp is None else rf"\left({body}\right)^{{{exp}}}"


@dataclass(frozen=True, slots=True)
class Formula:
    """A sympy expression that stands for a non-negative real number."""

    expression: Any

    def __post_init__(self) -> None:
        limits.spend("terms", 1 + len(self.expression.args), "the formulas of this model have")

    def __add__(self, other: Formula | int) -> Formula:
        return Formula(self.expression + _expression(other))

    __radd__ = __add__

    def __sub__(self, other: Formula | int) -> Formula:
        return Formula(self.expression - _expression(other))

    def __rsub__(self, other: int) -> Formula:
        return Formula(other - self.expression)

    def __mul__(self, other: Formula | int) -> Formula:
        factor = _expression(other)
        if sympy.S.Zero in (factor, self.expression):  # of ∞, too: unknown means finite but unknown
            return Formula(sympy.S.Zero)
        if self.expression is sympy.S.One:
            return Formula(factor)
        return self if factor is sympy.S.One else Formula(self.expression * factor)

    __rmul__ = __mul__

    def __truediv__(self, other: Formula | int) -> Formula:
        quotient = self.expression / _expression(other)
        return Formula(sympy.oo if quotient is sympy.nan else quotient)  # of ∞/∞ nothing is known

    def __rtruediv__(self, other: int) -> Formula:
        return Formula(other / self.expression)


@dataclass(slots=True)
class Symbolic:
    """The domain of formulas. `definitions` lists, in order, every name that its formulas may contain."""

    definitions: dict[str, Definition] = field(default_factory=dict)
    longest: int = LONGEST_INLINE
    memo: dict[object, object] = field(default_factory=dict)

    def of(self, value: Scalar | int) -> Formula:
        """Write an exact scalar as a rational number or over its symbols."""
        if isinstance(value, Symbol):
            self.definitions.setdefault(value.name, Definition(value.name, f"{value.meaning}, above 0"))
            return Formula(_symbol(value.name))
        if isinstance(value, Arithmetic):
            found: Formula = OPERATIONS[value.operator](self.of(value.left), self.of(value.right))
            return found
        exact = Fraction(value)
        return Formula(sympy.Rational(exact.numerator, exact.denominator))

    def symbol(self, name: str, value: Scalar | None, meaning: str) -> Formula:
        """Keep `name` in formulas; a value that is itself symbolic is written out instead."""
        if isinstance(value, Symbol | Arithmetic):
            return self.of(value)
        self.definitions[name] = Definition(name, meaning, value=value)
        return Formula(_symbol(name))

    def unbounded(self) -> Formula:
        return Formula(sympy.oo)

    def let(self, name: str, value: Formula, meaning: str) -> Formula:
        """Bind `value` to `name` if it has more than `longest` operations, or a number of many digits."""
        if not _is_long(value.expression, self.longest):
            return value
        self.definitions[name] = Definition(name, meaning, expression=value.expression)
        return Formula(_symbol(name))

    def sum(self, *xs: Formula) -> Formula:
        """Write the sum, what all its terms have in common in front."""
        return Formula(total([x.expression for x in xs]))

    def sqrt(self, x: Formula | Fraction | int) -> Formula:
        return Formula(_root(_expression(x)))

    def exp(self, x: Formula) -> Formula:
        return Formula(sympy.exp(x.expression))

    def expm1(self, x: Formula) -> Formula:
        return Formula(sympy.exp(x.expression) - 1)

    def log(self, x: int) -> Formula:
        return Formula(sympy.log(x))

    def minimum(self, *xs: Formula) -> Formula:
        return Formula(extreme(sympy.Min, (x.expression for x in xs)))

    def maximum(self, *xs: Formula) -> Formula:
        return Formula(extreme(sympy.Max, (x.expression for x in xs)))

    def max_over(self, start: int, stop: int, term: Callable[[Formula], Formula]) -> Formula:
        """Write the maximum over an integer range; a single term is written as such."""
        if stop - start == 1:
            return term(self.of(start))
        index = sympy.Symbol("m", positive=True, integer=True)
        return Formula(MaxOver(term(Formula(index)).expression, index, start, stop - 1))

    def supremum(
        self, value: Callable[[Formula], Formula], slope: Callable[[Formula], Formula], of: tuple[object, ...] = ()
    ) -> Formula:
        """Write the supremum; its derivative says nothing more."""
        point = sympy.Symbol("s", nonnegative=True)
        return Formula(MaxOver(value(Formula(point)).expression, point, 0, 1))

    def power(self, step: Step[Formula], count: Count | Formula, name: str) -> Step[Formula]:
        times = count if isinstance(count, Formula) else self._count(count)
        plain = self._with_one_rate(changed(step, lambda coefficient: coefficient.expression))
        rates = dict.fromkeys([plain.norm.get(1, sympy.S.Zero), plain.lipschitz])
        named = {rate: self._rate(rate, name, index) for index, rate in enumerate(rates)}
        norm = {d: named[rate] if d == 1 else rate for d, rate in plain.norm.items()}
        named_step = replace(plain, norm=norm, lipschitz=named[plain.lipschitz])
        raised = closed_form.power(named_step, times.expression, self._numbers(named.values()))
        return changed(raised, Formula)

    def _numbers(self, rates: Iterable[Any]) -> dict[Any, Any]:
        """Return the numbers of those symbols in rates that stand for one."""
        known = Known(self.definitions)
        found = {symbol: known.number(symbol) for rate in rates for symbol in rate.free_symbols}
        return {symbol: number for symbol, number in found.items() if number is not None}

    def _count(self, count: Count) -> Formula:
        if isinstance(count.scalar, Symbol) and count.value is not None:
            symbol, value = count.scalar, Fraction(count.value)
            self.definitions.setdefault(
                symbol.name, Definition(symbol.name, symbol.meaning, None, value, float(value))
            )
        return self.of(count.scalar)

    def _with_one_rate(self, step: Step[Any]) -> Step[Any]:
        """Write both rates alike if they are one function: formulas for different ones say 0/0 where they meet."""
        rate, lipschitz = step.norm.get(1, sympy.S.Zero), step.lipschitz
        if rate == lipschitz or not (rate.free_symbols and lipschitz.free_symbols):
            return step
        written_out = [self._written_out(expression) for expression in (rate, lipschitz)]
        if None in written_out or not (written_out[0] - written_out[1]).equals(0):
            return step
        one = min(rate, lipschitz, key=lambda expression: expression.count_ops())
        return replace(step, norm={**step.norm, 1: one}, lipschitz=one)

    def _written_out(self, expression: Any) -> Any:
        """Return an expression without names that stand for others; None if it has extremes or becomes long."""
        while expression.count_ops() <= LONGEST_COMPARED and not expression.has(*_BRANCHING):
            definitions = [self.definitions[symbol.name] for symbol in expression.free_symbols]
            known = {_symbol(d.name): d.expression for d in definitions if d.expression is not None}
            if not known:
                return expression
            expression = expression.subs(known)
        return None

    def _rate(self, rate: Any, name: str, index: int) -> Any:
        """Name a rate that is no number and no power of one symbol: cases are told apart by symbols."""
        if len(rate.free_symbols) == 0 or (len(rate.free_symbols) == 1 and _is_power(rate)):
            return rate
        # Not l, which is that of the output in the value `name`.
        letter = f"{'ag'[index]}_{name}"
        meaning = ("growth of the norm", "Lipschitz constant")[index]
        where = "" if rate.is_positive else ", above 0"
        self.definitions[letter] = Definition(letter, f"{meaning} of one copy of {name}{where}", expression=rate)
        return _symbol(letter)


_BRANCHING = (sympy.Min, sympy.Max, sympy.Piecewise, MaxOver)


def _is_long(expression: Any, longest: int) -> bool:
    """Whether an expression has more than `longest` operations, counted quickly and not too low, then by sympy."""
    operations, waiting = 0, [expression]
    while waiting:
        part = waiting.pop()
        if part.is_Rational:
            if max(abs(part.p), part.q).bit_length() > LONGEST_NUMBER:
                return True
            operations += (part.p < 0) + (part.q != 1)
        elif part.args:
            operations += max(len(part.args) - 1, 1)
            waiting += part.args
    return operations > longest and expression.count_ops() > longest


def _root(square: Any) -> Any:
    """Write √square, powers of symbols and numbers in front.

    sympy would find that as well, but ask first for the signs of all that a long sum consists of.
    """
    number, factors = _with_positive_numbers(*square.as_coeff_mul())
    powers = [factor.as_base_exp() for factor in factors]
    outside = [base ** (exponent / 2) for base, exponent in powers if base.is_Symbol]
    inside = [factor for factor, (base, _) in zip(factors, powers, strict=True) if not base.is_Symbol]
    return sympy.Mul(sympy.sqrt(number), *outside, sympy.sqrt(sympy.Mul(*inside)))


def _with_positive_numbers(number: Any, factors: Sequence[Any]) -> tuple[Any, list[Any]]:
    """Hand the signs of numbers in a product on: -(1 - 2^n)·r has a root, its factors have none.

    They go into a sum, or stand beside the powers of sums.
    """
    found = []
    for factor in factors:
        base, exponent = factor.as_base_exp()
        negative = bool(base.is_number and base.is_negative and exponent.is_Integer)
        number = number * (-1) ** exponent if negative else number
        found.append((-base) ** exponent if negative else factor)
    if not number.is_negative:
        return number, found
    sums = [index for index, factor in enumerate(found) if factor.is_Add and not factor.is_number]
    if not sums:
        return -number, [*found, sympy.S.NegativeOne]
    found[sums[0]] = -found[sums[0]]
    return -number, found


def _is_power(expression: Any) -> bool:
    base, exponent = expression.as_base_exp()
    return bool(base.is_Symbol and exponent.is_number)


def _symbol(name: str) -> Any:
    # Positive, not merely non-negative: a bound may always be enlarged, and √(x²) = x then simplifies.
    return sympy.Symbol(name, positive=True)


def _expression(x: Formula | Fraction | int) -> Any:
    if isinstance(x, Formula):
        return x.expression
    return sympy.Rational(x.numerator, x.denominator)
