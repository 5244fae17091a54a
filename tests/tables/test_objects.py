"""Columns of objects: one value of another kind changes nothing of the other rows, or the column is refused."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from lipcompile.diagnostics import InputError
from lipcompile.tables.schema import Category, Column, Date, Number, Schema
from lipcompile.tables.stream import encoded

UTC, EAST = dt.UTC, dt.timezone(dt.timedelta(hours=1))
FRAMES: Mapping[str, Callable[[list[Any]], Any]] = {
    "pandas": lambda values: pd.DataFrame({"x0": values}),
    "objects of pandas": lambda values: pd.DataFrame({"x0": pd.Series(values, dtype=object)}),
    "categories of pandas": lambda values: pd.DataFrame({"x0": pd.Categorical(values)}),
    "a dict of lists": lambda values: {"x0": values},
    "a matrix of objects": lambda values: np.array([values], object).T,
}
KINDS: list[Column] = [Category("x0", buckets=256), Number("x0", 0.0, 1.0), Date("x0", "2000-01-01", "2030-01-01")]
# Values, and another one in place of the last.
ROWS: Mapping[str, tuple[list[Any], Any]] = {
    "eleven digits, and none": ([20_123_456_789, 20_123_456_790, 5], None),
    "eleven digits, and NaN": ([20_123_456_789, 20_123_456_790, 5], float("nan")),
    "eleven digits, and a float": ([20_123_456_789, 20_123_456_790, 5], 0.5),
    "decimals of another scale": ([Decimal("0.1"), Decimal(3), Decimal(2)], Decimal("0.0123456789012345678")),
    "decimals, and a float": ([Decimal("0.1"), Decimal(3), Decimal(2)], 0.5),
    "single and double precision": ([np.float32(0.1), np.float32(0.3), np.float32(2)], 0.7),
    "truth values, and a number": ([True, False, True], 7),
    "truth values, and none": ([True, False, True], None),
    "truth values, and a text": ([True, False, True], "x"),
    "numbers, and a text": ([0.5, 2.0, 3.0], "x"),
    "numbers, and bytes": ([0.5, 2.0, 3.0], b"x"),
    "times, and a date": ([dt.datetime(2020, 1, 1, 5), dt.datetime(2020, 1, 2, 6), None], dt.date(2020, 1, 1)),
    "times, and microseconds": (
        [dt.datetime(2020, 1, 1), dt.datetime(2020, 1, 2), None],
        dt.datetime(2020, 1, 1, 1, 1, 1, 5),
    ),
    "times of several zones": (
        [dt.datetime(2020, 1, 1, tzinfo=EAST), dt.datetime(2020, 1, 2, tzinfo=EAST), None],
        dt.datetime(2020, 1, 1, tzinfo=dt.timezone(-dt.timedelta(hours=5))),
    ),
    "times with and without a zone": (
        [dt.datetime(2020, 1, 1, tzinfo=EAST), dt.datetime(2020, 1, 2, tzinfo=EAST), None],
        dt.datetime(2020, 1, 1),
    ),
}


def matrix(source: Any, column: Any) -> Any:
    """Return the rows but for the last; None if the table is refused."""
    try:
        return encoded(source, Schema((column,))).x[:-1]
    except InputError:
        return None


@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize("case", ROWS)
def test_one_value_changes_no_other_row(case: str, frame: str) -> None:
    values, other = ROWS[case]
    for column in KINDS:
        here, there = (matrix(FRAMES[frame]([*values[:-1], last]), column) for last in (values[-1], other))
        if here is not None and there is not None:
            np.testing.assert_array_equal(here, there)


def test_whole_numbers_that_no_float_holds_are_refused_beside_floats() -> None:
    """A frame of pandas has rounded them itself."""
    with pytest.raises(InputError, match="several kinds"):
        encoded({"x0": [10**18 + 1, 10**18 + 2, 0.5]}, Schema((KINDS[0],)))


def test_whole_numbers_are_read_beside_missing_ones() -> None:
    frame = pd.DataFrame({"a": [20_123_456_789, None, 7.5]})
    schema = Schema((Category("a", ("20123456789", "7.5"), missing=True),))
    np.testing.assert_array_equal(encoded(frame, schema).x, [[1, 0, 0], [0, 0, 1], [0, 1, 0]])


@pytest.mark.parametrize(
    ("array", "text"),
    [
        (pa.array([1e20]), "100000000000000000000"),
        (pa.array([1.5e-7]), "0.00000015"),
        (pa.array([-0.0]), "0"),
        (pa.array([float("-inf")]), "-inf"),
        (pa.array([Decimal("1.500")]), "1.5"),
        (pa.array([Decimal("100")]), "100"),
        (pa.array([Decimal("0.0000000")]), "0"),
        (pa.array([dt.date(2020, 1, 10)]), "2020-01-10"),
        (pa.array([dt.datetime(2020, 1, 10)]), "2020-01-10"),
        (pa.array([dt.datetime(2020, 1, 10, 20)], pa.timestamp("ns")), "2020-01-10 20:00:00"),
        (pa.array([dt.datetime(2020, 1, 10, 1, 2, 3, 40)]), "2020-01-10 01:02:03.00004"),
        (
            pa.array([dt.datetime(2020, 1, 10, tzinfo=UTC)], pa.timestamp("s", "Asia/Tokyo")),
            "2020-01-10 00:00:00Z",
        ),
    ],
)
def test_the_text_of_a_value_is_the_shortest(array: Any, text: str) -> None:
    np.testing.assert_array_equal(encoded(pa.table({"a": array}), Schema((Category("a", (text,)),))).x, [[1]])
