"""What is wrong with a file of data, in the words of diagnostics."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lipcompile.diagnostics import input_error


@contextmanager
def reading(path: Path, data_error: type[Exception]) -> Iterator[None]:
    """Raise InputError (LIP402, LIP403) for a file that cannot be read, or that holds no such data.

    `data_error` is the backend's; what is no array file at all caused it.
    """
    try:
        yield
    except OSError as error:
        raise input_error("LIP402", f"`{path}` cannot be read: {error.strerror or error}") from None
    except data_error as error:
        raise input_error("LIP402" if error.__cause__ else "LIP403", str(error)) from None
