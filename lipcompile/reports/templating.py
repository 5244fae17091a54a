"""Templates of documents: what they write is escaped, except markup that is made here, or text that is `Raw`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from sympy import Eq, Symbol

from lipcompile.core.derivation import Bound, Depth
from lipcompile.numbers import Scalar
from lipcompile.numbers import text as scalar_text
from lipcompile.numbers.symbolic import Symbolic
from lipcompile.reports import wording
from lipcompile.reports.console import printable
from lipcompile.reports.document import PRIVACY_HINT, Document, Rows
from lipcompile.reports.formulas import ELLIPSIS, count, dimensions, percent, rough, times, up
from lipcompile.reports.long_formulas import NumberedFormulas, Pieces, is_short, pieces
from lipcompile.reports.mathml import broken, mathml
from lipcompile.reports.messages import findings
from lipcompile.version import __version__

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
    made.filters["grows"] = lambda depth: Markup(grows(depth, math, lambda words: str(escape(words))))
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
    parts = (broken(Eq(name, part, evaluate=False)) for name, part in found.parts)
    return Markup(mathml(found.whole) if is_short(found.whole) else broken(found.whole)) + Markup("").join(
        Markup(f'<span class="part">{part}</span>') for part in parts
    )


def quantity(scalar: Scalar, math: Callable[[Any], str]) -> str:
    """Return a number of the model as people write it, or an expression over its symbols by `math`."""
    if isinstance(scalar, Fraction):
        return count(scalar) if scalar.denominator == 1 else scalar_text(scalar)
    return math(Symbolic().of(scalar).expression)


def grows(depth: Depth, math: Callable[[Any], str], escape: Callable[[str], str]) -> str:
    """Return the order of growth with its formulas by `math`: `O(√T)`, by cases if need be."""
    cases = (
        f"O({math(case.order)}){f' if {escape(case.condition)}' if case.condition else ''}"
        for case in depth.growth_cases
    )
    return ", ".join(cases) + escape(depth.growth_where)


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


# Documents that are no HTML

# So many names of a list are written.
_MOST_NAMES = 12
# So many parameters of a block have their formulas.
_MOST_GRADIENTS = 24
# So many parts that repeat without a closed form are told of.
_MOST_UNSOLVED = 8


class Raw(str):
    """Text in the language of the document, which is written as it is."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Language:
    """How a language writes what is not its own.

    escape: any text. name: that of a layer or parameter. formula: a short one, in a line. at_most: a formula and
    its number. reference: to a long formula by its number. entry: a long formula with its number, in lines.
    syntax: of the template, as jinja2 calls it.
    """

    template: str
    escape: Callable[[str], str]
    name: Callable[[str], str]
    formula: Callable[[Any], str]
    at_most: Callable[[str, str], str]
    reference: Callable[[int], str]
    entry: Callable[[int, Pieces], list[str]]
    syntax: Mapping[str, Any] = field(default_factory=dict)


def fill(language: Language, document: Document) -> str:
    """Return the text of the document; names in its sentences stand between backticks."""
    book = NumberedFormulas()
    environment = templates(
        autoescape=False,
        finalize=lambda value: value if isinstance(value, Raw) else _prose(printable(str(value)), language),
        **language.syntax,
    )
    environment.filters |= {**_filters(language), **_formulas(language, book)}
    return environment.get_template(language.template).render(
        book=book,
        document=document,
        findings=list(findings(document.diagnostics.shown, document.derivation.source)),
        most_gradients=_MOST_GRADIENTS,
        privacy_hint=PRIVACY_HINT,
        unsolved=_MOST_UNSOLVED,
        version=__version__,
        wording=wording,
    )


def _filters(language: Language) -> dict[str, Callable[..., str]]:
    return {
        "about_copies": lambda rows: wording.COPIES if any(row.copies > 1 for row in rows) else "",
        "copies": lambda number: f" × {count(number)}" if number > 1 else "",
        "count": count,
        "dimensions": dimensions,
        "left_out": _left_out,
        "name": lambda name: Raw(language.name(printable(name))),
        "percent": percent,
        "plain": lambda number: f"{number:.6g}",
        "rough": rough,
        "several": lambda names: _several(names, language),
        "times": times,
        "up": up,
    }


def _formulas(language: Language, book: NumberedFormulas) -> dict[str, Callable[..., Any]]:
    def math(expression: Any) -> Raw:
        number = book.number(expression)
        found = language.formula(pieces(expression).whole) if number is None else language.reference(number)
        return Raw(found)

    def bound(found: Bound) -> Raw:
        formula = math(found.expression)
        tells = found.value is not None and not found.expression.is_Integer
        return Raw(language.at_most(formula, up(found.value))) if tells else formula

    return {
        "bound": bound,
        "entry": lambda found, number: [Raw(line) for line in language.entry(number, found)],
        "grows": lambda depth: Raw(grows(depth, math, language.escape)),
        "math": math,
        "quantity": lambda scalar: quantity(scalar, math),
        "symbol": lambda name: Raw(language.formula(Symbol(name))),
    }


def _prose(text: str, language: Language) -> str:
    """Escape a text; names in it stand at odd places between backticks."""
    parts = text.split("`")
    if len(parts) % 2 == 0:  # one backtick has no partner
        return language.escape(text)
    return "".join(language.name(part) if i % 2 else language.escape(part) for i, part in enumerate(parts))


def _left_out(rows: Rows[Any], what: str) -> str:
    return f"{count(rows.left_out)} more {what} are not shown; the JSON report has all." if rows.left_out else ""


def _several(names: Sequence[str], language: Language) -> Raw:
    more = len(names) - _MOST_NAMES
    shown = ", ".join(map(language.name, names[:_MOST_NAMES]))
    return Raw(f"{shown} and {count(more)} more" if more > 0 else shown)
