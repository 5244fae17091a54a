"""Tensors as rows of numbers in the order of memory, cut into stretches that fit a cache, shared out to threads.

Operations that treat all entries of a gradient alike are done in one pass over all parameters, with
as much memory as a stretch takes, however large the parameters are.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from typing import TypeVar

import torch
from torch import Tensor

from ..devices import is_processor

Part = tuple[Tensor, float]
"""A flat tensor [n], and the scale of the noise on each of its entries."""

Item = TypeVar("Item")


def dense(gradient: Tensor) -> Tensor:
    """Return a gradient as a dense tensor."""
    return gradient.to_dense() if gradient.layout is not torch.strided else gradient


def flat(tensor: Tensor) -> Tensor | None:
    """Return a view [n] of all entries in the order of memory; None if they overlap or leave gaps there.

    The axes may be in any order: channels may lie last, a matrix may be a transpose.
    """
    if tensor.is_contiguous():
        return tensor.view(-1)
    strides = tensor.stride()
    ordered = tensor.permute(sorted(range(tensor.dim()), key=lambda axis: -strides[axis]))
    return ordered.view(-1) if ordered.is_contiguous() else None


def stretches(parts: Sequence[Part], size: int) -> Iterator[list[Part]]:
    """Yield the parts, cut and put together so that each list has ``size`` entries in all, the last one fewer."""
    gathered: list[Part] = []
    room = size
    for tensor, scale in parts:
        start, length = 0, tensor.shape[0]
        while start < length:
            taken = min(room, length - start)
            gathered.append((tensor if taken == length else tensor[start : start + taken], scale))
            start, room = start + taken, room - taken
            if room == 0:
                yield gathered
                gathered, room = [], size
    if gathered:
        yield gathered


def entries(parts: Sequence[Part]) -> int:
    """Return how many entries the parts have together."""
    return sum(tensor.shape[0] for tensor, _ in parts)


def by_device(parts: Sequence[Part]) -> dict[torch.device, list[Part]]:
    """Return the parts of each device, in their order."""
    found: dict[torch.device, list[Part]] = {}
    for tensor, scale in parts:
        found.setdefault(tensor.device, []).append((tensor, scale))
    return found


def with_values(parts: Sequence[Part], values: Tensor) -> Iterator[tuple[Tensor, float, Tensor]]:
    """Yield each part and its share of the values, [n] for parts of n entries together."""
    shares = torch.split(values, [tensor.shape[0] for tensor, _ in parts])
    yield from ((tensor, scale, share) for (tensor, scale), share in zip(parts, shares, strict=True))


def add_scaled_(parts: Sequence[Part], values: Tensor, spare: Tensor | None = None) -> None:
    """Add scale·values to the parts, each sum computed in float64 and rounded once.

    Args:
        parts: of n entries together, floating point.
        values: [n], float64, on their device.
        spare: float64 [n], which is overwritten: room for parts in float64, which torch would else allocate.
    """
    if not is_processor(values.device):
        tensors, scales, shares = zip(*with_values(parts, values), strict=True)
        torch._foreach_add_(tensors, torch._foreach_mul(shares, scales))
        return
    for tensor, scale, part in with_values(parts, values):
        if spare is None or tensor.dtype == torch.float64:
            tensor.add_(part, alpha=scale)  # of mixed types, torch adds in the wider one
        else:
            tensor.copy_(spare[: len(tensor)].copy_(tensor).add_(part, alpha=scale))


def in_threads(work: Callable[[Item], None], items: Sequence[Item]) -> None:
    """Do the work for all items, in as many threads as torch uses within an operation.

    Which thread takes which item, and when, must not matter. Torch and numpy let other threads run while they
    compute. After an exception, as of a key that interrupts, no more items are begun.
    """
    waiting = deque(items)

    def drain() -> None:
        while True:
            try:
                item = waiting.popleft()
            except IndexError:
                return
            try:
                work(item)
            except BaseException:
                waiting.clear()
                raise

    helpers = min(torch.get_num_threads(), len(items)) - 1
    if helpers < 1:
        drain()
        return
    pool = _pool(os.getpid(), helpers)
    started = [pool.submit(drain) for _ in range(helpers)]
    try:
        drain()
    finally:
        wait(started)
    for helper in started:
        helper.result()


@cache
def _pool(process: int, threads: int) -> ThreadPoolExecutor:  # noqa: ARG001  # a fork has none of the threads
    return ThreadPoolExecutor(threads, thread_name_prefix="lipcompile")
