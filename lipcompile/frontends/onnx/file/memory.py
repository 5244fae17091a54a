"""How large results of operators on constants are, told before they are computed, and what all of them take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto

from lipcompile import limits

Array = NDArray[Any]
# Bytes of the largest kind of number in use.
_WIDEST = 8
_ENDLESS = 2**62
# Operators whose result has the entries of their operands, or fewer.
_KEEPING = frozenset(
    (
        *("Identity", "Cast", "Unsqueeze", "Squeeze", "Slice", "Reshape", "Transpose", "Flatten", "Split"),
        *("Neg", "Abs", "Sqrt", "Reciprocal", "Floor", "Ceil", "Not", "Trilu", "Shape", "Constant"),
        *("ReduceProd", "ReduceSum", "ReduceMean", "ReduceL2", "CumSum", "EyeLike"),
        *("ScatterElements", "ScatterND"),
    )
)


def expect(proto: NodeProto, arrays: Sequence[Array]) -> None:
    """Raise InputError (LIP018) if the result of an operator would exceed what constants may take."""
    expect_array((entries(proto.op_type, arrays, axis_of(proto)),))


def axis_of(proto: NodeProto) -> int:
    """Return the axis of an operator, 0 if it names none."""
    return next((attribute.i for attribute in proto.attribute if attribute.name == "axis"), 0)


def expect_array(shape: Sequence[int]) -> None:
    """Raise InputError (LIP018) if an array with the entries of an example is above the limit of constants."""
    size = _WIDEST * prod(shape)
    limits.demand("constants", limits.spent("constants") + size, "the constants that the file computes take")


def count(results: Sequence[Array], operands: Mapping[str, Array]) -> None:
    """Count the memory of results that are no views of their operands."""
    new = [one for one in results if not any(np.may_share_memory(one, other) for other in operands.values())]
    limits.spend("constants", sum(array.nbytes for array in new), "the constants that the file computes take")


def entries(op_type: str, arrays: Sequence[Array], axis: int = 0) -> int:
    """Return the most entries that an operator makes of these operands; 0 if no more than one of them has."""
    if op_type in _KEEPING or not arrays:
        return 0
    match op_type:
        case "ConstantOfShape":
            return _product(arrays[0])
        case "Expand" if len(arrays) == 2:
            return _broadcast([arrays[0].shape, _sizes(arrays[1])])
        case "Concat":
            return sum(array.size for array in arrays)
        case "Tile" if len(arrays) == 2:
            return int(arrays[0].size) * _product(arrays[1])
        case "Range":
            return _steps(arrays)
        case "Gather" if len(arrays) == 2 and -arrays[0].ndim <= axis < arrays[0].ndim:
            return int(arrays[0].size // max(arrays[0].shape[axis], 1) * arrays[1].size)
        case "GatherND" if len(arrays) == 2 and arrays[0].ndim and arrays[1].ndim:
            rows = arrays[1].size // max(arrays[1].shape[-1], 1)
            return int(rows * (arrays[0].size // max(arrays[0].shape[0], 1)))
        case "GatherElements":
            return int(arrays[-1].size)
        case "Einsum":
            return prod(int(array.size) for array in arrays)
        case "Gemm" if len(arrays) > 1:
            return prod(max(array.shape, default=1) for array in arrays[:2])
        case "Resize" if arrays[-1].dtype.kind in "iu":
            return _product(arrays[-1])
        case "Resize":
            return arrays[0].size * int(prod(max(float(scale), 1.0) for scale in arrays[-1].reshape(-1)[:64]) + 1)
        case "Pad" if len(arrays) > 1:
            more = sum(_sizes(arrays[1]))
            return prod(size + more for size in arrays[0].shape)
        case "NonZero":
            return int(arrays[0].size * max(arrays[0].ndim, 1))
        case "MatMul" if len(arrays) == 2:
            return _rows(arrays[0]) * _rows(arrays[1].T)
    return _broadcast([array.shape for array in arrays])


def _sizes(array: Array) -> tuple[int, ...]:
    """Return the entries of a shape; other kinds of numbers, or more than an array can have axes, are none."""
    if array.dtype.kind not in "iu":
        return ()
    return tuple(max(abs(int(size)), 1) for size in array.reshape(-1)[:64].tolist())


def _product(array: Array) -> int:
    return prod(_sizes(array))


def _steps(arrays: Sequence[Array]) -> int:
    if len(arrays) != 3 or any(array.size != 1 or array.dtype.kind not in "iuf" for array in arrays):
        return 0
    start, stop, step = (float(array.reshape(-1)[0]) for array in arrays)
    steps = abs(stop - start) / abs(step) if step else 0.0
    return int(steps) + 1 if steps < _ENDLESS else _ENDLESS


def _rows(array: Array) -> int:
    return array.size // max(array.shape[-1], 1) if array.ndim > 1 else 1


def _broadcast(shapes: Sequence[tuple[int, ...]]) -> int:
    """Return the entries of shapes that are broadcast to one another."""
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    return prod(max(sizes) for sizes in zip(*padded, strict=True))
