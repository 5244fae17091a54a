"""Certified norms of weights that were measured before: for programs that are built over and over, nearly alike.

A certificate is a theorem about the entries of a weight and the map that they stand for, so it holds for whatever
has the same entries and map. It is found again by a digest of the entries.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from hashlib import sha256

import torch
from torch import Tensor

from ..devices import is_processor
from .norms import Norm


@dataclass(slots=True)
class _Facts:
    """The numbers of one norm that were asked for so far; limits: whether it is certified to be at most each."""

    bound: float | None = None
    coarse: float | None = None
    limits: dict[float, bool] = field(default_factory=dict)


class Memory:
    """The norms that were measured under `remembering`."""

    def __init__(self) -> None:
        self._known: dict[Hashable, _Facts] = {}

    def norm(self, operator: Hashable, weight: Tensor, measure: Callable[[Tensor], Norm]) -> Norm:
        """Return the norm of a weight on a processor, as `measure` would, by what is known of equal weights."""
        entries = weight.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data
        key = operator, weight.dtype, weight.shape, sha256(entries).digest()
        return _Remembered(self._known.setdefault(key, _Facts()), weight.detach().clone(), measure)


class _Remembered:
    """A norm of a copy that nobody writes to, measured where it is asked for what is not known yet."""

    def __init__(self, facts: _Facts, weight: Tensor, measure: Callable[[Tensor], Norm]) -> None:
        self._facts, self._weight, self._measure = facts, weight, measure
        self._norm: Norm | None = None

    def _measured(self) -> Norm:
        if self._norm is None:
            self._norm = self._measure(self._weight)
        return self._norm

    @property
    def bound(self) -> float:
        if self._facts.bound is None:
            self._facts.bound = self._measured().bound
        return self._facts.bound

    @property
    def coarse(self) -> float:
        if self._facts.coarse is None:
            self._facts.coarse = self._measured().coarse
        return self._facts.coarse

    def at_most(self, limit: float) -> bool:
        if limit not in self._facts.limits:
            self._facts.limits[limit] = self._measured().at_most(limit)
        return self._facts.limits[limit]


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
