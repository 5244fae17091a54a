"""Objects of Python as arrays of pyarrow, whose type follows from what all of them are.

One value of another kind would else change the type of its column, and with it the values of all other rows: a
number among truth values, a date among times, a text among numbers. Such a column is refused.
"""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lipcompile.tables.values import arrow

# The first that a value is an instance of; a time is a date, too, and a truth value a number.
_KINDS: tuple[tuple[str, tuple[type, ...]], ...] = (
    ("truth value", (bool, np.bool_)),
    ("number", (int, float, np.integer, np.floating)),
    ("text", (str,)),
    ("decimal", (Decimal,)),
    ("time", (datetime.datetime, np.datetime64)),
    ("date", (datetime.date,)),
)
_NOTHING = ("NAType", "NaTType")  # of pandas, which need not be there
_EXACT = 2**53  # beyond, floats do not hold all whole numbers


class MixedError(ValueError):
    """Objects of several kinds; says not which."""


def from_objects(values: NDArray[Any]) -> Any:
    """Return objects [N] as an array of pyarrow; None, NaN, NaT and NA are missing.

    Raises:
        MixedError: they are of several kinds, or times with and without a zone, or floats beside whole numbers
            that no float holds.
        ValueError, TypeError, OverflowError: pyarrow has no type for them.
    """
    plain = [value.item() if isinstance(value, np.number | np.bool_) else value for value in values]
    present = [value for value in plain if not _is_missing(value)]
    if len(set(map(_kind, present))) > 1:
        raise MixedError
    whole = [value for value in present if type(value) is int]
    if whole and any(type(value) is float for value in present):
        if any(abs(value) > _EXACT for value in whole):
            raise MixedError
        plain = [None if _is_missing(value) else float(value) for value in plain]
    return arrow().array(plain, from_pandas=True)


def _is_missing(value: Any) -> bool:
    if isinstance(value, float):
        return value != value
    return value is None or type(value).__name__ in _NOTHING


def _kind(value: Any) -> tuple[object, bool]:
    """Return the kind of a value, which for types that are not listed is the type; and whether it has a zone."""
    kind = next((name for name, types in _KINDS if isinstance(value, types)), type(value))
    return kind, kind == "time" and getattr(value, "tzinfo", None) is not None
