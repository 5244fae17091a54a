"""Diagnostics as a page shows them: the place in words, and the line of the source around it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from lipcompile.core.derivation import Source
from lipcompile.core.diagnostics import Diagnostic, Location

# Of a long line so many characters are shown on either side of what is pointed at.
_AROUND = 60


@dataclass(frozen=True, slots=True)
class Snippet:
    """A line of a source: its number, and the part that a diagnostic points at between the two others."""

    line: int
    before: str
    marked: str
    after: str


@dataclass(frozen=True, slots=True)
class Finding:
    """A diagnostic, every part of it as text; what there is not is empty."""

    severity: str
    code: str
    message: str
    help: str
    place: str
    path: str
    snippet: Snippet | None


def findings(diagnostics: Iterable[Diagnostic], source: Source) -> Iterator[Finding]:
    """Yield diagnostics for a page; lines are shown of the source of the model alone."""
    lines = source.text.split("\n") if source.text is not None else []
    for found in diagnostics:
        own = found.location is not None and found.location.file == source.path
        yield Finding(
            found.severity.value,
            found.code,
            found.message,
            found.help,
            _place(found),
            " → ".join([*found.path, found.node or "…"]) if found.path else "",
            _snippet(found.location, lines) if own else None,
        )


def _place(found: Diagnostic) -> str:
    op = f" ({found.op})" if found.op else ""
    node = f"node {found.node}{op}" if found.node else ""
    at = found.location
    if at is None:
        return node
    parts = [at.file, *(str(number) for number in (at.line, at.column) if number is not None)]
    return ", ".join(part for part in (":".join(parts), node) if part)


def _snippet(at: Location | None, lines: list[str]) -> Snippet | None:
    if at is None or at.line is None or at.column is None or at.line > len(lines):
        return None
    line, start = lines[at.line - 1].rstrip("\r"), at.column - 1
    stop = start + max(1, at.length)
    before = line[:start] if start <= _AROUND else f"…{line[start - _AROUND : start]}"
    after = line[stop:] if len(line) - stop <= _AROUND else f"{line[stop : stop + _AROUND]}…"
    # Something is marked at the end of a line too, where there is nothing.
    return Snippet(at.line, before, line[start:stop] or " ", after)
