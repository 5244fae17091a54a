"""Sizes that contain the unknown size of the batch: formal numbers a·BATCH + c with small whole a and c.

The arithmetic of shapes runs on them as on ordinary integers. It is exact as long as a and c stay small, which
`check` ensures, and as long as no operator compares, rounds or multiplies two of them, which `allowed` refuses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lipcompile.diagnostics import Refusal

Array = NDArray[Any]
# No power of two is near one of its multiples, and no size: files hold some such numbers for `until the end`.
BATCH = 3 * 2**39 + 7
_MOST = 2**20  # of a and of c
# Stand for the number of the example itself, 0 to BATCH - 1, and for a number that is computed from it. They look
# like sizes with the batch in them, so that whatever refuses those refuses these.
OWN, OF_OWN = 2**19 * BATCH + 17, 2**19 * BATCH + 19


def is_formal(size: int) -> bool:
    """Whether a number contains the batch size."""
    factor, rest = _parts(size)
    return 0 < abs(factor) <= _MOST and abs(rest) <= _MOST


def _parts(size: int) -> tuple[int, int]:
    """Return (a, c) of the number a·BATCH + c, c as small as can be."""
    factor = (size + BATCH // 2) // BATCH
    return factor, size - factor * BATCH


def has_batch(array: Array) -> bool:
    """Whether an entry contains the batch size."""
    if array.dtype.kind not in "iu":
        return False
    return any(map(is_formal, array[np.abs(array) >= BATCH // 2].tolist()))


def of_own(array: Array) -> Array:
    """Return which entries depend on the example that they belong to; none of an array of other numbers does."""
    return np.isin(array, (OWN, OF_OWN)) if array.dtype.kind in "iu" else np.zeros(array.shape, bool)


def checked(array: Array) -> Array:
    """Return the array if it holds no number that stands for the batch size; raises Refusal."""
    if has_batch(array):
        raise Refusal("LIP102", f"a constant holds a whole number near {BATCH}, which is no size")
    return array


def multiple(size: int) -> int:
    """Return m of the size m·BATCH, 0 for a number without it; raises Refusal for any other formal number."""
    if not is_formal(size):
        return 0
    if size < 0 or size % BATCH:
        raise Refusal("LIP108", "a size is computed from the batch size: it differs from batch to batch")
    return size // BATCH


def allowed(op_type: str, arrays: Sequence[Array]) -> bool:
    """Whether an operator of arithmetic is exact on these operands, of which at least one is formal."""
    formal = [has_batch(array) for array in arrays]
    match op_type:
        case "Add" | "Sub" | "Neg" | "Shape" | "Size":
            return True
        case "Mul":
            return sum(formal) == 1 and all(_is_small(a) for a, f in zip(arrays, formal, strict=True) if not f)
        case "Div":
            return _divides(*arrays)
        case "Equal":
            return _differs(*arrays)
        case "Where":
            return not formal[0]
    return False


def _is_small(array: Array) -> bool:
    return array.dtype.kind in "iu" and bool((abs(array) <= _MOST).all())


def _divides(dividend: Array, divisor: Array) -> bool:
    """Whether every quotient is whole, and is that of the formal numbers: not so for divisors near BATCH."""
    divisors = divisor.reshape(-1).tolist()
    exact = all(0 < abs(entry) <= _MOST or is_formal(entry) for entry in divisors)
    return exact and bool((dividend % divisor == 0).all())


def _differs(left: Array, right: Array) -> bool:
    """Whether no batch size could make a formal number equal to what it is compared with.

    That is known of a·BATCH + c with a > 0 and c ≥ 0, and a negative number.
    """
    pairs = zip(*(side.reshape(-1).tolist() for side in np.broadcast_arrays(left, right)), strict=True)
    return all(_is_apart(*sorted(pair)) for pair in pairs if any(map(is_formal, pair)))


def _is_apart(low: int, high: int) -> bool:
    return low < 0 and not is_formal(low) and is_formal(high) and _parts(high)[1] >= 0


def check(array: Array) -> Array:
    """Return a result of arithmetic with formal numbers, which must have stayed exact; raises Refusal."""
    entries = array.reshape(-1).tolist() if array.dtype.kind in "iu" else ()
    if array.dtype.kind not in "iub" or any(abs(entry) > _MOST and not is_formal(entry) for entry in entries):
        raise Refusal("LIP108", "a size is computed from the batch size: it differs from batch to batch")
    return array


def shown(sizes: Sequence[int]) -> list[int | str]:
    """Return sizes for people: `batch` for the batch size, `8·batch` for a multiple of it."""
    return [_shown(size) for size in sizes]


def _shown(size: int) -> int | str:
    factor, rest = _parts(size)
    if not is_formal(size):
        return size
    return ("" if factor == 1 else f"{factor}·") + "batch" + (f"{rest:+}" if rest else "")
