"""Templates of pages. Whatever they write is escaped, except markup that this package made."""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from sympy import Symbol

from lipcompile.numbers import Scalar
from lipcompile.numbers import text as scalar_text
from lipcompile.numbers.symbolic import Symbolic
from lipcompile.reports.console import printable
from lipcompile.reports.formulas import concise, count, dimensions, percent, up
from lipcompile.reports.mathml import mathml

_CODE = re.compile("`([^`]+)`")


@lru_cache(maxsize=1)
def environment() -> Environment:
    """Return the templates of this package."""
    made = Environment(
        loader=PackageLoader("lipcompile.reports"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    own = {"count": count, "dimensions": dimensions, "math": math}
    made.filters |= {**own, "percent": percent, "prose": prose, "quantity": quantity, "symbol": symbol, "up": up}
    return made


def _shown(value: Any) -> Any:
    """Write what cannot be shown as an escape sequence: names of files may hold anything."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def math(expression: Any) -> Markup:
    """Return a formula as MathML of bounded size."""
    return Markup(mathml(concise(expression)))


def quantity(scalar: Scalar) -> str:
    """Return a number of the model as people write it, or an expression over its symbols as MathML."""
    if isinstance(scalar, Fraction):
        return count(scalar) if scalar.denominator == 1 else scalar_text(scalar)
    return math(Symbolic().of(scalar).expression)


def prose(text: str) -> Markup:
    """Return a sentence as markup: what stands between backticks is code."""
    return Markup(_CODE.sub(r"<code>\1</code>", str(escape(printable(text)))))


def symbol(name: str) -> Markup:
    """Return a name that formulas use as MathML."""
    return Markup(mathml(Symbol(name)))
