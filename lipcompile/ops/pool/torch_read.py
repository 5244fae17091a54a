"""How an adaptive average pool becomes a product with a matrix, where its windows are not all alike.

ONNX has average pools of one window only. Torch's exporter writes the others entry by entry, which no rule covers:
those to a size that does not divide, and those to more entries than there were, which repeat them. It does so
behind a permutation of axes, too, as in ConvNeXt, to give the mean the strides that torch gives it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from onnx import numpy_helper
from torch.fx import Node

from lipcompile import limits
from lipcompile.ops.recurrent.torch_read import operators

Array = NDArray[Any]


def translations() -> Mapping[Callable[..., Any], Callable[..., Any]]:
    """Return what translates adaptive average pools, by the operator."""
    aten = torch.ops.aten
    pools = (aten.adaptive_avg_pool1d, aten.adaptive_avg_pool2d, aten.adaptive_avg_pool3d)
    return dict.fromkeys((pool.default for pool in pools), _pool)


def is_unwritten(node: Node) -> bool:
    """Whether a traced operation is an adaptive average pool that the exporter does not write as a pool."""
    if not str(node.target).startswith("aten.adaptive_avg_pool"):
        return False
    given: Any = node.args
    before, after = given[0].meta["val"], given[1]
    sizes = before.shape[-len(after) :]
    uneven = any(old % new for old, new in zip(sizes, after, strict=True))
    return uneven or prod(sizes) == 1 or not before.is_contiguous()


def _pool(input: Any, output_size: Sequence[int]) -> Any:  # noqa: A002  (names of torch's schema)
    """Translate `adaptive_avg_pool(input [B, channels, *spatial], output_size)`."""
    op = operators()
    channels, *sizes = input.shape[1:]
    if all(new == 1 for new in output_size):
        return op.GlobalAveragePool(input)
    if not any(old % new for old, new in zip(sizes, output_size, strict=True)):
        window = [old // new for old, new in zip(sizes, output_size, strict=True)]
        return op.AveragePool(input, kernel_shape=window, strides=window)
    limits.refuse_above("entries", prod(sizes) * prod(output_size), "the matrix of an adaptive pool has")
    matrix = reduce(np.kron, (_means(old, new) for old, new in zip(sizes, output_size, strict=True)))
    rows = op.Reshape(input, [0, channels, prod(sizes)])
    return op.Reshape(op.MatMul(rows, op.Constant(value=_tensor(matrix))), [0, channels, *output_size])


def _means(old: int, new: int) -> Array:
    """Return [old, new]: column j averages the entries ⌊j·old/new⌋ … ⌈(j + 1)·old/new⌉ - 1, as in torch."""
    matrix = np.zeros((old, new))
    for column in range(new):
        first, end = column * old // new, -(-(column + 1) * old // new)
        matrix[first:end, column] = 1 / (end - first)
    return matrix


def _tensor(array: Array) -> Any:
    return numpy_helper.from_array(array.astype("float32"))
