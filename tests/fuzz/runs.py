"""Running one case in this process, through the entry of the command line, and judging what came of it."""

from __future__ import annotations

import io
import json
import os
import re
import resource
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lipcompile.__main__ import run
from lipcompile.codes import codes
from tests.fuzz.cases import Case

SECONDS = 10
MEGABYTES = 1024
GROWTH = 768  # of them for a case: a new process has the rest, one that ran other tests may have more
PROMISED = (0, 1, 2)
CODE = re.compile(r"\bLIP\d{3}\b")
# A terminal would act on these.
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_FRAME = re.compile(r'File "[^"]*?(\w+/\w+\.py)", line (\d+), in (\w+)')


class OutOfTimeError(BaseException):
    """Raised by the alarm: no `except Exception` on the way takes it."""


@dataclass(frozen=True)
class Outcome:
    """What a run did. `fault` says which promise it broke, the empty string none."""

    number: int
    origin: str
    exit_code: int
    seconds: float
    megabytes: float
    codes: tuple[str, ...]
    fault: str = ""
    output: str = ""


def limit_memory() -> None:
    """Let allocations beyond the limit fail in this process."""
    most = MEGABYTES * 2**20
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def execute(case: Case, folder: Path) -> Outcome:
    """Run a case; the file is written to `folder`."""
    path = folder / f"case{case.suffix}"
    path.write_bytes(case.content)
    _forget_peak()
    started, before = time.process_time(), _peak()
    with _captured() as (out, err):
        try:
            with _alarm():
                exit_code = run(["check", str(path), *case.options])
        except OutOfTimeError as error:
            exit_code = -1
            print(_where(error), file=sys.stderr)
    seconds, growth = time.process_time() - started, _peak() - before
    stdout, stderr = out(), err()
    told = stderr if "sarif" in case.options else stdout + stderr  # SARIF lists all codes
    found = tuple(sorted(set(CODE.findall(told))))
    fault = _fault(case, exit_code, seconds, growth, stdout, stderr)
    return Outcome(
        case.number,
        case.origin,
        exit_code,
        seconds,
        growth,
        found,
        fault,
        (stdout + stderr)[-4000:] if fault else "",
    )


def _where(error: BaseException) -> str:
    import traceback

    return "".join(traceback.format_exception(error))


@contextmanager
def _alarm() -> Iterator[None]:
    """Raise OutOfTimeError when the time of this process is up: its own, for others may use the machine too."""

    def ring(*_: object) -> None:
        raise OutOfTimeError

    before = signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


@contextmanager
def _captured() -> Iterator[Any]:
    """Catch what is written; tracebacks of unexpected failures come with it."""
    streams = [
        io.TextIOWrapper(io.BytesIO(), "utf-8", errors="backslashreplace", write_through=True) for _ in range(2)
    ]
    before, debug = (sys.stdout, sys.stderr), os.environ.get("LIPCOMPILE_DEBUG")
    sys.stdout, sys.stderr = streams
    os.environ["LIPCOMPILE_DEBUG"] = "1"
    try:
        yield [lambda stream=stream: stream.buffer.getvalue().decode("utf-8") for stream in streams]
    finally:
        sys.stdout, sys.stderr = before
        os.environ.pop("LIPCOMPILE_DEBUG")
        if debug is not None:
            os.environ["LIPCOMPILE_DEBUG"] = debug


def _fault(case: Case, exit_code: int, seconds: float, growth: float, stdout: str, stderr: str) -> str:
    """Return the promise that was broken, in words that are equal for equal causes."""
    if exit_code == -1 or seconds > SECONDS:
        return f"too long: {_innermost(stderr)}"
    if growth > GROWTH or "not enough memory" in stderr:
        return "too much memory"
    if exit_code not in PROMISED or "Traceback" in stderr:
        return f"exit code {exit_code}: {_failure(stderr)}"
    machine = "json" in case.options or "sarif" in case.options  # which no terminal shows
    if CONTROL.search(stderr if machine else stdout + stderr):
        return "control characters in the output"
    if not set(CODE.findall(stdout + stderr)) - {"LIP000"} <= set(codes()):
        return "an unknown code"
    return _contradiction(case, exit_code, stdout, stderr)


def _innermost(text: str) -> str:
    frames = [frame for frame in _FRAME.findall(text) if "fuzz/" not in frame[0]]
    own = [frame for frame in frames if re.search(rf"lipcompile/(?:\w+/)*{frame[0].split('/')[1]}", text)]
    place, _, name = (own or frames or [("nowhere", "0", "")])[-1]
    return f"{place} {name}"


def _failure(stderr: str) -> str:
    summary = re.search(r"failed unexpectedly: (\w+)", stderr)
    return f"{summary.group(1) if summary else '?'} in {_innermost(stderr)}"


def _contradiction(case: Case, exit_code: int, stdout: str, stderr: str) -> str:
    """Return how output and exit code disagree, the empty string if they do not."""
    if exit_code == 2:
        return "" if "rror" in stderr else "exit code 2 without an error"
    if "json" in case.options:
        found = _parsed(stdout)
        if found is None or found.get("ok") != (exit_code == 0):
            return "JSON that is none, or says otherwise than the exit code"
        errors = [d for d in found["diagnostics"] if d["severity"] == "error"]
        return "" if bool(errors) == (exit_code == 1) else "errors do not go with the exit code"
    if "sarif" in case.options:
        return "" if _parsed(stdout) is not None else "SARIF that is no JSON"
    return "" if exit_code == 0 or "error[" in stdout + stderr else "rejected without an error"


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _forget_peak() -> None:
    with open("/proc/self/clear_refs", "w") as stream:  # noqa: PTH123  # a switch, no file
        stream.write("5")


def _peak() -> float:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    return int(found.group(1)) / 1024 if found else 0.0
