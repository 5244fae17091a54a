"""The report as Markdown, in the dialect of GitHub and GitLab: tables, and formulas between $` and `$."""

from __future__ import annotations

import re
from typing import Any

from lipcompile.reports.document import Document
from lipcompile.reports.formulas import latex
from lipcompile.reports.long_formulas import Pieces
from lipcompile.reports.templating import Language, fill

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~$&])")
_PLAIN_NAME = re.compile(r"[^`|]+")


def render(document: Document) -> str:
    """Return the text of a Markdown file."""
    lines = "\n".join(line.rstrip() for line in fill(_LANGUAGE, document).splitlines())
    return re.sub(r"\n{3,}", "\n\n", lines).strip() + "\n"


def escape(text: str) -> str:
    """Return text of which Markdown takes no character for markup, inside tables or outside."""
    return _SPECIAL.sub(r"\\\1", text)


def _name(name: str) -> str:
    return f"`{name}`" if _PLAIN_NAME.fullmatch(name) else escape(name)


def _entry(number: int, formula: Pieces) -> list[str]:
    parts = [(_math(name), _math(part)) for name, part in formula.parts]
    lines = [f"{name} &= {part}" for name, part in ((rf"\mathrm{{F{number}}}", _math(formula.whole)), *parts)]
    return [
        "```math",
        r"\begin{aligned}",
        *(rf"{line} \\" for line in lines[:-1]),
        lines[-1],
        r"\end{aligned}",
        "```",
    ]


def _math(expression: Any) -> str:
    # A pipe would end a cell.
    return latex(expression).replace("|", r"\vert ")


_LANGUAGE = Language(
    template="report.md.jinja",
    escape=escape,
    name=_name,
    formula=lambda expression: f"$`{_math(expression)}`$",
    at_most=lambda formula, number: f"{formula} ≤ {number}",
    reference=lambda number: f"[F{number}](#f{number})",
    entry=_entry,
)
