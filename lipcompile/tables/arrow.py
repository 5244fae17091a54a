"""pyarrow, when it is needed; and its failures without the values that its messages quote."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from lipcompile.diagnostics import input_error

# What is wrong with a file, by a part of pyarrow's message: the message itself may quote rows.
_CAUSES = (
    ("columns, got", "its rows have unequal numbers of fields", "quote fields that hold separators or line ends"),
    ("straddling object", "a row is longer than 4 MiB, or a quote is not closed", "look for an unmatched quote"),
    ("UTF8", "it is not UTF-8 text", "save it as UTF-8"),
)


def arrow(part: str = "") -> Any:
    """Return pyarrow, or the part of it of that name, such as `csv`; raises InputError (LIP410)."""
    try:
        return import_module(f"pyarrow.{part}" if part else "pyarrow")
    except ModuleNotFoundError:
        raise input_error("LIP410", "tables need pyarrow", "pip install 'lipcompile[tables]'") from None


@contextmanager
def guarded(place: str) -> Iterator[None]:
    """Raise InputError (LIP410) for a source that pyarrow cannot read, without what it says of the rows."""
    lib = arrow("lib")
    try:
        yield
    except OSError as error:
        cause = f"cannot be read: {error.strerror}" if error.strerror else "is damaged or of another format"
        raise input_error("LIP410", f"{place} {cause}") from None
    except lib.ArrowException as error:
        for part, cause, help_line in _CAUSES:
            if part in str(error):
                raise input_error("LIP410", f"{place} cannot be read: {cause}", help_line) from None
        raise input_error("LIP410", f"{place} is damaged or of another format", "write it anew") from None
