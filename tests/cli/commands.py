"""Commands, as users type them."""

from __future__ import annotations

import shlex

from lipcompile import __main__


def run(command: str) -> int:
    """Run a command, without its first word; returns the exit code."""
    return __main__.run(shlex.split(command))
