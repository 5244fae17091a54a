"""Diagnostics as data: where, what, why and the fix. Renderings live in `lipcompile.reports`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """How much a diagnostic matters: an error means that the model is rejected."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Location:
    """A place in a source: 1-based line and column of a text, or a file alone for a binary model."""

    file: str
    line: int | None = None
    column: int | None = None
    length: int = 1


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One finding. `code` is a key of `lipcompile.codes.CODES`.

    model: how a command line names the model, if that is not the file that `location` is in.
    """

    code: str
    message: str
    help: str = ""
    severity: Severity = Severity.ERROR
    node: str | None = None
    op: str | None = None
    location: Location | None = None
    path: tuple[str, ...] = ()
    model: str = ""


class Refusal(Exception):  # noqa: N818
    """Raised by a rule that cannot vouch for a node; the driver turns it into a `Diagnostic`."""

    def __init__(self, code: str, message: str, help: str = "") -> None:  # noqa: A002
        super().__init__(message)
        self.code, self.message, self.help = code, message, help


class InputError(Exception):
    """The source is not a model at all (missing, truncated, ill-formed): exit code 2.

    Carries every diagnostic found before the front end had to stop, and the source text where there is one.
    """

    def __init__(self, diagnostics: tuple[Diagnostic, ...], source: str | None = None) -> None:
        errors = [d for d in diagnostics if d.severity == Severity.ERROR] or diagnostics
        super().__init__("\n".join(dict.fromkeys(map(told, errors))))
        self.diagnostics, self.source = diagnostics, source


def told(found: Diagnostic, *, with_code: bool = True) -> str:
    """Return a finding as a line, and its fix as another; equal for what one fix repairs everywhere."""
    line = f"{found.message} [{found.code}]" if with_code else found.message
    return line + (f"\n  help: {found.help}" if found.help else "")


def input_error(code: str, message: str, help: str = "", location: Location | None = None) -> InputError:  # noqa: A002
    """Make an `InputError` of one diagnostic."""
    return InputError((Diagnostic(code, message, help, location=location),))
