"""The columns of a matrix, which follow from a schema alone: names and ranges."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lipcompile.tables.schema import Boolean, Category, Column, Date, Ignore, Number, Range, Schema

NOT_PUBLIC: Range = (math.nan, math.nan)
_INDICATOR: Range = (0.0, 1.0)


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """The d encoded columns.

    Args:
        names: of the columns.
        low: float64 [d], ends of the public ranges, of logarithms where a column is one; NaN if it is not public.
        high: float64 [d].
    """

    names: tuple[str, ...]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


def layout(schema: Schema) -> Layout:
    """Return what the encoded columns are."""
    found = [one for column in schema.columns for one in _encoded(column)]
    ends = np.array([ends for _, ends in found], np.float64).reshape(-1, 2)
    return Layout(tuple(name for name, _ in found), ends[:, 0].copy(), ends[:, 1].copy())


def open_ranges(schema: Schema) -> int:
    """Return how many ranges are not public."""
    return int(np.isnan(layout(schema).low).sum())


def width(column: Column) -> int:
    """Return how many encoded columns a column has."""
    return len(_encoded(column))


def scaled(values: NDArray[np.float64], column: Number) -> NDArray[np.float64]:
    """Return numbers, or signed logarithms of one plus their sizes if the column says so."""
    return np.sign(values) * np.log1p(np.abs(values)) if column.log else values


def _encoded(column: Column) -> list[tuple[str, Range]]:
    """Return name and range of each encoded column."""
    name = column.name
    match column:
        case Ignore():
            return []
        case Boolean():
            return [(name, _INDICATOR)]
        case Date():
            return [(name, column.range or NOT_PUBLIC)]
        case Number():
            found = [(name, _ends(column))]
        case Category(values=None):
            found = [(f"{name}#{bucket}", _INDICATOR) for bucket in range(column.buckets)]
        case Category(values=values):
            found = [(f"{name}={value}", _INDICATOR) for value in values or ()]
    return found + ([(f"{name} missing", _INDICATOR)] if column.missing else [])


def _ends(column: Number) -> Range:
    if column.range is None:
        return NOT_PUBLIC
    low, high = scaled(np.array(column.range), column)
    return float(low), float(high)
