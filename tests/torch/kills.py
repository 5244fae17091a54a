"""Kills `lipcompile train` at random moments, resumes it, and holds the ledger against what was really released.

The witness is PyTorch's own hook before every step of every optimizer: it appends a line to a file before any
weight changes, and knows nothing of the ledger. ε of what it saw is computed with dp-accounting.

    python -m tests.torch.kills --kills 200

Processes are forked from one that has imported everything, so that a kill takes a second and not ten.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import logging
import math
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from lipcompile_privacy.accounting import RandomAllocation, epsilon
from lipcompile_torch.train.checkpoint import read_checkpoint
from lipcompile_torch.train.ledger import Ledger, read_ledger
from lipcompile_torch.train.optimizer import PrivateOptimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from lipcompile import __main__

MODEL = "model m { input x: tensor[4], norm <= 1\n dense(8) groupsort(2) dense(2) loss cross_entropy }\n"
EXAMPLES, BATCH, DELTA = 400, 20, 1e-4
EPOCH, BANDS = EXAMPLES // BATCH, 5
COMMAND = f"--epsilon 8 --delta {DELTA} --batch-size {BATCH} --accountant rdp --device cpu"


@dataclass(frozen=True)
class Way:
    """A way of training: its options, how many steps one charge covers (None: all), and ε of n charges at σ."""

    options: str
    covers: int | None
    epsilon: Callable[[float, int], float]

    def charges(self, steps: Counter[int]) -> int:
        """Return what must be charged for so many steps of each process: a round does not outlive its own."""
        if self.covers is None:
            return sum(count > 0 for count in steps.values())
        return sum(math.ceil(count / self.covers) for count in steps.values())


def composed(rate: float, moves: int) -> Callable[[float, int], float]:
    """Return ε of n Gaussian mechanisms, Poisson-sampled at a rate, by dp-accounting alone."""

    def spent(sigma: float, count: int) -> float:
        logging.getLogger("absl").setLevel(logging.ERROR)  # of orders that lose
        from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
        from dp_accounting.rdp import RdpAccountant

        gaussian = GaussianDpEvent(sigma / moves)
        accountant = RdpAccountant()
        accountant.compose(gaussian if rate == 1 else PoissonSampledDpEvent(rate, gaussian), count)
        return float(accountant.get_epsilon(DELTA))

    return spent


def allocated(sigma: float, count: int) -> float:
    """Return ε of n epochs of balls in bins, which dp-accounting does not know."""
    return epsilon([(RandomAllocation(EPOCH, sigma), count)], DELTA, accountant="rdp")


WAYS = {
    "poisson": Way("--epochs 200", 1, composed(1 / EPOCH, 1)),
    "shuffle": Way("--epochs 40 --sampling shuffle --neighbours replace_one", EPOCH, composed(1, 2)),
    "balls_in_bins": Way("--epochs 40 --sampling balls_in_bins", EPOCH, allocated),
    "bands": Way(f"--epochs 100 --correlation bands:{BANDS}", BANDS, composed(BANDS / EPOCH, 1)),
    "blt": Way("--epochs 20 --correlation blt:2", None, composed(1, 1)),
}


@dataclass
class Figures:
    """What came of the kills. `least_margin` is the least ε of a ledger less its witness's, in any check."""

    kills: Counter[str] = field(default_factory=Counter)
    moments: Counter[str] = field(default_factory=Counter)
    released: Counter[str] = field(default_factory=Counter)
    recorded: Counter[str] = field(default_factory=Counter)
    finished: int = 0
    truncated_lines: int = 0
    second_processes_refused: int = 0
    partial_checkpoints: int = 0
    checks: int = 0
    least_margin: float = math.inf


