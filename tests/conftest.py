"""What all tests share. Two workers share two cores: more threads in each would only wait for one another."""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # for subprocesses

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture
def own_benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packages beside ours are called `benchmarks` too, and must not be found first."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent))
    for name in [name for name in sys.modules if name.split(".")[0] == "benchmarks"]:
        monkeypatch.delitem(sys.modules, name)
