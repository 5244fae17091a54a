"""Templates of pages. Whatever they write is escaped, except markup that this package made."""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from sympy import Eq, Symbol

from lipcompile.numbers import Scalar
from lipcompile.numbers import text as scalar_text
from lipcompile.numbers.symbolic import Symbolic
from lipcompile.reports import wording
from lipcompile.reports.console import printable
from lipcompile.reports.formulas import ELLIPSIS, count, dimensions, percent, rough, times, up
from lipcompile.reports.long_formulas import pieces
from lipcompile.reports.mathml import mathml

_JOINT = re.compile("([._])")
_CODE = re.compile("`([^`]+)`")


@lru_cache(maxsize=1)
def environment() -> Environment:
    """Return the templates of this package."""
    made = templates(autoescape=True, finalize=_shown)
    filters = (abridged, count, dimensions, math, name, percent, prose, rough, symbol, times, up)
    made.globals["wording"] = wording
    made.filters |= {function.__name__: function for function in filters}
    made.filters["quantity"] = lambda scalar: quantity(scalar, math)
    return made


def templates(**settings: Any) -> Environment:
    """Return the templates of all documents; `settings` are those of jinja2 in which languages differ."""
    loader = PackageLoader("lipcompile.reports")
    return Environment(loader=loader, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, **settings)


def _shown(value: Any) -> Any:
    """Write what cannot be shown as an escape sequence: names of files may hold anything."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def math(expression: Any) -> Markup:
    """Return a formula as MathML of bounded size, and below it the parts of a long one that have names."""
    found = pieces(expression)
    parts = (mathml(Eq(name, part, evaluate=False)) for name, part in found.parts)
    return Markup(mathml(found.whole)) + Markup("").join(
        Markup(f'<span class="part">{part}</span>') for part in parts
    )


def quantity(scalar: Scalar, math: Callable[[Any], str]) -> str:
    """Return a number of the model as people write it, or an expression over its symbols by `math`."""
    if isinstance(scalar, Fraction):
        return count(scalar) if scalar.denominator == 1 else scalar_text(scalar)
    return math(Symbolic().of(scalar).expression)


def abridged(expression: Any) -> bool:
    """Whether a formula is too long to be shown in full."""
    found = pieces(expression)
    return any(ELLIPSIS in formula.free_symbols for formula in (found.whole, *dict(found.parts).values()))


def name(text: str) -> Markup:
    """Return the name of a layer or a parameter; a line may end behind its dots and underscores."""
    return Markup(_JOINT.sub(r"\1<wbr>", str(escape(printable(text)))))


def prose(text: str) -> Markup:
    """Return a sentence as markup: what stands between backticks is code."""
    return Markup(_CODE.sub(r"<code>\1</code>", str(escape(printable(text)))))


def symbol(name: str) -> Markup:
    """Return a name that formulas use as MathML."""
    return Markup(mathml(Symbol(name)))
