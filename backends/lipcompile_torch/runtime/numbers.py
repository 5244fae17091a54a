"""The functions that emitted bounds call, for floats and for 0-dim tensors alike."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

N = TypeVar("N", float, Tensor)


def sqrt(x: N) -> N:
    """Return √x."""
    return torch.sqrt(x) if isinstance(x, Tensor) else math.sqrt(x)


def exp(x: N) -> N:
    """Return e^x."""
    return torch.exp(x) if isinstance(x, Tensor) else math.exp(x)


def log(x: int) -> float:
    """Return the natural logarithm of an integer."""
    return math.log(x)


def minimum(*xs: float | Tensor) -> float | Tensor:
    """Return the smallest of several numbers."""
    return min(xs)


def maximum(*xs: float | Tensor) -> float | Tensor:
    """Return the largest of several numbers."""
    return max(xs)


def max_over(start: int, stop: int, term: Callable[[int], float | Tensor]) -> float | Tensor:
    """Return the largest `term(m)` over start <= m < stop."""
    return max(term(m) for m in range(start, stop))
