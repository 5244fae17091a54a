"""One contestant in a process of its own, which works only while it is told to.

Memory: the peak over the first steps, above the level just before training, when network and data are there and
optimizer, engine and gradients are not. The contestant has trained a tiny network before, so that code and threads
are loaded. Meanwhile glibc gets every larger block from the system and gives it back at once: else holes in its
heap would add to the resident set, 15 % more or less from run to run. For the timing it keeps whatever is freed,
until the turn ends: what waits has given it back, or eight processes would want more than there is.
By itself glibc returns blocks of more than 32 MiB at once, and others where they end the heap, and every page is
zeroed when it is needed again: none, or 100,000 of them in a step of `mnist 512`, which take 150 ms, by where
blocks happened to lie, with any contestant.
"""

from __future__ import annotations

import ctypes
import gc
import resource
import statistics
import time
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from lipcompile_torch.certify.projection import Amortised
from torch import nn

from lipcompile.cli.shared.training import keep_freed_memory

from .contestants import Task, start
from .networks import NETWORKS, TINY

MIB = 2**20
_FIRST_STEPS = 5
_LEAST_STEPS = 4  # of a turn, with the one that does not count
_MMAP_THRESHOLD = -3  # of mallopt, in malloc.h


@dataclass(frozen=True)
class Job:
    """What a worker trains.

    Args:
        memory_limit: in bytes, above what the process needs before.
    """

    contestant: str
    network: str
    batch: int
    rate: float
    device: str
    threads: int
    memory_limit: int


@dataclass(frozen=True)
class Turn:
    """What the steps of one turn took.

    Args:
        wall, cpu: medians in seconds: of the clock, and of processor time.
        mean: of the clock; of what only some steps do, medians say all or nothing.
        steps: over how many.
        certificates: weights that were certified in full, a step.
    """

    wall: float
    cpu: float
    mean: float
    steps: int
    certificates: float


class Left(Exception):  # noqa: N818  (left out, with the reason; no fault of the benchmark)
    """A contestant that cannot train this network here."""


class Worker:
    """A process that takes turns.

    Raises:
        Left: by all but `close`, if the contestant cannot go on; its process has ended then.
    """

    def __init__(self, job: Job) -> None:
        context = get_context("spawn")
        self._mine, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(job, theirs), daemon=True)
        self._process.start()
        theirs.close()

    def turn(self, seconds: float, most: int) -> Turn:
        """Let it take steps for so long, at most so many and at least three, after one that does not count."""
        found: Turn = self._ask((seconds, most))
        return found

    def ready(self) -> None:
        """Wait until network and data are there."""
        self._ask(None)

    def peak(self) -> int:
        """Let it take its first steps, at least two; return the peak, in bytes above the level before training."""
        found: int = self._ask(None)
        return found

    def close(self) -> None:
        """End the process."""
        self._mine.close()
        self._process.kill()
        self._process.join()

    def _ask(self, order: Any) -> Any:
        with suppress(BrokenPipeError):  # it has said why
            self._mine.send(order)
        try:
            answer = self._mine.recv()
        except (ConnectionResetError, EOFError):
            self._process.join()
            raise Left(f"its process ended with code {self._process.exitcode}") from None
        if isinstance(answer, Left):
            raise answer
        return answer


def _serve(job: Job, orders: Connection) -> None:
    try:
        _train(job, orders)
    except EOFError:
        pass  # nobody wants more
    except Exception as error:  # a row of the table, whatever it was
        orders.send(Left(_reason(error, job)))


def _reason(error: Exception, job: Job) -> str:
    text = str(error).partition("\n")[0]
    if isinstance(error, MemoryError) or "memory" in text:
        return f"out of memory at {job.memory_limit / MIB:.0f} MiB"
    return f"{type(error).__name__}: {text}"


def _train(job: Job, orders: Connection) -> None:
    warnings.simplefilter("ignore")  # of Opacus: no secure generator, hooks of modules
    torch.set_num_threads(job.threads)
    torch.manual_seed(0)
    device = torch.device(job.device)
    _limit(device, job.memory_limit)
    _warm_up(job.contestant, device)
    training = start(job.contestant, Task(NETWORKS[job.network], job.batch, device, job.rate))
    memory = _Memory(device)
    orders.recv()
    orders.send(None)
    orders.recv()
    _step(training, job, device)
    _turn(training, job, device, 1.0, _FIRST_STEPS)
    orders.send(memory.peak())
    memory.keep_blocks()
    certificates = _Certificates()
    while True:
        seconds, most = orders.recv()
        before = certificates.count
        times = _turn(training, job, device, seconds, most)
        memory.give_back()
        orders.send(_summary(times, certificates.count - before))


def _warm_up(contestant: str, device: torch.device) -> None:
    training = start(contestant, Task(TINY, 8, device))
    next(training)
    next(training)


def _turn(
    training: Iterator[int], job: Job, device: torch.device, seconds: float, most: int
) -> list[tuple[float, float]]:
    """Take steps, a few at least, and one more than asked for if there is time."""
    times: list[tuple[float, float]] = []
    end = time.perf_counter() + seconds
    while len(times) < _LEAST_STEPS or (len(times) <= most and time.perf_counter() < end):
        times.append(_step(training, job, device))
    return times


def _summary(times: list[tuple[float, float]], certificates: int) -> Turn:
    """Sum up all but the first step: its caches hold what others left there, and its memory is new."""
    wall, cpu = zip(*times[1:], strict=True)
    return Turn(
        statistics.median(wall),
        statistics.median(cpu),
        statistics.mean(wall),
        len(wall),
        certificates / len(times),
    )


def _step(training: Iterator[int], job: Job, device: torch.device) -> tuple[float, float]:
    began, used = time.perf_counter(), time.process_time()
    examples = next(training)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    taken = time.perf_counter() - began, time.process_time() - used
    if examples != job.batch:
        raise RuntimeError(f"a step of {examples} examples, not {job.batch}")
    return taken


def _limit(device: torch.device, limit: int) -> None:
    if device.type == "cuda":
        share = limit / torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, share))
    else:
        most = _status("VmData") + limit
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


class _Memory:
    """The peak above the level at the start: of the device's allocator, or of the resident set (Linux)."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)
            self._level = torch.cuda.memory_allocated(device)
        else:
            self._glibc = ctypes.CDLL(None)
            self._glibc.mallopt(_MMAP_THRESHOLD, 2**16)
            self.give_back()
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak is now the level
            self._level = _status("VmRSS")

    def peak(self) -> int:
        """Return it in bytes."""
        on_device = self._device.type == "cuda"
        peak = torch.cuda.max_memory_allocated(self._device) if on_device else _status("VmHWM")
        return peak - self._level

    def keep_blocks(self) -> None:
        """Let glibc keep what is freed for what is allocated next."""
        if self._device.type != "cuda":
            keep_freed_memory()

    def give_back(self) -> None:
        """Let the system have what is freed."""
        if self._device.type != "cuda":
            self._glibc.malloc_trim(0)


class _Certificates:
    """Counts the weights that are certified in full, which `Amortised.certify` does."""

    def __init__(self) -> None:
        self.count = 0
        certify = Amortised.certify

        def counted(known: Amortised, parameter: nn.Parameter, slack: float) -> None:
            self.count += 1
            certify(known, parameter, slack)

        Amortised.certify = counted  # type: ignore[method-assign, assignment]


def _status(name: str) -> int:
    """Return an entry of this process's status, in bytes."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{name}:"):
            return 1024 * int(line.split()[1])
    raise KeyError(name)
