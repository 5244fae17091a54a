"""How a variance of torch becomes means of squares: its own exporter drops the axes, and copies them back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import torch

from lipcompile.ops.recurrent.torch_read import operators


def translations() -> Mapping[Callable[..., Any], Callable[..., Any]]:
    """Return what translates variances, by the operator."""
    return {torch.ops.aten.var.correction: _var}


def _var(
    self: Any, dim: Sequence[int] | None = None, correction: float | None = None, keepdim: bool = False
) -> Any:
    """Translate `var(self, dim, correction, keepdim)`: Σ(x - μ)²/(n - correction) over n entries."""
    op = operators()
    axes = list(dim) if dim else list(range(len(self.shape)))
    if not all(isinstance(self.shape[axis], int) for axis in axes):
        return op.ReduceMean(self, axes=axes)  # over the batch: refused as such
    centred = op.Sub(self, op.ReduceMean(self, axes=axes, keepdims=1))
    variance = op.ReduceMean(op.Mul(centred, centred), axes=axes, keepdims=int(keepdim))
    lost = 1 if correction is None else correction
    if not lost:
        return variance
    entries = prod(self.shape[axis] for axis in axes)
    return op.Mul(variance, op.CastLike(op.Constant(value_float=entries / (entries - lost)), variance))
