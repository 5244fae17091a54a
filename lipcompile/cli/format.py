"""`lipcompile format`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from lipcompile.cli.shared.output import complain, write_text
from lipcompile.diagnostics import InputError, input_error

UNCHANGED, WOULD_CHANGE, UNUSABLE = 0, 1, 2


@click.command("format", short_help="Lay out .lip files in the standard way.")
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@click.option("--check", "only_check", is_flag=True, help="Write nothing; exit with 1 if a file would change.")
def format_(files: tuple[str, ...], only_check: bool) -> int:
    """Lay out each .lip file in the standard way, in place. `-` reads stdin and writes to stdout.

    Comments and names stay, and so does the model. Formatting a file again does not change it. The exit code is 2
    if a file does not parse; such a file is left as it is.

    \b
    Examples:
      lipcompile format model.lip
      lipcompile format --check model.lip planned.lip
    """
    return max(_format(file, only_check) for file in files)


def _format(file: str, only_check: bool) -> int:
    from lipcompile.editor.formatting import formatted

    try:
        text = sys.stdin.read() if file == "-" else _text(Path(file))
        made = formatted(text, "stdin" if file == "-" else file)
    except InputError as error:
        complain(error.diagnostics)
        return UNUSABLE
    if only_check:
        if made != text:
            click.echo(f"would change {file}", err=True)
        return UNCHANGED if made == text else WOULD_CHANGE
    if file == "-":
        sys.stdout.write(made)
    elif made != text:
        write_text(Path(file), made)
        click.echo(f"changed {file}", err=True)
    return UNCHANGED


def _text(path: Path) -> str:
    """Return the text of a file as it is; raises InputError (LIP001, LIP010) for one that is not text."""
    from lipcompile.frontends import files

    if path.suffix != ".lip":
        raise input_error("LIP001", f"`{path}` is no .lip file", "formatting is for .lip files alone")
    try:
        return files.read(path, "text_size").decode("utf-8")
    except UnicodeDecodeError:
        raise input_error("LIP010", f"`{path}` is not a text file", "a .lip file is UTF-8 text") from None
    except OSError as error:
        raise input_error("LIP001", f"`{path}` cannot be read: {error.strerror}", "check the path") from None
