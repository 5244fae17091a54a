"""The functions that emitted bounds call, for floats, intervals and 0-dim tensors alike."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from .intervals import Interval as Interval
from .intervals import extreme

N = TypeVar("N", float, Tensor, Interval)
Number = Interval | float


def sqrt(x: N) -> N:
    """Return √x."""
    if isinstance(x, Interval):
        return x.sqrt()
    return torch.sqrt(x) if isinstance(x, Tensor) else math.sqrt(x)


def exp(x: N) -> N:
    """Return e^x."""
    if isinstance(x, Interval):
        return x.exp()
    return torch.exp(x) if isinstance(x, Tensor) else math.exp(x)


def log(x: int) -> float:
    """Return the natural logarithm of an integer."""
    return math.log(x)


def minimum(*xs: Any) -> Any:
    """Return the smallest of several numbers."""
    return extreme(min, xs) if _intervals(xs) else min(xs)


def maximum(*xs: Any) -> Any:
    """Return the largest of several numbers."""
    return extreme(max, xs) if _intervals(xs) else max(xs)


def max_over(start: int, stop: int, term: Callable[[int], Any]) -> Any:
    """Return the largest `term(m)` over start <= m < stop."""
    return maximum(*(term(m) for m in range(start, stop)))


def _intervals(xs: tuple[Any, ...]) -> bool:
    return any(isinstance(x, Interval) for x in xs)
