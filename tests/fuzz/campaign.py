"""Many cases, in processes of their own, which may die; and figures of all."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from tests.fuzz.cases import Seed, case
from tests.fuzz.runs import Outcome, execute, limit_memory

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
    """A process, and the case that it is at."""

    process: Any
    results: Connection
    numbers: Sequence[int]
    at: int = 0


def campaign(
    seed: int, numbers: Sequence[int], corpus: list[Seed], jobs: int, told: Callable[[Figures], None]
) -> Figures:
    """Run the cases of these numbers in `jobs` processes; `told` hears of the figures now and then."""
    figures, pending = Figures(), [numbers[start : start + LIFE] for start in range(0, len(numbers), LIFE)]
    pending.reverse()
    workers: list[Worker] = []
    while pending or workers:
        while pending and len(workers) < jobs:
            workers.append(_started(seed, pending.pop(), corpus))
        ready = wait([worker.results for worker in workers], timeout=PATIENCE)
        for worker in [w for w in workers if w.results in ready or not ready]:
            outcome = _received(worker) if ready else None
            if outcome is None:  # it has died, or none answers
                outcome = _lost(worker, "no answer" if not ready else "the process died")
                _stopped(worker)
                workers.remove(worker)
                rest = worker.numbers[worker.at + 1 :]
                pending += [rest] if rest else []
            else:
                worker.at += 1
                if worker.at == len(worker.numbers):
                    _stopped(worker)
                    workers.remove(worker)
            figures.add(outcome)
            if figures.cases % 1000 == 0:
                told(figures)
    return figures


def _started(seed: int, numbers: Sequence[int], corpus: list[Seed]) -> Worker:
    context = multiprocessing.get_context("spawn")  # nothing of this process counts as memory of that
    results, sender = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(sender, seed, numbers, corpus), daemon=True)
    process.start()
    sender.close()
    return Worker(process, results, numbers)


def _work(sender: Connection, seed: int, numbers: Sequence[int], corpus: list[Seed]) -> None:
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    limit_memory()
    with tempfile.TemporaryDirectory() as folder:
        for number in numbers:
            sender.send(execute(case(seed, number, corpus), Path(folder)))


def _received(worker: Worker) -> Outcome | None:
    try:
        outcome: Outcome = worker.results.recv()
    except EOFError:
        return None
    return outcome


def _lost(worker: Worker, fault: str) -> Outcome:
    worker.process.join(timeout=1)
    code = worker.process.exitcode
    return Outcome(worker.numbers[worker.at], "?", -1, 0, 0, (), f"{fault} ({code})" if code else fault)


def _stopped(worker: Worker) -> None:
    worker.results.close()
    if worker.process.is_alive():
        worker.process.join(timeout=5)
    if worker.process.is_alive():
        worker.process.kill()
        worker.process.join()
