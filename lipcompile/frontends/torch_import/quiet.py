"""Libraries kept quiet: what torch and its exporter say of themselves is no concern of who asks for a bound."""

from __future__ import annotations

import io
import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout


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
def stdout_to_stderr() -> Iterator[None]:
    """Let the user's own code print where it does not mix with a machine format."""
    with redirect_stdout(sys.stderr):
        yield
