"""Reading the files of a model: regular ones only, of bounded size. Writing a file all at once or not at all."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lipcompile import limits
from lipcompile.diagnostics import Location

# Opening a pipe must not wait for a writer. Windows has neither.
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)

_CHUNK = 2**20


class IrregularFileError(OSError):
    """A folder, a pipe, a socket or a device in place of a file."""

    def __init__(self, kind: str) -> None:
        super().__init__(None, f"it is a {kind}, not a file")


def read(path: Path, limit: str, used: int = 0) -> bytes:
    """Return the content of a regular file; raises OSError, or InputError (LIP018) above the limit of that name.

    `used` are bytes of other files that count as well.
    """
    most = getattr(limits.current(), limit) - used
    what, at = f"`{path}` and its imported or external files hold", Location(str(path))
    with os.fdopen(_opened(path), "rb") as stream:
        length = os.fstat(stream.fileno()).st_size
        limits.demand(limit, used + length, what, at)
        content = bytearray(stream.read(length + 1))
        while len(content) <= most and (more := stream.read(_CHUNK)):  # of files that do not say their size
            content += more
    limits.demand(limit, used + len(content), what, at)
    return bytes(content)


def read_part(path: Path, offset: int, length: int) -> bytes | None:
    """Return a part of a regular file, None if it has no such part; raises OSError."""
    with os.fdopen(_opened(path), "rb") as stream:
        if offset + length > os.fstat(stream.fileno()).st_size:
            return None
        stream.seek(offset)
        content = stream.read(length)
    return content if len(content) == length else None


def size(path: Path) -> int:
    """Return the size of a regular file; raises OSError."""
    found = path.stat()
    _check(found.st_mode)
    return found.st_size


@contextmanager
def beside(path: Path, *endings: str) -> Iterator[Path]:
    """Yield a name beside a file, for a new one that takes its place by `Path.replace`; else it is removed.

    So are files of the same name with one of these endings behind it.
    """
    temporary = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    try:
        yield temporary
    finally:
        for ending in ("", *endings):
            with suppress(OSError):
                temporary.with_name(f"{temporary.name}{ending}").unlink(missing_ok=True)


def _opened(path: Path) -> int:
    """Open a file if it is a regular one: looked at before, as devices may act on being opened, and after."""
    _check(path.stat().st_mode)
    descriptor = os.open(path, _FLAGS)
    try:
        _check(os.fstat(descriptor).st_mode)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


_KINDS = (
    (stat.S_ISDIR, "folder"),
    (stat.S_ISFIFO, "pipe"),
    (stat.S_ISSOCK, "socket"),
    (stat.S_ISCHR, "device"),
    (stat.S_ISBLK, "device"),
)


def _check(mode: int) -> None:
    kind = next((name for test, name in _KINDS if test(mode)), None)
    if kind is not None:
        raise IrregularFileError(kind)
