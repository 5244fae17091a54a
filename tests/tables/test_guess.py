"""Schemas read from rows: kinds alone, or everything that is said to be public."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from lipcompile.diagnostics import InputError
from lipcompile.tables.encode import open_ranges
from lipcompile.tables.guess import MOST_CLASSES, MOST_NAMES, guess
from lipcompile.tables.schema import Boolean, Category, Column, Date, Ignore, Number, Schema
from lipcompile.tables.schema_file import schema_of, text
from lipcompile.tables.stream import encoded

CSV = """\
age,zip,member,bit,joined,flat,empty,job,y
31,00123,yes,0,2020-01-31,5,,clerk,low
?,12345-6,No,1,2021-12-01 12:00:00,5,NA,,high
50.5,777,,0,,5,,nurse,low
"""


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "t.csv"
    path.write_text(CSV)
    return path


def test_kinds_are_read_and_nothing_else(table: Path) -> None:
    assert guess(table, "y") == Schema(
        (
            Number("age"),
            Category("zip"),
            Boolean("member"),
            Boolean("bit"),
            Date("joined"),
            Number("flat"),
            Ignore("empty"),
            Category("job"),
        ),
        "y",
    )
    assert open_ranges(guess(table, "y")) == 3


def test_of_public_rows_ranges_and_names_are_read_too(table: Path) -> None:
    assert guess(table, "y", public=True) == Schema(
        (
            Number("age", 31.0, 50.5, missing=True),
            Category("zip", ("00123", "12345-6", "777")),
            Boolean("member"),
            Boolean("bit"),
            Date("joined", "2020-01-31", "2021-12-02"),
            Ignore("flat"),
            Ignore("empty"),
            Category("job", ("clerk", "nurse"), missing=True),
        ),
        "y",
        classes=("high", "low"),
    )


@pytest.mark.parametrize("value", ["1.5", "x", "2000-01-01", "yes"])
def test_a_kind_is_that_of_all_rows_of_all_batches(value: str, tmp_path: Path) -> None:
    """One row among many, in the last batch."""
    path = tmp_path / "t.csv"
    path.write_text("a\n" + "1\n" * 70_000 + f"{value}\n")
    coerced = Number("a", coerce=True)
    column = {"1.5": Number("a"), "x": coerced, "2000-01-01": coerced, "yes": Boolean("a")}[value]
    assert guess(path).columns == (column,)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([*"1234567890123456789", "unknown"], Number("a", 0.0, 9.0, missing=True, coerce=True)),
        ([*"123456789012345678", "unknown"], Category("a", (*"0123456789", "unknown"), missing=True)),
        ([*"1234567890" * 8, "a", "b", "c"], Number("a", 0.0, 9.0, missing=True, coerce=True)),
        ([*"1234567890" * 8, "a", "b", "c", "d"], Category("a", (*"0123456789", *"abcd"), missing=True)),
        (["$1,234.50", "7%"], Number("a", 7.0, 1234.5, missing=True)),
        (["1", "inf", "-Infinity", "1e400", "3"], Number("a", 1.0, 3.0, missing=True)),
        (["1,5", "2", "1.234,5"], Number("a", 1.5, 1234.5, missing=True, decimal=",")),
        (["1,234", "2"], Number("a", 2.0, 1234.0, missing=True)),
        ([*"123456789" * 5, *("1,234",) * 5, "0,5"], Number("a", 0.5, 9.0, missing=True, decimal=",")),
        (["NA"] * 99 + ["unknown", "other"], Category("a", ("other", "unknown"), missing=True)),
    ],
)
def test_numbers_are_read_as_people_write_them(values: list[str], expected: Number | Category) -> None:
    """A twentieth of the values that are there, and three different words, are few; a gap is neither.

    The mark before the decimals is the one that leaves the fewest words.
    """
    assert guess({"a": [*values, "NA"]}, public=True).columns == (expected,)
    private = (
        replace(expected, low=None, high=None, missing=False) if isinstance(expected, Number) else Category("a")
    )
    assert guess({"a": [*values, "NA"]}).columns == (private,)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["31/01/2020", "NA", "1/2/2021"], Date("a", "2020-01-31", "2021-02-01", "%d/%m/%Y")),
        (["01/31/2020 10:30", "2/1/2021 00:00"], Date("a", "2020-01-31", "2021-02-01", "%m/%d/%Y %H:%M")),
        (["31.01.2020", "01.02.2021"], Date("a", "2020-01-31", "2021-02-01", "%d.%m.%Y")),
        (["01/02/2020", "03/04/2020"], Category("a", ("01/02/2020", "03/04/2020"))),
        (["31/01/20", "01/02/21"], Category("a", ("01/02/21", "31/01/20"))),
        (["31/01/00", "01/02/99"], Category("a", ("01/02/99", "31/01/00"))),  # 00 is no year of four digits
        (["31/01/2020", "01/31/2020"], Category("a", ("01/31/2020", "31/01/2020"))),
    ],
)
def test_dates_are_read_as_people_write_them_if_they_have_one_meaning(values: list[str], expected: Column) -> None:
    assert guess({"a": values}, public=True).columns == (expected,)
    private = replace(expected, low=None, high=None) if isinstance(expected, Date) else Category("a")
    assert guess({"a": values}).columns == (private,)


def test_numbers_without_a_finite_range_are_ignored() -> None:
    assert guess({"a": ["inf", "-inf", "inf"]}, public=True).columns == (Ignore("a"),)
    assert guess({"a": ["inf", "-inf", "inf"]}).columns == (Number("a"),)


def test_days_of_no_calendar_are_outside_of_a_public_range() -> None:
    """A schema has days of the years 1 to 9999."""
    far, further = "20000-01-01", "30000-01-01"
    for days, column in {
        ("2020-01-31", far): Date("a", "2020-01-31", "9999-12-31"),
        ("-0300-01-01", "2020-01-31"): Date("a", "0001-01-01", "2020-01-31"),
        (far, further): Ignore("a"),
    }.items():
        assert guess({"a": np.array(days, "datetime64[s]")}, public=True).columns == (column,)


def test_a_text_that_all_rows_share_is_ignored(tmp_path: Path) -> None:
    """The second value of `b` stands in the last batch."""
    path = tmp_path / "t.csv"
    path.write_text("a,b\n" + "x,x\n" * 70_000 + ",y\n")
    assert guess(path).columns == (Ignore("a"), Category("b"))


def test_typed_columns_are_of_their_type() -> None:
    frame = pd.DataFrame(
        {
            "n": [1, 2],
            "f": [0.5, None],
            "b": [True, False],
            "d": pd.to_datetime(["2000-01-01", None]),
            "c": pd.Categorical(["x", "y"]),
            "l": [[1], [2]],
        }
    )
    expected = (Number("n"), Number("f"), Boolean("b"), Date("d"), Category("c"), Ignore("l"))
    assert guess(frame).columns == guess(pa.Table.from_pandas(frame)).columns == expected
    assert guess(frame, public=True).columns[0] == Number("n", 1.0, 2.0)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["no", "yes"], Schema((), "y", classes=("no", "yes"))),
        ([0, 1], Schema((), "y", classes=("0", "1"))),
        ([3.0, 1.0, 2.0], Schema((), "y", classes=("1", "2", "3"))),
        ([*range(MOST_CLASSES)], Schema((), "y", classes=tuple(sorted(map(str, range(MOST_CLASSES)))))),
        ([*range(MOST_CLASSES + 1)], Schema((), "y", "regression", target_range=(0.0, float(MOST_CLASSES)))),
        ([0.5, 2.0], Schema((), "y", "regression", target_range=(0.5, 2.0))),
        (["one", "one"], Schema((), "y")),
        ([0.5, 0.5], Schema((), "y", "regression")),
        ([f"name {n}" for n in range(MOST_NAMES + 1)], Schema((), "y")),
    ],
)
def test_a_target_is_of_classes_or_a_number(values: list[Any], expected: Schema) -> None:
    assert guess({"y": values}, "y", public=True) == expected
    private = guess({"y": values}, "y")
    assert private.task == expected.task
    assert private.classes is None
    assert private.target_range is None


@pytest.mark.parametrize("public", [True, False])
def test_a_target_may_have_decimal_commas(public: bool) -> None:
    """Its mark stays in the schema, with which the numbers are read; words beside numbers are classes."""
    values = ["1.234,5", "86,67", "5"]
    found = guess({"y": values}, "y", public=public)
    ends = (5.0, 1234.5) if public else None
    assert found == Schema((), "y", "regression", target_range=ends, target_decimal=",")
    written = text(replace(found, columns=(Number("a"),)), "t.csv", [])
    assert schema_of(tomllib.loads(written)).target_decimal == ","
    y = encoded({"y": values}, found).y
    assert y is not None
    assert y.tolist() == [1234.5, 86.67, 5.0]
    few = [*(f"{n},5" for n in range(99)), "none"]
    assert guess({"y": few}, "y", public=public).task == "classification"
    assert guess({"y": ["0,0", "1,0"]}, "y", public=public).task == "classification"


def test_many_public_names_are_hashed() -> None:
    names = [f"name {n}" for n in range(MOST_NAMES + 1)]
    assert guess({"a": names}, public=True).columns == (Category("a"),)
    assert guess({"a": names[1:]}, public=True).columns == (Category("a", tuple(sorted(names[1:]))),)


@pytest.mark.parametrize("public", [True, False])
def test_free_text_is_ignored(public: bool) -> None:
    """Of a hundred values more than half differ; not so of names that come twice. A target is no free text."""
    remarks, twice = [f"remark {n}" for n in range(51)] + ["same"] * 49, [f"name {n}" for n in range(100)] * 2
    assert guess({"a": remarks}, public=public).columns == (Ignore("a"),)
    assert guess({"a": remarks[1:]}, public=public).columns[0].__class__ is Category
    assert guess({"a": twice}, public=public).columns == (Category("a"),)
    assert guess({"a": remarks}, "a", public=public).task == "classification"


def test_a_target_that_is_not_there_is_refused(table: Path) -> None:
    with pytest.raises(InputError, match=r"no column `Y`.*LIP411"):
        guess(table, "Y")


def test_a_target_without_a_value_has_no_classes() -> None:
    assert guess({"a": [1], "y": pa.nulls(1)}, "y", public=True).classes is None
