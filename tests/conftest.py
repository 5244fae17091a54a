"""What all tests share. Two workers share two cores: more threads in each would only wait for one another."""

from __future__ import annotations

import gc
import os
import sys
import typing
from copy import copy
from functools import cache
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # for subprocesses

import pytest
import torch

torch.set_num_threads(1)

# Torch keeps the stack of every seed for kinds of devices that it may find later: a millisecond a seed.
for device in (torch.cuda, torch.xpu, torch.mtia):
    if not device.is_available():
        vars(device)["manual_seed_all"] = lambda _: None


def pytest_collection_finish() -> None:
    """Modules and tests stay until the end: the garbage collector need not look at them again and again.

    It looks at what tests make three hundred times less often, which took a fifth of an export by torch.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(200_000, 10, 10)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Workers take tests that follow one another, and steal at the end: what a file's tests share is made once."""
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log) if config.getoption("dist") == "load" else None


def pytest_runtest_setup() -> None:
    """Make once what libraries make anew in each call; they are imported by tests that need them."""
    modules: Any = sys.modules
    rdp = modules.get("dp_accounting.rdp.rdp_privacy_accountant")
    if rdp is not None and not hasattr(rdp._log_comb, "cache_info"):
        rdp._log_comb = cache(rdp._log_comb)  # of the same orders for every noise multiplier
    if "torch.onnx._internal.exporter._core" in modules and not hasattr(torch._ops, "read_once"):
        read_operators_once(modules)


def read_operators_once(modules: Any) -> None:
    """Torch reads its libraries of operators anew at each export, which takes half of it; here as 2.13 does."""
    vars(torch._ops).update(read_once=True, Callable=typing.Callable)  # this makes `Callable[…]` once
    utilities = modules.get("torch._export.utils")
    if hasattr(utilities, "_materialize_cpp_cia_ops"):
        utilities._materialize_cpp_cia_ops = cache(utilities._materialize_cpp_cia_ops)
    decompositions = modules.get("torch.onnx._internal.exporter._decomp")
    if hasattr(decompositions, "create_onnx_friendly_decomposition_table"):
        read_table = cache(decompositions.create_onnx_friendly_decomposition_table)
        decompositions.create_onnx_friendly_decomposition_table = lambda known: {**read_table(frozenset(known))}
    registration = modules.get("torch.onnx._internal.exporter._registration")
    registry: Any = getattr(registration, "ONNXRegistry", None)
    if hasattr(registry, "from_torchlib"):
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


@pytest.fixture
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
