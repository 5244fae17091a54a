"""How a product of entries along an axis, and running products, become products of slices.

Torch's exporter has no words for running products, and no rule covers ONNX's product of the entries of one tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

from lipcompile.ops.recurrent.torch_read import operators

_MOST = 512


def translations() -> Mapping[Callable[..., Any], Callable[..., Any]]:
    """Return what translates products along an axis, by the operator."""
    import torch

    aten = torch.ops.aten
    return {aten.prod.dim_int: _product, aten.cumprod.default: _running}


def _product(self: Any, dim: int, keepdim: bool = False, dtype: int | None = None) -> Any:
    """Translate `prod(self, dim, keepdim)` of real numbers."""
    op = operators()
    if not isinstance(self.shape[dim], int):
        return _refused(self, dim)
    made = reduce(op.Mul, _entries(self, dim))
    return made if keepdim else op.Squeeze(made, [dim])


def _running(self: Any, dim: int, dtype: int | None = None) -> Any:
    """Translate `cumprod(self, dim)` of real numbers."""
    if not isinstance(self.shape[dim], int):
        return _refused(self, dim)
    op, (first, *others) = operators(), _entries(self, dim)
    made = [first]
    for entry in others:
        made.append(op.Mul(made[-1], entry))
    return op.Concat(*made, axis=dim) if others else op.Identity(first)


def _refused(whole: Any, dim: int) -> Any:
    """Write what the importer refuses over the batch (LIP108), also of a constant that each example has."""
    return operators().CumSum(whole, dim)


def _entries(whole: Any, dim: int) -> list[Any]:
    """Cut an axis of known size into its entries."""
    count = whole.shape[dim]
    if count > _MOST:
        raise ValueError(f"a product of {count} entries, of which {_MOST} are supported")
    return [operators().Slice(whole, [place], [place + 1], [dim]) for place in range(count)]
