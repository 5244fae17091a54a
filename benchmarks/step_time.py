"""Time and peak memory of a private training step beside other ways to train, all in one run.

    python -m benchmarks.step_time [--json FILE [--resume | --show]] [--networks mlp mnist …] [--batches 128 …]
        [--contestants …] [--rounds 7] [--steps 20] [--threads 2] [--device cpu] [--memory-limit GIB] [--clock cpu]

Contestants: `relu`, plain SGD on torch's layers with ReLU and max-pooling; `same layers`, plain SGD on the forward
pass that lipcompile emits; `global`, `per_layer`, `optimal`: private training by lipcompile, by how noise is
shared among parameters; `clip`, private training of the ReLU network, its gradients clipped in
the backward pass; `correlated`, the last with a BLT; `secure`, with cryptographic noise (only if named);
`hooks`, `ghost`: DP-SGD by Opacus on the ReLU network (`pip install lipcompile[bench]`).

Each contestant of a network and batch size has a process of its own, and they take turns, so that a slow moment of
the machine hits all: in every round each takes steps for a few seconds, after one that does not count, and the
medians of a round give its ratios. What is printed is the median ratio, with quartiles over the rounds. The batch
is of exactly the size that is named, for all; the step is the whole iteration, see `steps/contestants.py`.

The file is written after each network and batch size; `--resume` goes on with it, and `--show` prints its tables
and measures nothing. Memory is measured on Linux; `--memory-limit` is that of training. `--rate` is the learning
rate for each example of a batch. No round but the first three begins after `--cell-seconds`.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.harness import CLOCKS, Some, options, save
from benchmarks.steps.contestants import CONTESTANTS, DEFAULT, RATE, SIGMA
from benchmarks.steps.networks import NETWORKS
from benchmarks.steps.report import ALL, BATCHES, render
from benchmarks.steps.worker import Job, Left, Turn, Worker

GIB = 2**30
LEAST_ROUNDS = 3


class Cell:
    """All contestants for one network and batch size."""

    def __init__(self, network: str, batch: int, options: argparse.Namespace) -> None:
        self._title, self._options = f"{network} {batch}", options
        limit = int(options.memory_limit * GIB)
        self._workers = {
            name: Worker(Job(name, network, batch, options.rate, options.device, options.threads, limit))
            for name in options.contestants
        }
        self._left: dict[str, str] = {}

    def measure(self) -> dict[str, dict[str, Any]]:
        """Return times by round, and the peak, of each contestant, or why it was left out."""
        try:
            for name in list(self._workers):
                self._try(name, Worker.ready)
            peaks = {name: self._try(name, Worker.peak) for name in list(self._workers)}
            rounds = self._rounds()
        finally:
            for worker in self._workers.values():
                worker.close()
        return {name: self._row(name, rounds, peaks) for name in self._options.contestants}

    def _rounds(self) -> list[dict[str, Turn]]:
        rounds: list[dict[str, Turn]] = []
        end = time.perf_counter() + self._options.cell_seconds
        while len(rounds) < self._options.rounds and (len(rounds) < LEAST_ROUNDS or time.perf_counter() < end):
            rounds.append(self._round(len(rounds) + 1, self._options.turn_seconds, self._options.steps))
        return rounds

    def _round(self, number: int, seconds: float, steps: int) -> dict[str, Turn]:
        """Let all take a turn, in another order in every round."""
        names = list(self._workers)
        start = number % max(1, len(names))
        turns = {}
        for name in (names[start:] + names[:start])[:: -1 if number % 2 else 1]:
            _progress(f"{self._title}: round {number} of {self._options.rounds}, {name}")
            turns[name] = self._try(name, lambda worker: worker.turn(seconds, steps))
        return {name: turn for name, turn in turns.items() if turn is not None}

    def _try(self, name: str, ask: Any) -> Any:
        """Ask a worker for something; one that has to give up is left out from now on."""
        try:
            return ask(self._workers[name])
        except Left as reason:
            self._left[name] = str(reason)
            self._workers.pop(name).close()
            return None

    def _row(self, name: str, rounds: list[dict[str, Turn]], peaks: dict[str, int]) -> dict[str, Any]:
        if name in self._left:
            return {"left out": self._left[name]}
        turns = [turns[name] for turns in rounds]
        return {
            "wall": [turn.wall for turn in turns],
            "cpu": [turn.cpu for turn in turns],
            "mean": [turn.mean for turn in turns],
            "steps": [turn.steps for turn in turns],
            "certificates": sum(turn.certificates for turn in turns) / len(turns),
            "peak": peaks[name],
        }


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r{text:79}\r", end="", file=sys.stderr, flush=True)


def settings(options: argparse.Namespace) -> dict[str, Any]:
    """Return what all cells of a file have in common."""
    own = ("networks", "batches", "clock", "json", "resume", "show")
    return {
        **{name: value for name, value in vars(options).items() if name not in own},
        "sigma": SIGMA,
        "machine": platform.machine(),
        "torch": importlib.metadata.version("torch"),
    }


def read(path: Path, common: dict[str, Any]) -> dict[str, Any]:
    """Return the cells of a file.

    Raises:
        SystemExit: it was measured with other settings.
    """
    found = json.loads(path.read_text(encoding="utf-8"))
    other = sorted(name for name in common if found["settings"].get(name) != common[name])
    if other:
        raise SystemExit(f"{path} was measured with other settings: {', '.join(other)}")
    cells: dict[str, Any] = found["cells"]
    return cells


def _options() -> argparse.Namespace:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB
    given = options(
        __doc__,
        networks=Some([*NETWORKS], ALL),
        batches=list(BATCHES),
        contestants=Some([*CONTESTANTS], DEFAULT),
        device="cpu",
        rate=RATE,
        threads=2,
        rounds=7,
        steps=20,
        turn_seconds=3.0,
        cell_seconds=100.0,
        memory_limit=round(0.65 * memory, 1),
        clock=tuple(CLOCKS),
        json=Path,
        resume=False,
        show=False,
    )
    if (given.resume or given.show) and not given.json:
        raise SystemExit("--resume and --show need --json")
    return given


def main() -> None:
    """Measure and print."""
    given = _options()
    if given.show:
        print("\n".join(render(json.loads(given.json.read_text(encoding="utf-8"))["cells"], given.clock)))
        return
    common = settings(given)
    os.environ["OMP_NUM_THREADS"] = str(given.threads)
    cells = read(given.json, common) if given.resume and given.json.exists() else {}
    for network in given.networks:
        for batch in given.batches:
            if f"{network} {batch}" not in cells:
                cells[f"{network} {batch}"] = Cell(network, batch, given).measure()
                save(given.json, {"settings": common, "cells": cells})
    _progress("")
    print("\n".join(render(cells, given.clock)))


if __name__ == "__main__":
    main()
