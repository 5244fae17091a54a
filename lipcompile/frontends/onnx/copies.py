"""Constants that a file copies for each example: one copy stands for all of them, along an axis that is known.

The array of such a constant has size 1 along its `copies` axis, where the file's tensor has the size of the batch.
An operator is followed if the copies stand along one axis of its result again, and nothing else meets that axis.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto

from lipcompile.diagnostics import Refusal
from lipcompile.frontends.onnx.layout import Layout, reshaped
from lipcompile.frontends.onnx.sizes import BATCH, OF_OWN, has_batch, of_own

Array = NDArray[Any]
KEEP = "keep the batch axis as it is: use -1"
# What exporters write for `until the end`.
_ENDLESS = 2**31 - 1


class Copied:
    """Operands of one operator: their arrays, and the axis of the copies of each, None for one without copies."""

    def __init__(self, proto: NodeProto, arrays: Sequence[Array], axes: Sequence[int | None]) -> None:
        self.proto, self.arrays, self.axes = proto, arrays, axes

    @property
    def axis(self) -> int:
        """The axis of the copies of the first operand; raises Refusal if another one is copied."""
        first, *others = self.axes
        if first is None or any(axis is not None for axis in others):
            raise self.refusal()
        return first

    def refusal(self) -> Refusal:
        """Return what is said of an operator that does not keep the copies apart."""
        return Refusal("LIP108", f"{self.proto.op_type} computes with copies for each example", KEEP)

    def integer(self, name: str, default: int) -> int:
        """Return a whole attribute."""
        return next((int(one.i) for one in self.proto.attribute if one.name == name), default)

    def whole(self, index: int, name: str) -> tuple[int, ...] | None:
        """Return whole numbers of an operand or, in older operator sets, of an attribute."""
        if index < len(self.arrays):
            return tuple(int(entry) for entry in self.arrays[index].reshape(-1))
        return next((tuple(one.ints) for one in self.proto.attribute if one.name == name), None)


def copies_of(proto: NodeProto, arrays: Sequence[Array], axes: Sequence[int | None]) -> int | None:
    """Return the axis of the copies in the results of an operator; raises Refusal (LIP108).

    arrays, axes: of the operands that are given, the axis None for those without copies; at least one has copies.
    """
    given = Copied(proto, arrays, axes)
    if any(map(has_batch, arrays)) and not _keeps_own(proto, arrays):
        raise given.refusal()
    if proto.op_type in ENTRYWISE:
        return _broadcast(given)
    if proto.op_type not in _MOVING:
        raise given.refusal()
    return _MOVING[proto.op_type](given)


def _keeps_own(proto: NodeProto, arrays: Sequence[Array]) -> bool:
    """Whether all that contains the batch is the numbers of the examples, and the operator hands these on."""
    rest = (np.where(of_own(array), 0, array) for array in arrays)
    return proto.op_type in _OF_OWN and not any(map(has_batch, rest))


def results_of_own(proto: NodeProto, arrays: Sequence[Array], axis: int | None) -> list[Array]:
    """Return what an operator makes of the numbers of the examples, with copies along an axis; of Max, no such
    number is left. Raises Refusal (LIP108) where one would be the number of another example, or no whole number.
    """
    if axis is None or any(array.dtype != np.int64 for array in arrays):
        raise Refusal("LIP108", f"{proto.op_type} computes with the numbers of the examples", KEEP)
    return [np.full_like(array, OF_OWN) if proto.op_type == "Max" else array for array in arrays]


def resized(proto: NodeProto, array: Array, axis: int, target: Sequence[int]) -> tuple[tuple[int, ...], int]:
    """Return the sizes of a copied constant after Reshape or Expand, 1 for the copies, and the axis of these.

    target: in which the size of the batch may stand; raises Refusal (LIP108) where copies become anything else.
    """
    refusal = Copied(proto, [array], [axis]).refusal()
    if proto.op_type == "Expand":
        return _expanded(array, axis, target, refusal)
    allowzero = any(one.name == "allowzero" and one.i for one in proto.attribute)
    if not allowzero and any(size == 0 and place >= array.ndim for place, size in enumerate(target)):
        raise refusal
    own = [BATCH if place == axis else size for place, size in enumerate(array.shape)]
    full = [own[place] if size == 0 and not allowzero else size for place, size in enumerate(target)]
    example = (*array.shape[:axis], *array.shape[axis + 1 :])
    shape, layout = reshaped(Layout(axis), example, full, None)
    if layout.outer or layout.inner:
        raise refusal
    return (*shape[: layout.axis], 1, *shape[layout.axis :]), layout.axis


def _expanded(array: Array, axis: int, target: Sequence[int], refusal: Refusal) -> tuple[tuple[int, ...], int]:
    rank = max(array.ndim, len(target))
    place = axis + rank - array.ndim
    sizes = [1] * (rank - len(target)) + list(target)
    if sizes[place] not in (1, BATCH):
        raise refusal
    sizes[place] = 1
    own = [1] * (rank - array.ndim) + list(array.shape)
    fits = all(old == new or 1 in (old, new) for old, new in zip(own, sizes, strict=True))
    if min(sizes) < 1 or BATCH in sizes or not fits:
        raise refusal
    return tuple(max(pair) for pair in zip(own, sizes, strict=True)), place


def sizes_of(array: Array, axis: int) -> tuple[int, ...]:
    """Return the sizes that a copied constant has in the file, that of the batch as a formal number."""
    return (*array.shape[:axis], BATCH, *array.shape[axis + 1 :])


def _broadcast(given: Copied) -> int:
    """Operands are aligned at their last axes: nothing but copies, or a size of 1, meets the axis of copies."""
    from_end = {
        array.ndim - axis for array, axis in zip(given.arrays, given.axes, strict=True) if axis is not None
    }
    if len(from_end) != 1:
        raise given.refusal()
    (place,) = from_end
    if any(array.ndim >= place and array.shape[array.ndim - place] != 1 for array in given.arrays):
        raise given.refusal()
    return max(array.ndim for array in given.arrays) - place


def _transposed(given: Copied) -> int:
    rank = given.arrays[0].ndim
    return (given.whole(1, "perm") or tuple(reversed(range(rank)))).index(given.axis)


def _unsqueezed(given: Copied) -> int:
    axes = given.whole(1, "axes") or ()
    rank = given.arrays[0].ndim + len(axes)
    made = {axis % rank for axis in axes}
    return [axis for axis in range(rank) if axis not in made][given.axis]


def _squeezed(given: Copied) -> int:
    axes, rank = given.whole(1, "axes"), given.arrays[0].ndim
    dropped = None if axes is None else {axis % rank for axis in axes}
    if dropped is None or given.axis in dropped:
        raise given.refusal()
    return given.axis - sum(axis < given.axis for axis in dropped)


def _sliced(given: Copied) -> int | None:
    """A slice that keeps all copies, or one of them, which is no copy any more."""
    starts, stops = given.whole(1, "starts") or (), given.whole(2, "ends") or ()
    axes = given.whole(3, "axes") or tuple(range(len(starts)))
    steps = given.whole(4, "steps") or (1,) * len(starts)
    for axis, start, stop, step in zip(axes, starts, stops, steps, strict=True):
        if axis % given.arrays[0].ndim != given.axis:
            continue
        if (start, stop, step) == (0, 1, 1):
            return None
        if start != 0 or stop < _ENDLESS or step != 1:
            raise given.refusal()
    return given.axis


def _gathered(given: Copied) -> int:
    """Rows of a table at copied indices, or entries of another axis than that of the copies."""
    table, indices = given.arrays
    axis = given.integer("axis", 0) % table.ndim
    of_table, of_indices = given.axes
    if of_table is None and of_indices is not None:
        return axis + of_indices
    if given.axis == axis:
        raise given.refusal()
    return given.axis + (indices.ndim - 1 if axis < given.axis else 0)


def _concatenated(given: Copied) -> int:
    axes, rank = set(given.axes), given.arrays[0].ndim
    axis = axes.pop()
    if axes or axis is None or given.integer("axis", 0) % rank == axis:
        raise given.refusal()
    return axis


def _tiled(given: Copied) -> int:
    """Repeats along other axes than that of the copies."""
    repeats = given.whole(1, "repeats") or ()
    if len(repeats) != given.arrays[0].ndim or repeats[given.axis] != 1:
        raise given.refusal()
    return given.axis


def _in_matrices(given: Copied) -> int:
    """What acts on the matrices of the last two axes, each by itself."""
    if given.axis >= given.arrays[0].ndim - 2:
        raise given.refusal()
    return given.axis


def _summed(given: Copied) -> int:
    """Running sums along another axis than that of the copies."""
    along = int(given.arrays[1].reshape(-1)[0]) % given.arrays[0].ndim
    if along == given.axis:
        raise given.refusal()
    return given.axis


ENTRYWISE = frozenset(
    (
        *("Identity", "Cast", "Neg", "Abs", "Not", "Sqrt", "Exp", "Log", "Add", "Sub", "Mul", "Div", "Mod"),
        *("Max", "Min", "Clip"),
        *("And", "Or", "Xor", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Where"),
    )
)
# Operators that move the numbers of the examples, and Max, whose result nothing reads but for its sizes.
_OF_OWN = frozenset(("Concat", "Transpose", "Unsqueeze", "Squeeze", "Slice", "Identity", "Max"))
_MOVING: Mapping[str, Callable[[Copied], int | None]] = {
    "Concat": _concatenated,
    "CumSum": _summed,
    "Gather": _gathered,
    "Slice": _sliced,
    "Squeeze": _squeezed,
    "Tile": _tiled,
    "Transpose": _transposed,
    "Trilu": _in_matrices,
    "Unsqueeze": _unsqueezed,
}
