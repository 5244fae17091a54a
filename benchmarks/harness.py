"""What the benchmarks share: options, models that are written and compiled, costs, tables and files."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

DOCS = Path(__file__).parent.parent / "docs"
EXAMPLES = Path(__file__).parent.parent / "examples"
CLOCKS: Mapping[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}


@dataclass(frozen=True)
class Some:
    """Names that an option takes some of."""

    known: Sequence[str]
    usual: Sequence[str] | None = None


def options(about: str | None, **defaults: Any) -> argparse.Namespace:
    """Return what the command line says.

    Args:
        about: the docstring of the benchmark, which says what its options mean.
        defaults: of each option. False is a flag, a list takes several, a tuple is a choice that begins with the
            default; a type is that of an option that may be missing, and an ellipsis a path that must be given.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in defaults.items():
        parser.add_argument(f"--{name.replace('_', '-')}", **_described(default))
    return parser.parse_args()


def _described(default: Any) -> dict[str, Any]:
    if default is ...:
        return {"type": Path, "required": True}
    if isinstance(default, type):
        return {"type": default}
    if default is False:
        return {"action": "store_true"}
    if isinstance(default, Some):
        usual = default.known if default.usual is None else default.usual
        return {"nargs": "+", "choices": list(default.known), "default": list(usual)}
    if isinstance(default, tuple):
        return {"choices": default, "default": default[0]}
    if isinstance(default, list):
        return {"nargs": "+", "type": type(default[0]), "default": default}
    return {"type": type(default), "default": default}


def save(path: Path | None, found: object) -> None:
    """Replace a file by one of JSON, as a whole; None: there is none to write."""
    if path is not None:
        beside = path.with_name(f"{path.name}.tmp")
        text = json.dumps(found, indent=1, ensure_ascii=False, default=str)
        beside.write_text(text + "\n", encoding="utf-8")
        beside.replace(path)


def saved(figure: Any, path: Path) -> None:
    """Write a figure of matplotlib, an .svg without the date."""
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


# --- models ---


@contextmanager
def written(text: str, name: str = "network") -> Iterator[Path]:
    """Keep a model of the language in a file meanwhile."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.lip"
        path.write_text(text, encoding="utf-8")
        yield path


def emitted(path: str | Path, options: Any = None, follow: bool = False) -> Any:
    """Return the class that is emitted of a model.

    Args:
        path: of its file; `FILE.lip::name` picks one of several.
        options: that override the file, see `lipcompile.check`.
        follow: bounds follow the weights.
    """
    from lipcompile.emitters.torch.emit import emit
    from lipcompile.pipeline import check

    module = ModuleType("benchmarked")
    exec(emit(check(path, options), follow), module.__dict__)
    return module.Model


# --- costs ---


def in_turns(functions: Mapping[str, Callable[[], object]], runs: int, clock: str) -> dict[str, list[float]]:
    """Return seconds of each function in each run: every run calls all, after one that does not count.

    So a slow moment of the machine hits all of them.
    """
    times: dict[str, list[float]] = {name: [] for name in functions}
    for run in range(runs + 1):
        for name, function in functions.items():
            start = CLOCKS[clock]()
            function()
            if run:
                times[name].append(CLOCKS[clock]() - start)
    return times


def medians(times: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return the median of each."""
    return {name: statistics.median(taken) for name, taken in times.items()}


@dataclass(frozen=True)
class Cost:
    """What a process took: seconds by the clock and of processors, and the most memory."""

    wall: float
    cpu: float
    megabytes: float


def cost(*arguments: str | Path) -> Cost:
    """Run Python with these arguments, and nothing of what it prints."""
    command, start = [sys.executable, *map(str, arguments)], time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed")
    return Cost(time.perf_counter() - start, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1000)


# --- tables of pages ---


def line(*cells: str) -> str:
    """Write a row of a table in Markdown."""
    return f"| {' | '.join(cells)} |"


def filled(page: str, begin: str, end: str, part: str) -> str:
    """Return a page with what stands between two marks replaced."""
    before, _, rest = page.partition(begin)
    return f"{before}{begin}\n\n{part}\n{end}{rest.partition(end)[2]}"


def show(part: str, page: Path, begin: str, end: str, write: bool) -> None:
    """Print a part of a page, or put it there."""
    if write:
        page.write_text(filled(page.read_text(encoding="utf-8"), begin, end, part), encoding="utf-8")
    else:
        print(part)
