"""Formulas and certified numbers as text. Linear in the size of a formula; equal formulas are printed once."""

from __future__ import annotations

import decimal
from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache
from math import isfinite
from typing import Any

from sympy import (
    Add,
    Float,
    Function,
    Max,
    Min,
    Mul,
    Pow,
    Rational,
    Symbol,
    Tuple,
    default_sort_key,
    exp,
    expand,
    preorder_traversal,
)
from sympy.core.parameters import distribute
from sympy.logic.boolalg import Boolean
from sympy.printing.latex import LatexPrinter
from sympy.printing.printer import Printer
from sympy.printing.str import StrPrinter

from lipcompile.numbers import Scalar
from lipcompile.numbers import text as scalar_text
from lipcompile.numbers.rounding import upward
from lipcompile.numbers.symbolic import Symbolic

_DIGITS, _LONGEST = 7, 400
# Fractions of more digits are written as decimals for the eye.
_LONGEST_RATIO = 3
# So many terms take more than `_LONGEST` characters. Sums of more terms are not sorted for the eye.
_MOST_TERMS = 128
_SHORT = decimal.Context(prec=_DIGITS, rounding=decimal.ROUND_CEILING)
_LARGEST_FIXED = 1e9
# From here on, numbers for the eye have no decimals.
_LEAST_WHOLE = 1000

UNKNOWN = "\N{EN DASH}"
ONE = Fraction(1)

# What a formula that is laid out has in place of parts that are too long.
ELLIPSIS = Symbol("⋯", positive=True)
_OF_MANY = (Add, Mul, Max, Min)
_MOST_OPERATIONS, _MOST_OPERANDS = 100, 8


class _Sums(Printer):  # type: ignore[misc]
    """Orders sums as sympy does; those of symbols, or of a number and one more term, without evaluating them."""

    def _as_ordered_terms(self, expr: Any, order: str | None = None) -> list[Any]:
        first, *rest = expr.args
        plain = len(rest) == 1 and first.is_Rational and not rest[0].is_number
        if plain and order is None and self.order is None and not rest[0].could_extract_minus_sign():
            return [rest[0], first]
        if order is None and self.order is None and all(term.is_Symbol for term in expr.args):
            return sorted(expr.args, key=lambda symbol: symbol.name)
        return list(super()._as_ordered_terms(expr, order))


class _Latex(_Sums, LatexPrinter):  # type: ignore[misc]
    """Prints `X_fc1` as X with the subscript fc1, whatever the subscript contains."""

    def _print_Symbol(self, expr: Any, style: str = "plain") -> str:  # noqa: ARG002, N802
        if expr == ELLIPSIS:
            return r"\cdots"
        if is_decimal(expr):
            return str(expr.name)
        head, _, subscript = expr.name.partition("_")
        head = head if len(head) == 1 else rf"\mathrm{{{head}}}"
        if not subscript:
            return str(head)
        inner = subscript.replace("_", r"\_")
        return f"{head}_{{{inner}}}" if len(inner) == 1 else rf"{head}_{{\mathrm{{{inner}}}}}"

    def _print_Mul(self, expr: Any) -> str:  # noqa: N802
        """Hide exponents from sympy, which would simplify them to see whether they are constant: for minutes."""
        if isinstance(expr, Mul) and any(_is_open(factor) for factor in expr.args):
            factors = [_Exponential(factor.args[0]) if _is_open(factor) else factor for factor in expr.args]
            expr = Mul(*factors, evaluate=False)
        return str(super()._print_Mul(expr))

    def _print__Exponential(self, expr: Any, exponent: Any = None) -> str:  # noqa: N802
        return str(self._do_exponent(f"e^{{{self._print(expr.args[0])}}}", exponent))


class _Exponential(Function):  # type: ignore[misc]
    """The exponential function, for the eye alone."""


def _is_open(factor: Any) -> bool:
    return isinstance(factor, exp) and bool(factor.free_symbols)


class _Text(_Sums, StrPrinter):  # type: ignore[misc]
    """Prints infinity as people do."""

    def _print_Mul(self, expr: Any) -> str:  # noqa: N802
        """Write symbols before one sum, as sympy does after it has evaluated that sum to sort them."""
        sums = [factor for factor in expr.args if factor.is_Add]
        names = [factor.name for factor in expr.args if factor.is_Symbol]
        if self.order is None and len(sums) == 1 and len(names) + 1 == len(expr.args):
            return "*".join([*sorted(names), f"({self._print(sums[0])})"])
        return str(super()._print_Mul(expr))

    def _print_Infinity(self, expr: Any) -> str:  # noqa: ARG002, N802
        return "∞"


