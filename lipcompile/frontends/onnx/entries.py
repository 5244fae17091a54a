"""Which entries of the stored tensors a constant consists of: a weight may have one of them several times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto

from lipcompile.frontends.onnx.values import Known, fold, is_floating

Array = NDArray[Any]
_SAME = frozenset(("Identity", "Cast", "CastLike"))
_ORDER = frozenset(("Transpose", "Reshape", "Unsqueeze", "Squeeze", "Flatten"))
# A negated entry has the negated number.
_CHOICE = frozenset(("Concat", "Gather", "GatherElements", "GatherND", "Neg", "Slice", "Split", "Expand", "Tile"))
# Numbers of entries are doubles, since whole numbers may be sizes of the batch: 2^22 tensors of 2^31 entries.
_TENSORS, _ENTRIES = 2**22, 2**31


def with_entries(
    proto: NodeProto, operands: Sequence[Known | None], results: list[Known], version: int
) -> list[Known]:
    """Return the results of a node on constants, with the entries of its operands that they consist of."""
    moved = [operand is not None and is_floating(operand.array) for operand in operands]
    of = [one.entries for one, is_moved in zip(operands, moved, strict=True) if one is not None and is_moved]
    if proto.op_type in _SAME and of:
        return [replace(result, entries=of[0]) for result in results]
    turned = proto.op_type == "Transpose" and any(one is not None and one.reused for one in operands)
    orders = proto.op_type in _ORDER and (turned or any(entries is not None for entries in of))
    if not of or not (orders or proto.op_type in _CHOICE) or not any(result.sources for result in results):
        return results
    numbered = [
        replace(one, array=_entries(one)) if one is not None and is_moved else one
        for one, is_moved in zip(operands, moved, strict=True)
    ]
    found = fold(proto, numbered, version)
    return [replace(result, entries=one.array) for result, one in zip(results, found, strict=True)]


def repeats(known: Known) -> bool:
    """Whether an entry of a stored tensor is in a constant several times, beside copies for each example."""
    if known.entries is None:
        return False
    stored = abs(known.entries[~np.isnan(known.entries)])
    return np.unique(stored).size < stored.size


def tied(known: Known) -> Known:
    """Return a constant with one entry along each axis along which it repeats those of the stored tensors."""
    if known.entries is None:
        return known
    array, entries = known.array, known.entries
    for axis in range(array.ndim):
        first = entries.take([0], axis) if array.shape[axis] else entries
        if bool((entries == first).all()):  # NaN is none of them, and equals nothing
            array, entries = array.take(range(first.shape[axis]), axis), first
    return replace(known, array=array, entries=entries)


def _entries(known: Known) -> Array:
    """Return a number for each entry, the same for the same one of a stored tensor; NaN for what is not stored.

    What is computed from a stored tensor has numbers of its own, the same where it is computed in the same way.
    """
    if known.entries is not None:
        return known.entries
    if not known.sources:
        return np.full(known.array.shape, np.nan)
    made = (sorted(known.sources), known.moves if known.computed else ())
    first = 1 + crc32(repr(made).encode()) % _TENSORS * _ENTRIES
    return np.arange(first, first + known.array.size, dtype=np.float64).reshape(known.array.shape)