class Run:
    """One folder of a training that is killed and resumed until it ends."""

    def __init__(self, folder: Path, way: Way) -> None:
        self.folder, self.way = folder, way
        self.output, self.attempts = folder / "run", 0
        self.witness, self.ledger = folder / "witness", self.output / "ledger.jsonl"
        self.checkpoint = self.output / "checkpoint.pt"
        folder.mkdir()
        (folder / "model.lip").write_text(MODEL)
        rng = np.random.default_rng(0)
        x = rng.standard_normal((EXAMPLES, 4)).astype(np.float32)
        y = (x[:, 0] > 0).astype(np.int64)
        np.savez(folder / "data.npz", x_train=x, y_train=y, x_test=x[:10], y_test=y[:10])

    def start(self) -> int:
        """Fork a process that begins or resumes the training; return its id."""
        self.attempts += 1
        process = os.fork()
        if process == 0:
            os._exit(self._train())
        return process

    def _train(self) -> int:
        os.chdir(self.folder)
        log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        file = os.open("witness", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

        def witness(*_: object) -> None:
            os.write(file, f"{self.attempts}\n".encode())

        register_optimizer_step_pre_hook(witness)
        backwards = 2e9 - 1e6 * self.attempts
        time.time = lambda: backwards  # every process lives before the one that it follows
        resume = " --resume" if self.ledger.exists() else ""
        return __main__.run(
            f"train model.lip --data data.npz --output run {COMMAND} {self.way.options}{resume}".split()
        )

    def steps(self) -> Counter[int]:
        """Return the steps that the witness saw, by process."""
        return Counter(map(int, self.witness.read_text().split())) if self.witness.exists() else Counter()

    def log(self) -> str:
        """Return what the processes wrote."""
        return (self.folder / "log").read_text()

    def grown(self) -> bool:
        """Whether the process that was started last has taken a step."""
        return self.steps()[self.attempts] > 0

    def partial(self) -> set[Path]:
        """Return the checkpoints that are being written, or were when their process was killed."""
        return set(self.output.glob(".checkpoint.pt.*.tmp"))


class Killer:
    """Kills trainings one after the other, a way of training at a time."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.random, self.figures = folder, random.Random(seed), Figures()
        self.runs: list[Run] = []

    def kill(self, name: str, times: int) -> None:
        """Kill trainings of this way so many times; a run that ends is followed by a new one."""
        run = self._new(name)
        while self.figures.kills[name] < times:
            process, before = run.start(), run.partial()
            moment = self._wait(run, process)
            if self.random.random() < 0.15:
                self._second(run, process)
            killed = self._end(run, process)
            self.check(run)
            if not killed:
                self.figures.finished += 1
                run = self._new(name)
                continue
            self.figures.kills[name] += 1
            self.figures.moments[moment] += 1
            self.figures.partial_checkpoints += bool(run.partial() - before)
            if self.random.random() < 0.25:
                self._cut(run)

    def _new(self, name: str) -> Run:
        self.runs.append(Run(self.folder / f"{len(self.runs)}-{name}", WAYS[name]))
        return self.runs[-1]

    def _wait(self, run: Run, process: int) -> str:
        """Wait for a random moment, or for the end; return what kind of moment it is."""
        kind = self.random.choices(("start", "step", "checkpoint"), (15, 65, 20))[0]
        if kind == "start":
            self._until(process, lambda: False, self.random.uniform(0, 1))
            return kind
        self._until(process, run.grown, 60)
        self._until(process, lambda: False, self.random.uniform(0, 0.3))
        if kind == "checkpoint":
            before = run.partial()
            self._until(process, lambda: bool(run.partial() - before), 5)
        return kind

    def _until(self, process: int, reached: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not reached():
            if os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                return
            time.sleep(0.0002)

    def _second(self, run: Run, process: int) -> None:
        """Start a second process on the ledger of one that holds it: it must leave without a step."""
        if not run.grown() or os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            return
        os.kill(process, signal.SIGSTOP)  # it must not end meanwhile
        second = run.start()
        _, status = os.waitpid(second, 0)
        assert os.waitstatus_to_exitcode(status) == 2, run.log()
        assert "in use by another process" in run.log()
        assert not run.grown()
        self.figures.second_processes_refused += 1

    def _end(self, run: Run, process: int) -> bool:
        """Kill a process; return whether it was alive. One that ended must have ended well."""
        os.kill(process, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        assert code in (0, -signal.SIGKILL), f"{run.folder} ended with {code}: {run.log()[-2000:]}"
        return code != 0

    def _cut(self, run: Run) -> None:
        """Cut off a part of the last line, as a power cut may; but not one that a checkpoint came after."""
        if not run.checkpoint.exists():
            return
        content, saved_at = run.ledger.read_bytes(), read_checkpoint(run.checkpoint).ledger_head
        lines = content.splitlines(keepends=True)
        if saved_at.encode() not in lines[-1]:
            lost = self.random.randrange(1, len(lines[-1]))
            run.ledger.write_bytes(content[: len(content) - lost])
            self.figures.truncated_lines += 1
            self.check(run)

    def check(self, run: Run) -> None:
        """Hold the ledger against the witness."""
        steps = run.steps()
        if not steps:
            return
        record, charges = read_ledger(run.ledger), run.way.charges(steps)
        (release,) = record.declared
        sigma = float(read_checkpoint(run.checkpoint).notes["noise_multiplier"])
        assert release.noise_multiplier == sigma
        margin = record.epsilon(DELTA, "rdp") - run.way.epsilon(sigma, charges)
        assert record.charges.total() >= charges, f"{record.charges} for {charges} charges"
        assert margin >= -1e-9, f"the ledger says {margin} less than what was released"
        self.figures.checks += 1
        self.figures.least_margin = min(self.figures.least_margin, margin)

    def add_up(self) -> None:
        """Compare what was released and what was recorded, over all runs."""
        for run in self.runs:
            if steps := run.steps():
                record = read_ledger(run.ledger)
                self.figures.released += Counter(steps=steps.total(), charges=run.way.charges(steps))
                self.figures.recorded += Counter(steps=record.total_steps, charges=record.charges.total())


def preload(folder: Path) -> None:
    """Import what a training imports, found by one in a process of its own: this one must compute nothing."""
    short = Way("--epochs 1 --correlation blt:2", None, composed(1, 1))
    run, names = Run(folder / "first", short), folder / "names"
    process = os.fork()
    if process == 0:
        code = run._train()
        names.write_text("\n".join(sys.modules))
        os._exit(code)
    assert os.waitpid(process, 0)[1] == 0, run.log()
    for name in names.read_text().splitlines():
        with contextlib.suppress(ImportError):  # the training's model.py, under the name that it was given
            importlib.import_module(name)


def late() -> None:
    """Plant a fault: steps are counted after they were taken."""
    count, release = PrivateOptimizer._count, PrivateOptimizer._release

    def released_first(self: PrivateOptimizer, stds: Any, batch: Any) -> None:
        release(self, stds, batch)
        count(self, batch)

    patched: Any = PrivateOptimizer
    patched._count, patched._release = lambda *_: None, released_first


def reopened() -> None:
    """Plant a fault: a resumed process goes on in the round that was broken off."""
    opened = Ledger.open_round

    def open_round(self: Ledger, release: Any) -> None:
        if self.record.charges[release] and self.record.total_steps % EPOCH:
            self._open = release
        else:
            opened(self, release)

    patched: Any = Ledger
    patched.open_round = open_round


FAULTS = {"late": late, "reopened": reopened}


def main() -> None:
    """Kill as often as asked; print the figures, and fail at the first ledger that says too little."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fault", choices=FAULTS, help="a fault to plant, which must be found")
    given = parser.parse_args()
    if given.fault:
        FAULTS[given.fault]()
    with tempfile.TemporaryDirectory() as folder:
        preload(Path(folder))
        killer = Killer(Path(folder), given.seed)
        for number, name in enumerate(WAYS):
            killer.kill(name, (given.kills + number) // len(WAYS))
            print(name, "done", file=sys.stderr, flush=True)
        killer.add_up()
    json.dump(vars(killer.figures), sys.stdout, indent=2)


if __name__ == "__main__":
    main()
