"""Frozen features of a fixed data set, computed once: training then costs no more than what is trained.

`LipschitzModule.on_features` says why nothing has to be believed of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from threading import Lock
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset

from ..devices import is_processor
from ..native.memory_rows import in_threads
from ..noise.masks import seed_secretly
from .module import LipschitzModule
from .sampler import Rows

__all__ = ["cache_features", "fill_features", "room_for_features", "worth_keeping"]

_BATCH = 256
_LARGEST_HALF = 60_000.0
_MOST_BYTES = 2**32

Report = Callable[[int, int], None]
"""Takes how many examples are done, and of how many."""


def cache_features(
    module: LipschitzModule,
    dataset: Dataset[Any],
    batch_size: int = _BATCH,
    report: Report | None = None,
    seeded: bool = False,
) -> TensorDataset:
    """Return the data set with frozen features instead of examples, for training under ``on_features``.

    Features are stored in float16, or float32 where they may be larger than that holds. The frozen weights are
    those that the module has now.

    Args:
        dataset: of known length; items are tuples of an example and tensors or numbers, such as its label.
        batch_size: how many examples are computed at once.
        report: is told of progress.
        seeded: the run is repeatable, and not private: seeds stay as they are. Otherwise random changes that the
            data set makes come from secret seeds: with a known one an example that is left out changes those of
            all behind it.

    Raises:
        ValueError: the module has no features.
        TypeError: the data set has no length.
    """
    if not seeded:
        seed_secretly()
    rest: list[list[Tensor]] = []
    loader: DataLoader[Any] = DataLoader(dataset, batch_size=batch_size)
    room = room_for_features(module, len(dataset))  # type: ignore[arg-type]  # that it has one was said
    done = 0
    for x, *others in loader:
        fill_features(module, [(x, room[done : done + len(x)])], batch_size)
        rest.append(others)
        done += len(x)
        if report is not None:
            report(done, len(room))
    return TensorDataset(room, *(torch.cat(column) for column in zip(*rest, strict=True)))


def room_for_features(module: LipschitzModule, count: int) -> Tensor:
    """Return an empty tensor for the features of so many examples, [count, *features_shape], in main memory."""
    if module.features_shape is None:
        raise ValueError("this module has no frozen part, so it has no features to cache")
    dtype = torch.float16 if module.features_norm <= _LARGEST_HALF else torch.float32
    return torch.empty((count, *module.features_shape), dtype=dtype)


def worth_keeping(module: LipschitzModule, count: int) -> bool:
    """Whether the module has features, and those of so many examples take no more than 4 GiB."""
    if module.features_shape is None:
        return False
    size = 2 if module.features_norm <= _LARGEST_HALF else 4
    return size * count * prod(module.features_shape) <= _MOST_BYTES


def fill_features(
    module: LipschitzModule,
    parts: Sequence[tuple[Tensor, Tensor]],
    batch_size: int = _BATCH,
    report: Report | None = None,
) -> None:
    """Write the features of examples [N, *input_shape] into their room [N, *features_shape].

    On processors each thread works on a part of a batch: operations on one part are too small to share.

    All pieces have one shape, whatever the number of examples is: torch rounds a product by its shape, and what is
    rounded once more to half precision would move by a thousand times as much, for all examples alike.
    """
    device, threads, lock, done = next(module.parameters()).device, torch.get_num_threads(), Lock(), 0
    planned = sum(len(x) for x, _ in parts)
    apart = is_processor(device)
    size = -(-batch_size // threads) if apart else batch_size  # together they take the memory of a batch
    pieces = [
        (x[start : start + size], room[start : start + size])
        for x, room in parts
        for start in range(0, len(x), size)
    ]

    def fill(piece: tuple[Tensor, Tensor]) -> None:
        nonlocal done
        if apart:
            torch.set_num_threads(1)  # of this thread
        x, room = piece
        with torch.no_grad():
            rows = Rows(torch.arange(len(x)), size)
            room.copy_(rows.picked(module.frozen_features(rows.spread(x.to(device)))))
        with lock:
            done += len(x)
            if report is not None:
                report(done, planned)

    try:
        if apart:
            in_threads(fill, pieces)
        else:
            for piece in pieces:
                fill(piece)
    finally:
        torch.set_num_threads(threads)
