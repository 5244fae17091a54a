"""Rows as numbers: every column by its kind, each row by itself, so that no statistic of the rows enters.

Names and ranges of the columns of the matrix follow from the schema alone.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lipcompile.diagnostics import InputError, input_error
from lipcompile.tables.read import check_names
from lipcompile.tables.schema import Boolean, Category, Column, Date, Ignore, Number, Range, Schema, Text
from lipcompile.tables.tokens import content, token_buckets, vocabulary
from lipcompile.tables.values import ABSENT, MISSING, UnfitError, codes, days, flags, guarded, numbers, texts

Block = NDArray[np.float32]
Targets = NDArray[Any]

_LARGEST = float(np.finfo(np.float32).max)
_PIECE = 2**14  # rows
# What a column of a kind holds.
_HOLDS: dict[type, str] = {
    Number: "a number",
    Category: "a text or a number",
    Boolean: "yes or no",
    Date: "a date such as 2020-01-31",
    Text: "a text or a number",
}


@dataclass(frozen=True, slots=True, eq=False)
class Encoded:
    """Rows as a matrix, for a learner that clips to the ranges, and estimates those that are not public.

    Args:
        x: float32 [N, d], finite, or NaN where a value is missing; values may lie outside of their ranges.
        low: float64 [d], ends of the public ranges, of logarithms where a column is one; NaN where not public.
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
        low, high = self.low.astype(np.float32), self.high.astype(np.float32)
        counts = np.zeros(len(self.names), np.int64)
        for start in range(0, len(self.x), _PIECE):
            rows = self.x[start : start + _PIECE]
            counts += ((rows < low) | (rows > high)).sum(axis=0)
            release(self.x)
        return {name: int(n) / len(self.x) for name, n in zip(self.names, counts, strict=True) if n}


def release(x: Block) -> None:
    """Give back the memory that was read of the file of a matrix; it is read again where it is needed."""
    if isinstance(x.base, mmap.mmap):
        x.base.madvise(mmap.MADV_DONTNEED)


def assembled(x: Block, targets: Sequence[Targets], schema: Schema) -> Encoded:
    """Return encoded rows, with the targets of their pieces in order; of none the table has no target."""
    return replace(layout(schema), x=x, y=np.concatenate(targets) if targets else None)


def encoded_batch(batch: Any, schema: Schema, place: str) -> tuple[Block, Targets | None]:
    """Return the matrix of a RecordBatch, float32 [N, d], and its targets, [N], if it has any; raises InputError.

    LIP411: a column of the schema is not there. LIP413: one holds something else than the schema says.
    """
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
    classes, column = schema.task == "classification", batch.column(schema.target)
    try:
        return texts(column) if classes else numbers(column, decimal=schema.target_decimal)
    except UnfitError:
        raise _unfit(schema.target, _HOLDS[Category if classes else Number], place) from None


def _unfit(name: str, holds: str, place: str) -> InputError:
    message = f"{place}: column `{name}` contains a value that is not {holds}"
    return input_error("LIP413", message, "fix those rows, or change the kind of the column in the schema")


def _fill(column: Column, array: Any, out: Block) -> None:
    """Write the encoded columns of a column, [N, width], to zeros; raises UnfitError."""
    match column:
        case Number():
            values = scaled(measured(column, array), column)
            out[:, 0] = np.clip(values, -_LARGEST, _LARGEST)
            if column.missing:
                out[:, 1] = np.isnan(values)
        case Date():
            out[:, 0] = measured(column, array)
        case Boolean():
            out[:, 0] = flags(array)
        case Category():
            found = codes(array, _coding(column))
            (rows,) = np.nonzero(found >= 0)
            out[rows, found[rows]] = 1
            if column.missing:
                out[:, -1] = found == ABSENT
        case Text():
            tokenizer = content(column.tokenizer)
            out[token_buckets(texts(array), tokenizer, _buckets(tokenizer, column.buckets))] = 1


def measured(column: Number | Date, array: Any) -> NDArray[np.float64]:
    """Return the numbers or the days of a column, NaN where one is missing, [N]; raises UnfitError."""
    if isinstance(column, Date):
        return days(array, column.format)
    return numbers(array, decimal=column.decimal, coerce=column.coerce)


def _coding(column: Category) -> Callable[[str], int | None]:
    """Return what numbers the names of a category."""
    if column.values is None:
        return lambda text: None if text in MISSING else bucket(text, column.buckets)
    return {name: code for code, name in enumerate(column.values)}.get


def bucket(text: str, buckets: int) -> int:
    """Return the bucket of a name: a fixed public hash of its UTF-8, below `buckets`."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest()) % buckets


@lru_cache(maxsize=8)
def _buckets(tokenizer: str, buckets: int) -> tuple[int, ...]:
    """Return the bucket of each token of a tokenizer's vocabulary."""
    return tuple(bucket(token, buckets) for token in vocabulary(tokenizer))


