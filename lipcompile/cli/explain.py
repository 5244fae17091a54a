"""`lipcompile explain`."""

from __future__ import annotations

import difflib
import sys
import textwrap
from collections.abc import Iterator

import click
from rich.console import RenderableType
from rich.text import Text

from lipcompile.codes import Code, codes
from lipcompile.diagnostics import input_error
from lipcompile.reports.console import BAD, GOOD, STRONG, show, styled, table

KINDS = {
    "never": "no such model can be trained with a bound for each example",
    "not yet": "a bound may exist, but the compiler has no rule for it yet",
    "replace by": "a similar model can be trained",
    "usage": "the input or the command has to be fixed",
}


@click.command(short_help="Explain a diagnostic code.")
@click.argument("code", required=False)
def explain(code: str | None) -> int:
    """Explain the diagnostic CODE, with a wrong and a right example. Without CODE, list all codes.

    \b
    Example:
      lipcompile explain LIP101
    """
    if code is not None:
        show(sys.stdout, *_explanation(_find(code)))
        return 0
    rows = table("code", "meaning", "kind")
    for entry in codes().values():
        rows.add_row(entry.code, entry.title, entry.kind)
    show(sys.stdout, rows)
    return 0


def _find(name: str) -> Code:
    wanted = name.upper() if name.upper().startswith("LIP") else f"LIP{name.upper()}"
    if wanted in codes():
        return codes()[wanted]
    near = difflib.get_close_matches(wanted, list(codes()), n=1, cutoff=0)
    raise input_error("LIP005", f"there is no code `{name}`", f"did you mean `{near[0]}`?")


def _explanation(entry: Code) -> Iterator[RenderableType]:
    yield styled((f"{entry.code}: {entry.title}", STRONG))
    yield styled(f"{entry.kind}: {KINDS[entry.kind]}")
    yield Text("")
    yield Text(entry.why.strip())
    for label, style, example in (("wrong", BAD, entry.wrong), ("right", GOOD, entry.right)):
        yield Text("")
        yield styled((label, style))
        yield Text(textwrap.indent(example.strip(), "    "))
    if entry.command:
        yield Text("")
        yield styled("fix: ", (entry.command, STRONG))
