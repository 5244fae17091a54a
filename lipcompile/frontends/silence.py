"""Libraries kept quiet: what they say of themselves is no concern of who asks for a bound."""

from __future__ import annotations

import io
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress


@contextmanager
def silence() -> Iterator[None]:
    """Drop warnings, log records and prints of this process's Python code."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


@contextmanager
def silence_native() -> Iterator[None]:
    """Drop what compiled code writes to stdout and stderr as well, for the whole process."""
    with ExitStack() as stack:
        stack.enter_context(silence())
        for descriptor in (1, 2):
            with suppress(OSError):  # closed: nothing is written there
                _to_nothing(descriptor, stack)
        yield


def _to_nothing(descriptor: int, stack: ExitStack) -> None:
    for stream in (sys.__stdout__, sys.__stderr__):
        if stream is not None:
            stream.flush()
    kept = os.dup(descriptor)
    stack.callback(os.close, kept)
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, descriptor)
    os.close(nothing)
    stack.callback(os.dup2, kept, descriptor)


@contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """Let the user's own code print where it does not mix with a machine format."""
    with redirect_stdout(sys.stderr):
        yield