# --- the columns of the matrix, which follow from a schema alone ---

NOT_PUBLIC: Range = (math.nan, math.nan)
# In standard deviations of noise. Most buckets of names are empty, and few of tokens.
_OF_NAMES, _OF_TOKENS = 2.0, 1.0
_TOKENS = 32  # buckets that most texts fill at most; a row with more is cut
_INDICATOR: Range = (0.0, 1.0)


def layout(schema: Schema) -> Encoded:
    """Return what the encoded columns are: a matrix without rows."""
    found = [one for column in schema.columns for one in _encoded(column)]
    low, high = np.array([ends for _, ends in found], np.float64).reshape(-1, 2).T.copy()
    return Encoded(np.empty((0, len(found)), np.float32), low, high, tuple(name for name, _ in found))


@dataclass(frozen=True, slots=True, eq=False)
class Indicators:
    """Which of d encoded columns are zeros and ones.

    Args:
        which: bool [d].
        source: by number, the column of the table that each is of, [d].
        ones: how many of them are 1 in a row, as a rule; those of missing numbers stand for their number.
        threshold: how many standard deviations of noise the mean of each must exceed to be read, [d]; -inf: it is
            read anyway.
    """

    which: NDArray[np.bool_]
    source: NDArray[np.int64]
    ones: int
    threshold: NDArray[np.float64]

    @classmethod
    def none(cls, columns: int) -> Indicators:
        """Return that none of so many columns is known to be one."""
        return cls(np.zeros(columns, np.bool_), np.arange(columns), 0, np.full(columns, -math.inf))

    @property
    def categories_alone(self) -> bool:
        """Whether each column of the table is a category or boolean."""
        return bool(self.which.all()) and self.ones == len(np.unique(self.source))


def indicators(schema: Schema) -> Indicators:
    """Return which encoded columns are indicators."""
    which, source, ones, threshold = [], [], 0, []
    for number, column in enumerate(schema.columns):
        count = width(column)
        source += [number] * count
        match column:
            case Boolean():  # rare or not, it is no empty bucket
                found, most, least = [True], 1, -math.inf
            case Category():
                found, most, least = [True] * count, 1, _OF_NAMES
            case Text():
                found, most, least = [True] * count, min(count, _TOKENS), _OF_TOKENS
            case _:
                found, most, least = [False, True][:count], 0, _OF_NAMES
        which += found
        ones += most
        threshold += [least if one else -math.inf for one in found]
    return Indicators(np.array(which, np.bool_), np.array(source, np.int64), ones, np.array(threshold))


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
        case Text():
            return [(f"{name}#{bucket}", _INDICATOR) for bucket in range(column.buckets)]
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


# --- the target. No value of it is told: a class may belong to one person. ---

_MANY = 20  # classes
_ROWS = 5  # for each class


def too_many(classes: int, rows: int) -> bool:
    """Return whether classes that are read from rows may be names of people: many, with few rows of each."""
    return classes > max(_MANY, rows // _ROWS)


def classes_of(data: Encoded, schema: Schema, place: str = "the table") -> tuple[str, ...]:
    """Check the target of rows to learn from, and return its classes in order; none of a regression.

    They are those of the schema. If it has none they are read from the rows, which no budget covers: whoever calls
    this says so.

    Raises:
        InputError: LIP411, there is no target; LIP413, it has other classes than the public ones; LIP414, it is
            missing in a row; or, where classes are not public, the same in all rows, or another in many of them.
    """
    column = f"{place}: the target `{schema.target}`"
    if data.y is None:
        raise input_error("LIP411", f"{place} has no target column", "name the column with --target")
    if schema.task == "regression":
        if np.isnan(data.y).any():
            raise _absent(column)
        return ()
    found = set(data.y)
    if None in found:
        raise _absent(column)
    if schema.classes is None and len(found) == 1:
        raise input_error("LIP414", f"{column} has the same class in all rows", "learn another column")
    if schema.classes is None and too_many(len(found), len(data.y)):
        help_line = 'learn another column; or write `classes` into the schema, or task = "regression"'
        raise input_error("LIP414", f"{column} has too many classes for so few rows", help_line)
    if schema.classes is not None and not found <= set(schema.classes):
        help_line = "write all classes into the schema, or remove the rows with other classes"
        raise input_error("LIP413", f"{column} has a class that the schema does not have", help_line)
    return schema.classes or tuple(sorted(found))


def _absent(column: str) -> Exception:
    return input_error("LIP414", f"{column} is missing in some rows", "remove those rows")
