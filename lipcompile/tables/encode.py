"""Rows as numbers: every column by its kind, each row by itself, so that no statistic of the rows enters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lipcompile.diagnostics import InputError, input_error
from lipcompile.tables.arrow import guarded
from lipcompile.tables.layout import layout, scaled, width
from lipcompile.tables.names import check_names
from lipcompile.tables.schema import Boolean, Category, Column, Date, Ignore, Number, Schema
from lipcompile.tables.values import ABSENT, MISSING, UnfitError, codes, days, flags, numbers, texts

Block = NDArray[np.float32]
Targets = NDArray[Any]

_LARGEST = float(np.finfo(np.float32).max)
# What a column of a kind holds.
_HOLDS: dict[type, str] = {
    Number: "a number",
    Category: "a text or a number",
    Boolean: "yes or no",
    Date: "a date such as 2020-01-31",
}


@dataclass(frozen=True, slots=True, eq=False)
class Encoded:
    """Rows as a matrix, for a learner that clips to the ranges, and estimates those that are not public.

    Args:
        x: float32 [N, d], finite, or NaN where a value is missing; values may lie outside of their ranges.
        low: float64 [d], ends of the public ranges; NaN where a range is not public.
        high: float64 [d].
        names: of the d columns.
        y: classes as text, object [N], None where there is none; or numbers, float64 [N], NaN where there is none;
            None if the table has no target.
    """

    x: Block = field(repr=False)
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    names: tuple[str, ...]
    y: Targets | None = field(default=None, repr=False)

    def outside(self) -> dict[str, float]:
        """Return the share of rows with a value outside of its public range, of each column that has some."""
        ends = zip(self.low.astype(np.float32), self.high.astype(np.float32), strict=True)
        shares = [float(((x < low) | (x > high)).mean()) for x, (low, high) in zip(self.x.T, ends, strict=True)]
        return {name: share for name, share in zip(self.names, shares, strict=True) if share}


def encode(table: Any, schema: Schema, place: str = "the table") -> Encoded:
    """Encode a Table or RecordBatch of pyarrow.

    Args:
        table: columns are found by name; those that the schema does not have are not looked at. The target may be
            missing.
        schema: what its columns are.
        place: how an error calls it.

    Raises:
        InputError: LIP411, a column is not there; LIP413, it holds something else than the schema says.
    """
    batches = table.to_batches() if hasattr(table, "to_batches") else [table]
    parts = [encoded_batch(batch, schema, place) for batch in batches]
    x = [x for x, _ in parts] or [np.empty((0, len(layout(schema).names)), np.float32)]
    return assembled(np.concatenate(x), [y for _, y in parts if y is not None], schema)


def assembled(x: Block, targets: Sequence[Targets], schema: Schema) -> Encoded:
    """Return encoded rows, with the targets of their pieces in order; of none the table has no target."""
    columns = layout(schema)
    return Encoded(x, columns.low, columns.high, columns.names, np.concatenate(targets) if targets else None)


def encoded_batch(batch: Any, schema: Schema, place: str) -> tuple[Block, Targets | None]:
    """Return the matrix of a RecordBatch, float32 [N, d], and its targets, [N], if it has any; as `encode`."""
    columns = [column for column in schema.columns if not isinstance(column, Ignore)]
    check_names([column.name for column in columns], batch.schema.names, place)
    x = np.zeros((batch.num_rows, sum(map(width, columns))), np.float32)
    start = 0
    with guarded(place):
        for column in columns:
            try:
                _fill(column, batch.column(column.name), x[:, start : start + width(column)])
            except UnfitError:
                raise _unfit(column.name, _HOLDS[type(column)], place) from None
            start += width(column)
        return x, _targets(batch, schema, place)


def _targets(batch: Any, schema: Schema, place: str) -> Targets | None:
    if schema.target is None or schema.target not in batch.schema.names:
        return None
    check_names([schema.target], batch.schema.names, place)
    classes = schema.task == "classification"
    try:
        return (texts if classes else numbers)(batch.column(schema.target))
    except UnfitError:
        raise _unfit(schema.target, _HOLDS[Category if classes else Number], place) from None


def _unfit(name: str, holds: str, place: str) -> InputError:
    message = f"{place}: column `{name}` contains a value that is not {holds}"
    return input_error("LIP413", message, "fix those rows, or change the kind of the column in the schema")


def _fill(column: Column, array: Any, out: Block) -> None:
    """Write the encoded columns of a column, [N, width], to zeros; raises UnfitError."""
    match column:
        case Number():
            values = scaled(numbers(array), column)
            out[:, 0] = np.clip(values, -_LARGEST, _LARGEST)
            if column.missing:
                out[:, 1] = np.isnan(values)
        case Date():
            out[:, 0] = days(array)
        case Boolean():
            out[:, 0] = flags(array)
        case Category():
            found = codes(array, _coding(column))
            (rows,) = np.nonzero(found >= 0)
            out[rows, found[rows]] = 1
            if column.missing:
                out[:, -1] = found == ABSENT


def _coding(column: Category) -> Callable[[str], int | None]:
    """Return what numbers the names of a category."""
    if column.values is None:
        return lambda text: None if text in MISSING else bucket(text, column.buckets)
    return {name: code for code, name in enumerate(column.values)}.get


def bucket(text: str, buckets: int) -> int:
    """Return the bucket of a name: a fixed public hash of its UTF-8, below `buckets`."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest()) % buckets
