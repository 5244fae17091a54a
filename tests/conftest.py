"""What all tests share. Two workers share two cores: more threads in each would only wait for one another."""

from __future__ import annotations

import os
import sys
from copy import copy
from functools import cache
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # for subprocesses

import pytest
import torch

torch.set_num_threads(1)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Workers take tests that follow one another, and steal at the end: what a file's tests share is made once."""
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log) if config.getoption("dist") == "load" else None


def pytest_runtest_setup() -> None:
    """Torch reads its library of operators anew at each export, which takes half of it: once is enough."""
    registration: Any = sys.modules.get("torch.onnx._internal.exporter._registration")
    registry = getattr(registration, "ONNXRegistry", None)
    if registry is None or not hasattr(registry.from_torchlib, "__func__"):  # not imported yet, or done
        return
    read = cache(registry.from_torchlib)

    def own_copy(**options: Any) -> Any:
        found = copy(read(**options))
        found.functions = {target: [*functions] for target, functions in found.functions.items()}
        return found

    registry.from_torchlib = staticmethod(own_copy)


@pytest.fixture
def own_benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packages beside ours are called `benchmarks` too, and must not be found first."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent))
    for name in [name for name in sys.modules if name.split(".")[0] == "benchmarks"]:
        monkeypatch.delitem(sys.modules, name)
