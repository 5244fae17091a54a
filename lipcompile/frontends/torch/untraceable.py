"""What is raised where a module has no graph."""

from __future__ import annotations

from lipcompile.diagnostics import Diagnostic, Location


class Untraceable(Exception):  # noqa: N818
    """The module cannot be written as a graph; `diagnostic` says why."""

    def __init__(self, diagnostic: Diagnostic) -> None:
        super().__init__(diagnostic.message)
        self.diagnostic = diagnostic


def untraceable(code: str, message: str, help_line: str, location: Location | None) -> Untraceable:
    """Make an `Untraceable` of one diagnostic."""
    return Untraceable(Diagnostic(code, message, help_line, location=location))
