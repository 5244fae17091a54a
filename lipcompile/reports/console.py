"""Where text goes: colour and wrapping on a terminal alone; elsewhere lines as long as they are, and no colour."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import TextIO

from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

# Wider than any line that a report writes, so that nothing is wrapped or cut off outside a terminal.
_UNLIMITED = 1_000_000

GOOD, BAD, CAUTION, HINT, STRONG = "green", "bold red", "bold yellow", "cyan", "bold"


def show(stream: TextIO, *parts: RenderableType) -> None:
    """Write renderables to `stream`, one below the other."""
    if stream.isatty():
        console = Console(file=stream, markup=False, emoji=False, highlight=False)
        for part in parts:
            console.print(part)
        return
    stream.write(plain(*parts))


def plain(*parts: RenderableType) -> str:
    """Return renderables as text without colour, line breaks of the layout's making, or trailing spaces."""
    buffer = io.StringIO()
    console = Console(
        file=buffer,
        width=_UNLIMITED,
        force_terminal=False,
        color_system=None,
        markup=False,
        emoji=False,
        highlight=False,
        legacy_windows=False,
    )
    for part in parts:
        inner, indent = (part.renderable, part.left) if isinstance(part, Padding) else (part, 0)
        if isinstance(inner, Table):
            buffer.writelines(_aligned(inner, " " * indent))
        else:
            console.print(part, soft_wrap=isinstance(part, Text))
    return "".join(f"{line.rstrip()}\n" for line in buffer.getvalue().splitlines())


def _aligned(rows: Table, indent: str) -> Iterator[str]:
    """Yield the lines of a table, laid out as rich does it where nothing wraps, in a tenth of its time."""
    columns = [
        [str(cell) for cell in ((column.header, *column.cells) if rows.show_header else column.cells)]
        for column in rows.columns
    ]
    widths = [max(map(cell_len, cells), default=0) for cells in columns]
    left = [column.justify != "right" for column in rows.columns]
    for line in zip(*columns, strict=True):
        padded = [
            cell + " " * (width - cell_len(cell)) if at_left else " " * (width - cell_len(cell)) + cell
            for cell, width, at_left in zip(line, widths, left, strict=True)
        ]
        yield f"{indent}{'  '.join(padded)}\n"


def table(*columns: str, right: tuple[str, ...] = ()) -> Table:
    """Return an empty table without rules; columns named in `right` hold numbers, which are never parted."""
    made = Table(box=None, padding=(0, 2, 0, 0), header_style=STRONG, show_header=any(columns))
    for column in columns:
        number = column in right
        made.add_column(column, justify="right" if number else "left", overflow="fold", no_wrap=number)
    return made


def printable(text: str) -> str:
    """Return `text` with what a terminal might obey, or cannot show, written as an escape sequence."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def styled(*pieces: str | tuple[str, str]) -> Text:
    """Return a line of pieces, each a text or (text, style)."""
    return Text.assemble(*pieces)
