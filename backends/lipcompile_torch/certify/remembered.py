"""Certified norms of weights that were measured before: for programs that are built over and over, nearly alike.

A certificate is a theorem about the entries of a weight and the map that they stand for, so it holds for whatever
has the same entries and map. It is found again by a digest of the entries.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor

from ..devices import is_processor
from .norms import Norm


class Memory:
    """The norms that were measured under `remembering`."""

    def __init__(self) -> None:
        self._known: dict[Hashable, dict[Hashable, Any]] = {}

    def norm(self, operator: Hashable, weight: Tensor, measure: Callable[[Tensor], Norm]) -> Norm:
        """Return the norm of a weight on a processor, as `measure` would, by what is known of equal weights."""
        entries = weight.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data
        key = operator, weight.dtype, weight.shape, sha256(entries).digest()
        return _Remembered(self._known.setdefault(key, {}), weight.detach().clone(), measure)


class _Remembered:
    """A norm of a copy that nobody writes to, measured where it is asked for what is not known yet.

    Args:
        known: "bound", "coarse", and whether the norm is at most each limit, as far as asked for.
    """

    def __init__(self, known: dict[Hashable, Any], weight: Tensor, measure: Callable[[Tensor], Norm]) -> None:
        self._known, self._norm = known, cache(lambda: measure(weight))

    def _recalled(self, what: Hashable, find: Callable[[Norm], Any]) -> Any:
        if what not in self._known:
            self._known[what] = find(self._norm())
        return self._known[what]

    @property
    def bound(self) -> float:
        return float(self._recalled("bound", lambda norm: norm.bound))

    @property
    def coarse(self) -> float:
        return float(self._recalled("coarse", lambda norm: norm.coarse))

    def at_most(self, limit: float) -> bool:
        return bool(self._recalled(limit, lambda norm: norm.at_most(limit)))


_MEMORY: ContextVar[Memory | None] = ContextVar("norms measured before", default=None)


@contextmanager
def remembering(memory: Memory | None) -> Iterator[None]:
    """Recall norms from a memory meanwhile, and add to it what is measured; None: measure everything."""
    token = _MEMORY.set(memory)
    try:
        yield
    finally:
        _MEMORY.reset(token)


def norm_of(operator: Hashable, weight: Tensor, measure: Callable[[Tensor], Norm]) -> Norm:
    """Return the norm of a weight under an operator, recalled if there is a memory of it, else measured."""
    memory = _MEMORY.get()
    if memory is None or not weight.numel() or not is_processor(weight.device):
        return measure(weight)
    return memory.norm(operator, weight, measure)
