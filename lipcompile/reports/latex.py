"""The report as LaTeX, for pdflatex and the packages of a small TeX installation."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

from lipcompile.reports.document import Document
from lipcompile.reports.formulas import latex
from lipcompile.reports.long_formulas import Pieces
from lipcompile.reports.templating import Language, fill

# Brackets and stars mean something behind the end of a row.
_SPECIAL = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "[": "{[}",
    "]": "{]}",
    "*": "{*}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "`": r"\textasciigrave{}",
    '"': r"\textquotedbl{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "‖": r"\(\|\)",
    "≤": r"\(\le\)",
    "≥": r"\(\ge\)",
    "→": r"\(\to\)",
    "√": r"\(\surd\)",
    "∞": r"\(\infty\)",
    "⋯": r"\(\cdots\)",
    "ε": r"\(\varepsilon\)",
    "δ": r"\(\delta\)",
    "σ": r"\(\sigma\)",
    "Σ": r"\(\Sigma\)",
    "–": "--",
    "—": "---",
    "…": r"\dots{}",
}
# What the encoding T1 has of the letters of Latin-1 and Latin Extended-A, and signs beside them.
_LETTERS = re.compile(r"[ -~¡-¬®-ĥĨ-ķĹ-ľŁ-ňŊ-ťŨ-ž]")
# Of these, two in a row may be drawn as one.
_LIGATURES = "-,'!?"
# A line may break behind these, and in a long word anywhere after so many letters.
_BREAKS, _LONGEST_RUN = "/_.", 20


def render(document: Document) -> str:
    """Return the text of a LaTeX file."""
    return fill(_LANGUAGE, document)


def escape(text: str) -> str:
    """Return text such that TeX writes it as it is; what no font of ours has becomes U+ and its number."""
    written: list[str] = []
    run = 0
    for character, following in pairwise(f"{text} "):
        written.append(_character(character))
        run = 0 if character == " " else run + 1
        if (character in _BREAKS and not following.isdigit()) or run == _LONGEST_RUN:
            written.append(r"\B{}")
            run = 0
        elif character in _LIGATURES and following in _LIGATURES:
            written.append("{}")
    return "".join(written)


def _character(character: str) -> str:
    if character in _SPECIAL:
        return _SPECIAL[character]
    return character if _LETTERS.fullmatch(character) else rf"\texttt{{U+{ord(character):04X}}}"


def _entry(number: int, formula: Pieces) -> list[str]:
    """Return a long formula as lines, each of which may be broken."""
    parts = [(_math(name), _math(part)) for name, part in formula.parts]
    lines = [(rf"\mathrm{{F{number}}}", _math(formula.whole)), *parts]
    return [rf"\(\displaystyle {name} = {part}\)" for name, part in lines]


def _math(expression: Any) -> str:
    """Return a formula that may be broken into lines: not between brackets that grow."""
    found = latex(expression, long_fractions=False).replace(", ", r",\B ").replace(r" \left(", r" \B\left(")
    found = found.replace(r"\left(", r"\bigl(").replace(r"\right)", r"\bigr)")
    return re.sub(r"[^\x00-\x7f]+", lambda match: rf"\text{{{escape(match[0])}}}", found)


def _formula(expression: Any) -> str:
    """Return a formula that is broken into lines, or made smaller where it cannot be: a name, a root."""
    found = rf"\({_math(expression)}\)"
    return rf"\fit{{{found}}}" if expression.is_Symbol or r"\sqrt" in found else found


_LANGUAGE = Language(
    template="report.tex.jinja",
    escape=escape,
    name=lambda name: rf"\texttt{{{escape(name)}}}",
    formula=_formula,
    at_most=lambda formula, number: rf"{formula}\newline \(\le\) {number}",
    reference=lambda number: rf"\hyperlink{{F{number}}}{{F{number}}}",
    entry=_entry,
    syntax={
        "block_start_string": "<%",
        "block_end_string": "%>",
        "variable_start_string": "<<",
        "variable_end_string": ">>",
        "comment_start_string": "<#",
        "comment_end_string": "#>",
    },
)
