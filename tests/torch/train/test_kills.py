"""Killing `lipcompile train` at random moments never leaves a ledger that says less than what was released."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
# What is installed, not the folder of the sources, which lacks the grammar.
HARNESS = (
    f"import runpy, sys; sys.path.append({str(ROOT)!r}); runpy.run_module('tests.torch.kills', None, '__main__')"
)
# Forked processes must not inherit the threads of a linear algebra library.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def harness(times: int, seed: int, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the harness, which fails at the first ledger that says too little."""
    command = [sys.executable, "-P", "-c", HARNESS, "--kills", str(times), "--seed", str(seed), *options]
    environment = {**os.environ, **ONE_THREAD}
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, check=False)


def kill(times: int, seed: int) -> Any:
    """Return the figures of so many kills."""
    done = harness(times, seed)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def check(figures: Any, kills: int) -> None:
    assert sum(figures["kills"].values()) == kills
    assert figures["checks"] > 0
    assert figures["least_margin"] >= -1e-9
    assert figures["recorded"]["charges"] >= figures["released"]["charges"]
    # A kill costs one step too many at most, or a charge that no step followed; a cut-off line as much again.
    most = kills + figures["truncated_lines"]
    assert figures["recorded"]["steps"] <= figures["released"]["steps"] + most
    assert figures["recorded"]["charges"] <= figures["released"]["charges"] + most


@pytest.mark.skipif(sys.platform == "win32", reason="ledgers are written on POSIX systems alone")
def test_a_few_kills() -> None:
    check(kill(3, seed=1), 3)


@pytest.mark.nightly
def test_two_hundred_kills() -> None:
    figures = kill(200, seed=0)
    check(figures, 200)
    assert figures["moments"].keys() == {"start", "step", "checkpoint"}
    assert figures["truncated_lines"] > 20
    assert figures["partial_checkpoints"] > 0
    assert figures["second_processes_refused"] > 0


@pytest.mark.nightly
@pytest.mark.parametrize("fault", ["late", "reopened"])
def test_a_planted_fault_is_found(fault: str) -> None:
    """A step counted late was found after 8 kills of 60, a round that is not paid for again after the first."""
    done = harness(200, 3, "--fault", fault)
    assert done.returncode != 0
    assert "AssertionError" in done.stderr
    assert "charges" in done.stderr