def normal(expression: Any) -> Any:
    """Return a formula with one form of each power of a number: 4**depth, and not 2**(2*depth)."""
    powers = {power: _normal_power(power) for power in expression.atoms(Pow) if power.base.is_Rational}
    changed = {power: other for power, other in powers.items() if other != power}
    return expression.xreplace(changed) if changed else expression


def _normal_power(power: Any) -> Any:
    """Take a whole factor of an exponent into the base, unless that gets long."""
    factor, exponent = power.exp.as_coeff_Mul()
    if not (factor.is_Integer and 1 < factor <= _DIGITS and exponent.free_symbols):
        return power
    base = power.base**factor
    return base**exponent if _digits(base) <= _DIGITS else power


@lru_cache(maxsize=4096)
def text(expression: Any) -> str:
    """Return a formula on one line, in Python's notation: `3*L*X_0`, `sqrt(2)*X_0`."""
    expression = normal(expression)
    return str(_Text(_order(expression)).doprint(expression))


@lru_cache(maxsize=4096)
def legible(expression: Any) -> str:
    """Return a formula for the eye: constants of many digits are rounded up to seven, a very long one is cut."""
    # Long sums end after more terms than are shown.
    long = {total: Add(*total.args[:_MOST_TERMS], evaluate=False) for total in _long_sums(expression)}
    shown = text(rounded(expression.xreplace(long) if long else expression))
    return shown if len(shown) <= _LONGEST else f"{shown[: _LONGEST - 1]}…"


def _long_sums(expression: Any) -> list[Any]:
    return [total for total in expression.atoms(Add) if len(total.args) > _MOST_TERMS]


def _order(expression: Any) -> dict[str, str]:
    """Return the setting of printers that keeps the order of long sums: sorting costs more than printing."""
    return {"order": "none"} if _long_sums(expression) else {}


def rounded(expression: Any) -> Any:
    """Return a formula in which constants of many digits are rounded up to seven, and fractions are decimals.

    What would not be larger for that stays as it is: what it stands in may bound something.
    """
    # A fraction times a long root is one number, rounded up: sqrt(1977403641)/10000.
    products = {product: _with_number(product) for product in expression.atoms(Mul) if _has_long_root(product)}
    expression = _with_decimals(_enlarged(expression, products))
    long = {atom: _rounded(atom) for atom in expression.atoms(Rational) if _digits(atom) > _DIGITS}
    return _enlarged(expression, long)


def _enlarged(expression: Any, larger: Mapping[Any, Any]) -> Any:
    """Return a formula with larger parts in place of some, but where it might be smaller for that."""
    if not larger:
        return expression
    kept = {part: part for part in expression.atoms(Add, Pow, exp, Boolean) if _may_fall(part)}
    with distribute(False):  # what is rounded up stays in front of its brackets: a difference may fall
        return expression.xreplace({**larger, **kept})


def _has_long_root(product: Any) -> bool:
    numbers = [factor for factor in product.args if factor.is_number]
    long = any(_digits(atom) > _DIGITS for factor in numbers for atom in factor.atoms(Rational))
    return long and len(numbers) > 1 and all(factor.is_positive for factor in numbers)


def _with_number(product: Any) -> Any:
    number = Mul(*(factor for factor in product.args if factor.is_number))
    size = _SHORT.create_decimal(str(number.evalf(4 * _DIGITS)))  # irrational: its digits do not end
    return Mul(Float(str(size), _DIGITS), *(factor for factor in product.args if not factor.is_number))


def _with_decimals(expression: Any) -> Any:
    """Return a formula in which fractions of many digits that decimals of few are equal to are names of those.

    A name is not computed with, and so not rounded to the nearest.
    """
    short = {atom: _decimal(atom) for atom in expression.atoms(Rational) if _is_decimal(atom)}
    if not short:
        return expression
    with distribute(False):
        return expression.xreplace(short)


def is_decimal(symbol: Any) -> bool:
    """Whether a symbol is the name of a decimal."""
    return bool(symbol.name[:1].isdigit())


def _decimal(number: Any) -> Any:
    size = Symbol(f"{_divided(abs(number)):f}", positive=True)
    return size if number > 0 else -size


def _is_decimal(number: Any) -> bool:
    """Whether a fraction of many digits has at most seven as a decimal."""
    if number.is_Integer or _digits(number) <= _LONGEST_RATIO:
        return False
    return _divided(number) * int(number.q) == int(number.p)


def _divided(number: Any) -> decimal.Decimal:
    """Return a fraction as a decimal of seven digits, rounded up."""
    return _SHORT.divide(int(number.p), int(number.q))


def _may_fall(part: Any) -> bool:
    """Whether a part may get smaller where a constant in it gets larger: differences, inverses, conditions."""
    if isinstance(part, Add):
        return any(not term.is_Rational and term.as_coeff_Mul()[0] < 0 for term in part.args)
    if isinstance(part, Boolean):
        return True
    exponent = part.as_base_exp()[1]
    return bool(exponent.as_coeff_Mul()[0] < 0 or (exponent.is_Add and _may_fall(exponent)))


