"""Where commands write: diagnostics to stderr, machine formats to stdout, files all at once or not at all."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import RenderableType

from lipcompile.diagnostics import Diagnostic, InputError, input_error
from lipcompile.frontends import files
from lipcompile.reports.console import show


def print_json(value: Any) -> None:
    """Write a value to stdout as JSON, in UTF-8 whatever the terminal's encoding."""
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    click.echo(text.encode("utf-8", "backslashreplace"))


def print_found(form: str, report: Mapping[str, Any], parts: Iterable[RenderableType]) -> None:
    """Write what was found to stdout: a report as JSON, or parts for people, one below the other."""
    if form == "json":
        print_json(report)
        return

    show(sys.stdout, *parts)


def complain(diagnostics: Sequence[Diagnostic]) -> None:
    """Write diagnostics to stderr."""
    from lipcompile.reports.messages import messages

    show(sys.stderr, *messages(diagnostics, source_text))


def serious(diagnostics: Sequence[Diagnostic]) -> list[Diagnostic]:
    """Return the diagnostics without the notes, which are for `check`."""
    return [found for found in diagnostics if found.severity != "note"]


def source_text(file: str) -> str | None:
    """Return the text of a source that a diagnostic points into, None if it cannot be read."""
    try:
        return files.read(Path(file), "text_size").decode("utf-8", errors="replace")
    except (OSError, InputError):
        return None


def refuse_source(model: str, output: Path) -> None:
    """Raise InputError (LIP005) if `output` is the file of the model."""
    source = Path(model.partition("::")[0])
    if source.exists() and output.exists() and source.samefile(output):
        raise input_error("LIP005", f"-o: `{output}` is the model itself", "write to another file")


def write_text(path: Path, text: str) -> None:
    """Write a file such that there is the old one or the new one, never a part; raises OSError, InputError."""
    target = path.resolve()
    if target.exists() and not target.is_file():  # a pipe or a device
        target.write_text(text, encoding="utf-8")
        return
    if not target.parent.is_dir():
        folder = path.parent
        raise input_error("LIP005", f"there is no folder `{folder}` to write in", f"make it: mkdir -p {folder}")
    try:
        with files.beside(target) as temporary:
            temporary.write_text(text, encoding="utf-8")
            temporary.replace(target)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
