"""Diagnostics that a replacement of one word fixes: what SARIF calls a fix, and editors a quick fix."""

from __future__ import annotations

from dataclasses import dataclass

from lipcompile.diagnostics import Diagnostic, Location
from lipcompile.ops.schema import suggest, suggested

# Codes of words that are misspelt. A wrong setting of training is no such: which one is meant is not ours to say.
_OF_WORDS = ("LIP010", "LIP011", "LIP012", "LIP210")


@dataclass(frozen=True, slots=True)
class Replacement:
    """The text to write at a place, and a title for it."""

    at: Location
    text: str
    title: str


def replacement(found: Diagnostic, line: str | None) -> Replacement | None:
    """Return the fix of a misspelt word in a line, where a diagnostic points at one and names the right one."""
    at, near = found.location, suggested(found.help)
    if line is None or at is None or at.column is None or near is None or found.code not in _OF_WORDS:
        return None
    written = line[at.column - 1 : at.column - 1 + at.length]
    if not written.isidentifier() or not suggest(written, [near]):
        return None  # the line points at something else than the misspelt word
    return Replacement(at, near, f"write `{near}` for `{written}`")