def is_longer(expression: Any, operations: int) -> bool:
    """Whether a formula has more operations than that; quicker than counting those of a very long one."""
    found = 0
    for part in preorder_traversal(expression):
        found += max(1, len(part.args) - 1) if part.args else 0
        if found > operations:
            return True
    return False


def concise(expression: Any) -> Any:
    """Return a formula to be laid out: constants of many digits are rounded up to seven, long parts become ⋯.

    Its size is bounded. It stands for the formula, and is not equal to it.
    """
    return _abridged(rounded(expression), _MOST_OPERATIONS)


def _abridged(expression: Any, operations: int) -> Any:
    """Return `expression` with about as many operations as allowed; the last and the deepest go first."""
    if isinstance(expression, Boolean) or not is_longer(expression, operations):
        return expression
    if operations < 1:
        return ELLIPSIS
    args = expression.args
    if isinstance(expression, _OF_MANY) and len(args) > _MOST_OPERANDS:
        args = (*sorted(args, key=default_sort_key)[:_MOST_OPERANDS], ELLIPSIS)
    share = operations // max(1, sum(bool(arg.args) for arg in args))
    return _joined(expression, [_abridged(arg, share) for arg in args])


def _joined(expression: Any, args: list[Any]) -> Any:
    """Return `expression` of other operands: ⋯ stands once for all that are left out, and for powers of itself."""
    if isinstance(expression, _OF_MANY):
        args = [arg for arg in args if arg != ELLIPSIS] + [ELLIPSIS] * (ELLIPSIS in args)
    if args[0] == ELLIPSIS and isinstance(expression, (*_OF_MANY, Pow)):
        return ELLIPSIS
    return expression.func(*args, **({} if isinstance(expression, Tuple) else {"evaluate": False}))


def _rounded(number: Any) -> Any:
    return Float(str(_divided(number)), _DIGITS)


def _digits(number: Any) -> int:
    return max(len(str(abs(number.p))), len(str(number.q)))


@lru_cache(maxsize=4096)
def latex(expression: Any, *, long_fractions: bool = True) -> str:
    """Return a formula in LaTeX, without math delimiters.

    Without `long_fractions`, part of a long numerator is written behind a fraction.
    """
    ratio = {} if long_fractions else {"long_frac_ratio": 2}
    # Words beside each other are one word in mathematics.
    words = any(len(symbol.name.partition("_")[0]) > 1 for symbol in expression.free_symbols)
    space = {"mul_symbol": r"\,"} if words else {}
    expression = normal(expression)
    return str(_Latex({**_order(expression), **ratio, **space}).doprint(expression))


def of_any_weights(lipschitz: float) -> str:
    """Say what constant a network has whatever its weights are; infinite where clips leave them free."""
    return f"of any weights {upward(lipschitz)}" if isfinite(lipschitz) else "of any weights none: they are free"


def up(number: float | None, digits: int = 7) -> str:
    """Return a number rounded up, or a dash where it is unknown."""
    return UNKNOWN if number is None else upward(number, digits)


def rough(number: float | None) -> str:
    """Return a number to three digits, or to a whole number: for the eye, not a bound."""
    if number is None or not isfinite(number):
        return UNKNOWN
    return f"{number:,.0f}" if _LEAST_WHOLE <= number < _LARGEST_FIXED else f"{number:.3g}"


def about(number: float) -> str:
    """Return a number to two digits: for what is measured, and differs from machine to machine in the others."""
    return f"{float(f'{number:.2g}'):,g}"


def times(gain: float | None) -> str:
    """Return a factor to three decimals, so that one of no effect is `1.000`."""
    return UNKNOWN if gain is None else f"{gain:.3f}" if gain < 1000 else f"{gain:.3g}"


def percent(share: float | None) -> str:
    """Return a share between 0 and 1 in per cent, to two digits: for the eye, not a bound."""
    if share is None:
        return UNKNOWN
    if 0 < share < 0.001:
        return "<0.1%"
    return f"{100 * share:.0f}%" if share >= 0.0995 else f"{100 * share:.1f}%"


def count(number: Scalar | int) -> str:
    """Return an integer with thousands set apart: `1,234,567`; an open number as an expression, multiplied out."""
    if isinstance(number, int | Fraction):
        return f"{int(number):,}"
    return text(expand(Symbolic().of(number).expression))


def dimensions(shape: tuple[int, ...], copies: Scalar = ONE) -> str:
    """Return a shape as `64×32×3×3`, that of several tensors as `depth × 64×32`; that of a number is `()`."""
    several = "" if copies == 1 else f"{scalar_text(copies)} × "
    return several + ("×".join(map(str, shape)) or "()")
