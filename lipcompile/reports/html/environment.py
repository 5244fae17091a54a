"""Templates of pages. Whatever they write is escaped, except markup that this package made."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from sympy import Symbol

from lipcompile.numbers import text as scalar_text
from lipcompile.reports.console import printable
from lipcompile.reports.formulas import concise, count, dimensions, round_up
from lipcompile.reports.mathml import mathml

_UNKNOWN = "\N{EN DASH}"


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
    own = {"count": count, "dimensions": dimensions, "exact": scalar_text, "math": math}
    made.filters |= {**own, "percent": percent, "symbol": symbol, "up": up}
    return made


def _shown(value: Any) -> Any:
    """Write what cannot be shown as an escape sequence: names of files may hold anything."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def math(expression: Any) -> Markup:
    """Return a formula as MathML of bounded size."""
    return Markup(mathml(concise(expression)))


def symbol(name: str) -> Markup:
    """Return a name that formulas use as MathML."""
    return Markup(mathml(Symbol(name)))


def up(number: float | None, digits: int = 7) -> str:
    """Return a number rounded up, or a dash where it is unknown."""
    return _UNKNOWN if number is None else round_up(number, digits)


def percent(share: float | None) -> str:
    """Return a share between 0 and 1 in per cent, to two digits: for the eye, not a bound."""
    if share is None:
        return _UNKNOWN
    if 0 < share < 0.001:
        return "<0.1%"
    return f"{100 * share:.0f}%" if share >= 0.0995 else f"{100 * share:.1f}%"
