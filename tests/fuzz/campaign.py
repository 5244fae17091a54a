"""Many cases, in processes of their own, which may die; and figures of all."""

from __future__ import annotations

import json
import pickle
import selectors
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.fuzz.cases import Seed
from tests.fuzz.runs import Outcome

ROOT = Path(__file__).parent.parent.parent
# A process answers this soon, in seconds of the clock (others may need the machine). So many cases are its life.
PATIENCE, LIFE = 180, 400


@dataclass
class Figures:
    """What came of a run."""

    cases: int = 0
    exits: Counter[int] = field(default_factory=Counter)
    codes: Counter[str] = field(default_factory=Counter)
    slowest: Outcome | None = None
    largest: Outcome | None = None
    faults: dict[str, list[Outcome]] = field(default_factory=dict)

    def add(self, outcome: Outcome) -> None:
        """Count an outcome."""
        self.cases += 1
        self.exits[outcome.exit_code] += 1
        self.codes.update(outcome.codes)
        if self.slowest is None or outcome.seconds > self.slowest.seconds:
            self.slowest = outcome
        if self.largest is None or outcome.megabytes > self.largest.megabytes:
            self.largest = outcome
        if outcome.fault:
            self.faults.setdefault(outcome.fault, []).append(outcome)

    def lines(self) -> Iterator[str]:
        """Yield the figures as lines of text."""
        yield f"cases       {self.cases}"
        yield f"exit codes  {', '.join(f'{code}: {count}' for code, count in sorted(self.exits.items()))}"
        if self.slowest is not None and self.largest is not None:
            slow, large = self.slowest, self.largest
            yield f"slowest     {slow.seconds:.2f} s of CPU time (case {slow.number}, {slow.origin})"
            yield f"memory      {large.megabytes:.0f} MiB (case {large.number}, {large.origin})"
        yield f"codes       {len(self.codes)} reached: {', '.join(sorted(self.codes))}"
        yield f"failures    {sum(map(len, self.faults.values()))} of {len(self.faults)} kinds"
        for fault, outcomes in sorted(self.faults.items(), key=lambda pair: -len(pair[1])):
            yield f"  {len(outcomes):5} {fault}: case {', '.join(str(o.number) for o in outcomes[:5])}"


@dataclass
class Worker:
    """A process, the numbers of its cases, and the place of the one that it is at."""

    process: subprocess.Popen[str]
    numbers: range
    at: int = 0

    def answer(self) -> Outcome | None:
        """Return the outcome of the case that it is at; None if the process has died."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        return Outcome(**json.loads(line)) if line else None

    def lost(self, fault: str) -> Outcome:
        """Return the outcome of a case that has none."""
        self.process.kill()
        code = self.process.wait()
        shown = f"{fault} ({code})" if fault == DIED else fault
        return Outcome(self.numbers[self.at], "?", -1, 0, 0, (), shown)


DIED = "the process died"


def campaign(
    seed: int, numbers: range, corpus: Sequence[Seed], jobs: int, told: Callable[[Figures], None]
) -> Figures:
    """Run the cases of these numbers in `jobs` processes; `told` hears of the figures now and then."""
    figures, pending = Figures(), [numbers[start : start + LIFE] for start in range(0, len(numbers), LIFE)]
    pending.reverse()
    with tempfile.NamedTemporaryFile(suffix=".corpus") as shared, selectors.DefaultSelector() as selector:
        shared.write(pickle.dumps(corpus))
        shared.flush()
        while pending or selector.get_map():
            while pending and len(selector.get_map()) < jobs:
                worker = _started(seed, pending.pop(), shared.name)
                selector.register(worker.process.stdout, selectors.EVENT_READ, worker)  # type: ignore[arg-type]
            ready = selector.select(PATIENCE)
            for key, _ in ready or [(key, 0) for key in selector.get_map().values()]:
                figures.add(_next(key.data, selector, pending, answers=bool(ready)))
                if figures.cases % 1000 == 0:
                    told(figures)
    return figures


def _next(worker: Worker, selector: selectors.BaseSelector, pending: list[range], *, answers: bool) -> Outcome:
    """Return the outcome of a worker's case, and let what cannot go on be done by another."""
    outcome = worker.answer() if answers else None
    going_on = outcome is not None
    if outcome is None:
        outcome = worker.lost(DIED if answers else "no answer")
    worker.at += 1
    rest = worker.numbers[worker.at :]
    if not going_on or not rest:
        assert worker.process.stdout is not None
        selector.unregister(worker.process.stdout)
        worker.process.stdout.close()
        worker.process.wait()
        pending += [rest] if rest else []
    return outcome


# The tests are found behind what is installed: the folder holds a part of the package only.
_WORKER = (
    f"import runpy, sys; sys.path.append({str(ROOT)!r}); runpy.run_module('tests.fuzz.worker', None, '__main__')"
)


def _started(seed: int, numbers: range, corpus: str) -> Worker:
    arguments = [str(seed), str(numbers.start), str(numbers.stop), corpus]
    command = [sys.executable, "-P", "-c", _WORKER, *arguments]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    return Worker(process, numbers)
