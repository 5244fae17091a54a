"""`lipcompile lsp`."""

from __future__ import annotations

import os
import sys
from contextlib import redirect_stdout

import click

from lipcompile.diagnostics import input_error


@click.command(short_help="Run the language server for editors, on stdio.")
@click.option("--stdio", is_flag=True, expose_value=False, help="No effect: editors pass it by convention.")
def lsp() -> int:
    """Run the language server for .lip files on stdin and stdout, until the editor ends it.

    It tells an editor the diagnostics of `check`, the bounds of a layer, completions, definitions, the layout of
    `format` and quick fixes. It needs the extra `editor`: pip install 'lipcompile[editor]'.

    \b
    Example:
      lipcompile lsp
    """
    try:
        from lipcompile.editor.server import server
    except ModuleNotFoundError as error:
        if error.name not in ("pygls", "lsprotocol"):
            raise
        raise input_error(
            "LIP008", "the language server needs pygls", "pip install 'lipcompile[editor]'"
        ) from None
    # The server closes what it talks over; what anything else prints must not get in between.
    with redirect_stdout(sys.stderr):
        server.start_io(os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb"))  # type: ignore[arg-type]
    return 0
