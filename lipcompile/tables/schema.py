"""The public facts about a table: kinds of columns, their ranges and categories, and the target."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from typing import Literal

from lipcompile.diagnostics import InputError, input_error

Task = Literal["classification", "regression"]
Range = tuple[float, float]
# What stands before the decimals of a number in a text.
Mark = Literal[".", ","]

MOST_BUCKETS = 65536
FIRST_DAY = date(1970, 1, 1)


@dataclass(frozen=True, slots=True)
class Number:
    """A column of numbers.

    Args:
        name: of the column.
        low: least value, in the column's unit; with `high`, public. Values outside are clipped when one learns.
        high: largest value. Without both the range is not public: it is estimated privately, at a cost in ε.
        log: whether v stands as sign(v)·log(1 + |v|), as it suits amounts. `low` and `high` are those of v.
        missing: whether one column more says where the value is missing.
        coerce: whether a text that is no number, such as `unknown`, counts as missing; else it is an error.
        decimal: the mark before the decimals of a text. The other one may group its digits by three, and a sign of
            money or per cent may stand beside them.
    """

    name: str
    low: float | None = None
    high: float | None = None
    log: bool = False
    missing: bool = False
    coerce: bool = False
    decimal: Mark = "."

    def __post_init__(self) -> None:
        if self.range is not None:
            _check_range(self.name, self.range)

    @property
    def range(self) -> Range | None:
        """The public range in the column's unit; raises InputError (LIP412) if half of it is given."""
        return _both(self.name, self.low, self.high)


@dataclass(frozen=True, slots=True)
class Category:
    """A column of names: one indicator for each.

    Args:
        name: of the column.
        values: the public names, any other is none of them; None: names are hashed to `buckets`.
        buckets: number of indicators of hashed names.
        missing: whether one column more says where the value is missing.
    """

    name: str
    values: tuple[str, ...] | None = None
    buckets: int = 64
    missing: bool = False

    def __post_init__(self) -> None:
        if self.values is not None:
            _check_distinct(self.name, self.values, 1, "values")
        _check_buckets(self.name, self.buckets)


@dataclass(frozen=True, slots=True)
class Boolean:
    """A column of yes and no: true, yes, t, y, 1 are one, false, no, f, n, 0 are zero."""

    name: str


@dataclass(frozen=True, slots=True)
class Date:
    """A column of dates, with or without times: days since 1970 as a number.

    Args:
        name: of the column.
        low: first day, such as "2020-01-31"; with `high`, public. As for `Number`.
        high: last day.
        format: of the texts in it, as strptime says it, such as "%d/%m/%Y"; None: ISO.
    """

    name: str
    low: str | None = None
    high: str | None = None
    format: str | None = None

    def __post_init__(self) -> None:
        if self.format is not None and not all(part in self.format for part in ("%Y", "%m", "%d")):
            help_line = 'such as "%d/%m/%Y"; years of two digits leave the century open: write four'
            raise schema_error(f"`{self.name}`: `format` has not all of %Y, %m and %d", help_line)
        if self.range is not None:
            _check_range(self.name, self.range)

    @property
    def range(self) -> Range | None:
        """The public range in days since 1970; raises InputError (LIP412) if half of it is given."""
        return _both(self.name, _days(self.name, self.low), _days(self.name, self.high))


@dataclass(frozen=True, slots=True)
class Text:
    """A column of free text: one indicator for each bucket that a token of the text is hashed to.

    Args:
        name: of the column.
        tokenizer: a `tokenizer.json`, its folder, or its content. It is public: one that was trained on the rows
            tells of them, which no budget covers.
        buckets: number of indicators.
    """

    name: str
    tokenizer: str
    buckets: int = 256

    def __post_init__(self) -> None:
        _check_buckets(self.name, self.buckets)


@dataclass(frozen=True, slots=True)
class Ignore:
    """A column that is not looked at."""

    name: str


Column = Number | Category | Boolean | Date | Text | Ignore


@dataclass(frozen=True, slots=True)
class Schema:
    """The public facts of a table.

    Args:
        columns: what is learned from, in the order of the encoded columns; others of the table are not looked at.
        target: the column to be learned; None if there is none.
        task: classification, or regression of a number.
        classes: the public classes, as text; None: they are read from the rows, which no budget covers.
        target_range: the public range of a number to be learned; None: it is estimated privately.
        target_decimal: the mark before the decimals of such a number where it is a text, as of `Number`.

    Raises:
        InputError: LIP412, if it says something twice, or what cannot be.
    """

    columns: tuple[Column, ...]
    target: str | None = None
    task: Task = "classification"
    classes: tuple[str, ...] | None = None
    target_range: Range | None = None
    target_decimal: Mark = "."

    def __post_init__(self) -> None:
        _check_distinct("columns", [column.name for column in self.columns], 0, "names")
        if self.target in [column.name for column in self.columns]:
            raise schema_error(
                f"`{self.target}` is both the target and a column to learn from", "remove it from columns"
            )
        if self.classes is not None:
            _check_distinct("classes", self.classes, 2, "classes")
        if self.target_range is not None:
            _check_range("target_range", self.target_range)
        if self.task == "regression" and self.classes is not None:
            raise schema_error("a regression has no classes", "write `target_range` instead of `classes`")
        if self.task == "classification" and self.target_range is not None:
            raise schema_error("a classification has no target range", 'write task = "regression"')


def schema_error(message: str, help_line: str = "") -> InputError:
    """Return the error for a schema that means nothing."""
    return input_error("LIP412", message, help_line)


def _both(name: str, low: float | None, high: float | None) -> Range | None:
    if low is not None and high is not None:
        return low, high
    if low is not None or high is not None:
        raise schema_error(f"`{name}` has only one end of a range", "write both `low` and `high`, or neither")
    return None


def _check_buckets(name: str, buckets: int) -> None:
    if not 1 <= buckets <= MOST_BUCKETS:
        raise schema_error(f"`{name}`: `buckets` is {buckets}", f"write a number from 1 to {MOST_BUCKETS}")


def _check_range(name: str, ends: Range) -> None:
    low, high = ends
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise schema_error(f"`{name}`: the range from {low:g} to {high:g} is empty", "`low` must be below `high`")


def _check_distinct(name: str, texts: Iterable[str], least: int, what: str) -> None:
    counts = Counter(texts)
    twice = [text for text, count in counts.items() if count > 1]
    if twice:
        raise schema_error(f"`{name}`: `{twice[0]}` occurs twice", "leave one out")
    if len(counts) < least:
        raise schema_error(f"`{name}`: at least {least} {what} are needed")


def _days(name: str, day: str | None) -> float | None:
    if day is None:
        return None
    try:
        return float((date.fromisoformat(day) - FIRST_DAY).days)
    except ValueError:
        raise schema_error(f"`{name}`: `{day}` is not a date", "write it as 2020-01-31") from None
