"""Diagnostics for people: message, place, line with a caret, path, help; as data for pages; the fix of a word."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import Any

from rich.cells import cell_len
from rich.console import RenderableType
from rich.text import Text

from lipcompile.codes import codes
from lipcompile.core.derivation import Source
from lipcompile.diagnostics import Diagnostic, Location, Severity
from lipcompile.ops.schema import suggest, suggested
from lipcompile.reports.console import BAD, CAUTION, HINT, STRONG, printable, styled

_STYLES = {Severity.ERROR: BAD, Severity.WARNING: CAUTION, Severity.NOTE: HINT}
# A longer line of a source is shown around its caret only.
_WIDEST = 120
_TAB = "    "
# Warnings that tell a number of each weight: a deep model has one for each.
_MEASURED = frozenset(("LIP305", "LIP309"))

# The text of a file, None where there is none (a binary model, a file that is gone).
Sources = Callable[[str], str | None]
# Its lines, without their ends.
Lines = Callable[[str], Sequence[str]]


def messages(diagnostics: Sequence[Diagnostic], sources: Sources) -> Iterator[RenderableType]:
    """Yield the lines of every diagnostic, those alike once, and how to learn more about the codes of errors."""
    lines = lines_of(sources)
    for index, (found, *others) in enumerate(alike(diagnostics)):
        if index:
            yield Text("")
        yield from _message(found, lines)
        if others:
            yield styled((f"{_margin(found.location)} = ", HINT), _more(others))
    codes = list(dict.fromkeys(d.code for d in diagnostics if d.severity == Severity.ERROR))
    if codes:
        more = " (or another code above)" if len(codes) > 1 else ""
        yield Text("")
        yield styled("for more, run ", (f"lipcompile explain {codes[0]}", STRONG), more)


def lines_of(sources: Sources) -> Lines:
    """Return what gives the lines of a file; each file is read once."""

    @cache
    def lines(file: str) -> Sequence[str]:
        text = sources(file)
        return [] if text is None else [line.rstrip("\r") for line in text.split("\n")]

    return lines


def line_at(location: Location, lines: Lines) -> str | None:
    """Return the line that a location is in, None where there is none."""
    if location.line is None:
        return None
    found = lines(location.file)
    return found[location.line - 1] if location.line <= len(found) else None


def command(found: Diagnostic, file: str = "MODEL") -> str:
    """Return the command that fixes a finding, in `file` unless it says where it is; empty if there is none."""
    place = file if found.location is None else found.location.file
    if place.endswith(".py") and not found.model:  # the code of a module in memory: no command takes it
        return ""
    text = codes()[found.code].command
    if found.model:
        return text.replace("MODEL", found.model).replace("FILE", "fixed.onnx")
    return text.replace("MODEL", place if place == "MODEL" else shlex.quote(place))


def alike(diagnostics: Sequence[Diagnostic]) -> list[list[Diagnostic]]:
    """Return the diagnostics in groups that differ in their node alone, in the order of the first of each.

    Alike are those of one place in a source: of the copies of a repeated layer. In a model without lines so are
    warnings and notes of one kind; errors are fixed one by one, so each is told.
    """
    groups: dict[object, list[Diagnostic]] = {}
    for index, found in enumerate(diagnostics):
        told = found.severity == Severity.ERROR and (found.location is None or found.location.line is None)
        message = found.message.replace(f"`{found.node}`", "")
        of_node = () if found.code in _MEASURED else (found.op, message)
        key = index if told else (found.code, found.severity, found.location, found.help, *of_node)
        groups.setdefault(key, []).append(found)
    return list(groups.values())


def _more(others: Sequence[Diagnostic]) -> str:
    ends = dict.fromkeys(found.node for found in (others[0], others[-1]))
    names = " to ".join(f"`{printable(name)}`" for name in ends if name is not None)
    return f"and {len(others)} more like it{', ' if names else ''}{names}"


def _message(found: Diagnostic, lines: Lines) -> Iterator[Text]:
    head = f"{found.severity.value}[{found.code}]"
    yield styled((head, _STYLES[found.severity]), (f": {printable(found.message)}", STRONG))
    margin = _margin(found.location)
    if found.location is not None:
        yield styled((f"{margin}--> ", HINT), _place(found, found.location))
        yield from _snippet(found, found.location, lines, margin)
    elif found.node is not None:
        yield styled((f"{margin}--> ", HINT), _node(found))
    if found.path:
        yield styled((f"{margin} = ", HINT), "path: ", printable(" → ".join([*found.path, found.node or "…"])))
    if found.help:
        yield styled((f"{margin} = ", HINT), ("help", STRONG), f": {printable(found.help)}")
    if run := command(found):
        yield styled((f"{margin} = ", HINT), ("run", STRONG), f" {printable(run)}")


def _margin(location: Location | None) -> str:
    return " " * len(str(location.line if location and location.line else 1))


def _place(found: Diagnostic, location: Location) -> str:
    if location.line is None:
        return f"{printable(location.file)}: {_node(found)}" if found.node else printable(location.file)
    column = f":{location.column}" if location.column else ""
    return f"{printable(location.file)}:{location.line}{column}"


def _node(found: Diagnostic) -> str:
    op = f" ({printable(found.op)})" if found.op else ""
    return f"node `{printable(found.node or '')}`{op}"


def _snippet(found: Diagnostic, location: Location, lines: Lines, margin: str) -> Iterator[Text]:
    line = line_at(location, lines)
    if line is None or location.line is None:
        return
    shown, before, width = _window(line, (location.column or 1) - 1, location.length)
    yield styled((f"{margin} |", HINT))
    yield styled((f"{location.line} | ", HINT), shown)
    if location.column:
        yield styled((f"{margin} | ", HINT), " " * before, ("^" * width, _STYLES[found.severity]))
    yield styled((f"{margin} |", HINT))


def _window(line: str, column: int, length: int) -> tuple[str, int, int]:
    """Return the part of a line to show, the cells before its caret, and the cells that the caret underlines."""
    start = max(0, column - _WIDEST // 2) if len(line) > _WIDEST else 0
    cells = [_TAB if c == "\t" else printable(c) for c in line[start : start + _WIDEST]]
    lead = "…" if start else ""
    tail = "…" if start + _WIDEST < len(line) else ""
    places = [len(lead), *accumulate(map(cell_len, cells), initial=0)][1:]
    places = [place + len(lead) for place in places]
    first = min(column - start, len(cells))
    last = min(first + max(length, 1), len(cells))
    return f"{lead}{''.join(cells)}{tail}", places[first], max(1, places[last] - places[first])


# For pages

# Of a long line so many characters are shown on either side of what is pointed at.
_AROUND = 60


def findings(diagnostics: Iterable[Diagnostic], source: Source) -> Iterator[dict[str, Any]]:
    """Yield diagnostics for a page, errors first, those that are alike together, every part as text by its name.

    What there is not is empty. snippet: of the source of the model alone, the number of a line, and the part that
    is pointed at between the two others; None without one.
    """
    lines = source.text.split("\n") if source.text is not None else []
    groups = sorted(alike(list(diagnostics)), key=lambda group: group[0].severity != Severity.ERROR)
    for found, *others in groups:
        own = found.location is not None and found.location.file == source.path
        yield {
            "severity": found.severity.value,
            "code": found.code,
            "message": found.message,
            "help": found.help,
            "place": _place_in_words(found),
            "path": " → ".join([*found.path, found.node or "…"]) if found.path else "",
            "snippet": _marked_line(found.location, lines) if own else None,
            "more": _more(others) if others else "",
        }


def _place_in_words(found: Diagnostic) -> str:
    op = f" ({found.op})" if found.op else ""
    node = f"node {found.node}{op}" if found.node else ""
    at = found.location
    if at is None:
        return node
    parts = [at.file, *(str(number) for number in (at.line, at.column) if number is not None)]
    return ", ".join(part for part in (":".join(parts), node) if part)


def _marked_line(at: Location | None, lines: list[str]) -> dict[str, Any] | None:
    if at is None or at.line is None or at.column is None or at.line > len(lines):
        return None
    line, start = lines[at.line - 1].rstrip("\r"), at.column - 1
    stop = start + max(1, at.length)
    before = line[:start] if start <= _AROUND else f"…{line[start - _AROUND : start]}"
    after = line[stop:] if len(line) - stop <= _AROUND else f"{line[stop : stop + _AROUND]}…"
    # Something is marked at the end of a line too, where there is nothing.
    return {"line": at.line, "before": before, "marked": line[start:stop] or " ", "after": after}


# For editors and SARIF

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
