"""The command line's entry: exit codes, and failures without tracebacks.

0 all requirements hold; 1 the model is rejected; 2 unusable input or usage; 3 an unexpected failure; 130
interrupted; 141 whoever read the output has gone.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import click

from lipcompile.cli import cli
from lipcompile.cli.shared.output import complain
from lipcompile.diagnostics import InputError

REJECTED, UNUSABLE, UNEXPECTED, INTERRUPTED, BROKEN_PIPE = 1, 2, 3, 130, 141


def main() -> None:
    """Run the command line and leave with its exit code."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command; returns the exit code."""
    stdout = sys.stdout
    try:
        code = cli.main(list(arguments), prog_name="lipcompile", standalone_mode=False)
        sys.stdout.flush()
    except SystemExit as end:  # click leaves so when a pipe breaks, having muted stdout, and after a completion
        return int(end.code or 0) if sys.stdout is stdout else _pipe_broke()
    except BrokenPipeError:
        return _pipe_broke()
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except click.ClickException as error:
        error.show()
        return UNUSABLE
    except InputError as error:
        complain(error.diagnostics)
        return UNUSABLE
    except OSError as error:
        click.echo(f"error: {_reason(error)}", err=True)
        return UNUSABLE
    except MemoryError:
        click.echo("error: there is not enough memory for this model", err=True)
        return UNUSABLE
    except Exception as error:
        return _unexpected(error)
    return int(code or 0)


def _pipe_broke() -> int:
    # What is still in the buffer has nowhere to go; the interpreter would complain of it at its end.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return BROKEN_PIPE


def _reason(error: OSError) -> str:
    place = f"{error.filename}: " if error.filename else ""
    return f"{place}{error.strerror or error}"


def _unexpected(error: Exception) -> int:
    if os.environ.get("LIPCOMPILE_DEBUG") == "1":
        import traceback

        traceback.print_exception(error)
    summary = f"{type(error).__name__}: {error}".splitlines()[0][:200]
    click.echo(f"lipcompile failed unexpectedly: {summary}", err=True)
    click.echo(
        "This is a bug: please report it, with what LIPCOMPILE_DEBUG=1 adds to this message and what "
        "`lipcompile env` prints.",
        err=True,
    )
    return UNEXPECTED


if __name__ == "__main__":
    main()
