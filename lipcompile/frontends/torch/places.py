"""Exceptions of other people's code, as a line of theirs and a message: never a traceback."""

from __future__ import annotations

import re
import sysconfig
import traceback
from functools import cache
from pathlib import Path

from lipcompile.core.diagnostics import Location

_LIBRARY = re.compile(r"[/\\](?:site|dist)-packages[/\\]")
_LONGEST = 300


def place_of(error: BaseException) -> Location | None:
    """Return the innermost line of the user's own code that an exception passed, None if there is none."""
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return Location(error.filename, error.lineno)
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.lineno and _is_users(frame.filename)]
    return Location(own[-1].filename, own[-1].lineno) if own else None


def _is_users(file: str) -> bool:
    """Whether a file is no part of Python, of an installed package or of this compiler."""
    return not (file.startswith("<") or _LIBRARY.search(file) or _foreign() & {*Path(file).parents})


@cache
def _foreign() -> frozenset[Path]:
    compiler = Path(__file__).parents[2]
    return frozenset((Path(sysconfig.get_path("stdlib")), compiler))


def summary(error: BaseException) -> str:
    """Return the type and the first line of the message of an exception."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    message = f": {lines[0][:_LONGEST]}" if lines else ""
    return f"{type(error).__name__}{message}"
