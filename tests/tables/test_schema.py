"""Schemas: what they refuse, and as TOML files that people fill in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lipcompile.diagnostics import InputError, Location
from lipcompile.tables.schema import Boolean, Category, Column, Date, Ignore, Number, Schema, Text
from lipcompile.tables.schema_file import KINDS_READ, load, text

COLUMNS: tuple[Column, ...] = (
    Number("age", 0.0, 120.0, missing=True),
    Number("income, yearly", -1e20, 0.1, log=True),
    Number("open"),
    Category('a "quoted"\n\x7f name é', ("x", 'y"\\', "\t")),
    Category("hashed", buckets=7, missing=True),
    Boolean("member"),
    Date("joined", "2000-02-29", "2030-12-31"),
    Date("left"),
    Text("words", '{"model": "a \\"quoted\\" name"}', buckets=9),
    Ignore("note"),
)
SCHEMAS = (
    Schema(COLUMNS, "y", classes=("no", "yes")),
    Schema(COLUMNS, "y"),
    Schema(COLUMNS, "y", "regression", target_range=(-1.5, 100.0)),
    Schema(COLUMNS, "y", "regression"),
    Schema(COLUMNS),
)


def written(folder: Path, content: str) -> Path:
    path = folder / "t.schema.toml"
    path.write_text(content, encoding="utf-8")
    return path


@pytest.mark.parametrize("schema", SCHEMAS)
def test_what_is_written_is_read(schema: Schema, tmp_path: Path) -> None:
    assert load(written(tmp_path, text(schema, "t.csv\n[evil]", [KINDS_READ]))) == schema


def test_a_file_says_where_its_content_is_from() -> None:
    assert KINDS_READ in text(SCHEMAS[0], "t.csv", [KINDS_READ])
    assert KINDS_READ not in text(SCHEMAS[0], "t.csv", [])


def test_people_may_write_dates_and_numbers_as_toml_has_them(tmp_path: Path) -> None:
    content = """
        target_range = [0, 1]
        [columns.joined]
        kind = "date"
        low = 2000-01-01
        high = "2001-01-01"
        [columns]
        zip = { kind = "category", values = [1, 2.5, true, "x"] }
    """
    assert load(written(tmp_path, content)) == Schema(
        (Date("joined", "2000-01-01", "2001-01-01"), Category("zip", ("1", "2.5", "true", "x"))),
        task="regression",
        target_range=(0.0, 1.0),
    )


# What is wrong, a part of the message, and the line and column that it points to.
WRONG = {
    'target = "y"\n[columns': ("no TOML", None),
    'target = "y"\ncolumns = = 3': ("no TOML", (2, 11)),
    "columns = 3": ("the table [columns] is missing", None),
    'colums = 3\n[columns]\na = { kind = "number" }': ("`colums` is not a key", (1, 1)),
    "[columns]\na = 3": ("`a` has no kind", (2, 1)),
    '[columns]\na = { kind = "text" }': ("`a` has no tokenizer", (2, 1)),
    '[columns]\na = { kind = "text", tokenizer = [] }': ("`a`: a text is needed", (2, 1)),
    '[columns]\na = { kind = "text", tokenizer = "{}", buckets = 0 }': ("`buckets` is 0", (2, 1)),
    '[columns]\na = { kind = "numbr" }': ("`a` has an unknown kind", (2, 1)),
    '[columns]\n "a b" = { kind = "number", lo = 0 }': ("`a b` has `lo`", (2, 2)),
    '[columns]\na = { kind = "number", low = 0 }': ("one end", (2, 1)),
    '[columns]\na = { kind = "number", low = 1, high = 1 }': ("the range from 1 to 1", (2, 1)),
    '[columns]\na = { kind = "number", low = nan, high = 1 }': ("the range from nan to 1", (2, 1)),
    '[columns]\na = { kind = "number", low = "0", high = 1 }': ("`low` is not a number", (2, 1)),
    '[columns]\na = { kind = "number", low = true, high = 1 }': ("`low` is not a number", (2, 1)),
    '[columns]\na = { kind = "number", log = 1 }': ("`log` has the wrong type", (2, 1)),
    '[columns]\na = { kind = "date", low = 0, high = 1 }': ("`low` is not a date", (2, 1)),
    '[columns]\na = { kind = "date", low = "1.1.2000", high = "2001-01-01" }': (
        "`1.1.2000` is not a date",
        (2, 1),
    ),
    '[columns]\na = { kind = "category", values = [] }': ("at least 1 values", (2, 1)),
    '[columns]\na = { kind = "category", values = ["x", "x"] }': ("`x` occurs twice", (2, 1)),
    '[columns]\na = { kind = "category", values = "x" }': ("a list of texts", (2, 1)),
    '[columns]\na = { kind = "category", values = [[]] }': ("a text is needed", (2, 1)),
    '[columns]\na = { kind = "category", buckets = 0 }': ("`buckets` is 0", (2, 1)),
    '[columns]\na = { kind = "category", buckets = 1e9 }': ("`buckets` has the wrong type", (2, 1)),
    '[columns]\na = { kind = "category", buckets = 65537 }': ("`buckets` is 65537", (2, 1)),
    'classes = ["x"]\n[columns]\na = { kind = "number" }': ("at least 2 classes", (1, 1)),
    'classes = ["x", "x"]\n[columns]\na = { kind = "number" }': ("twice", (1, 1)),
    'task = "ranking"\n[columns]\na = { kind = "number" }': ("`task` has an unknown value", (1, 1)),
    'target = "a"\n[columns]\na = { kind = "number" }': ("`a` is both the target", (3, 1)),
    "target_range = [0]\n[columns]\na = { kind = 'number' }": ("must have two ends", (1, 1)),
    'target_range = [0, 1]\nclasses = ["x", "y"]\n[columns]\na = { kind = "number" }': ("no classes", None),
    'target_range = [0, 1]\ntask = "classification"\n[columns]\na = { kind = "number" }': (
        "no target range",
        None,
    ),
}


@pytest.mark.parametrize(("content", "found"), WRONG.items())
def test_a_wrong_file_is_refused_at_its_line(
    content: str, found: tuple[str, tuple[int, int] | None], tmp_path: Path
) -> None:
    path = written(tmp_path, content)
    with pytest.raises(InputError) as caught:
        load(path)
    (diagnostic,) = caught.value.diagnostics
    message, place = found
    assert diagnostic.code == "LIP412"
    assert message in diagnostic.message
    assert isinstance(diagnostic.location, Location)
    assert diagnostic.location.file == str(path)
    assert (diagnostic.location.line, diagnostic.location.column) == (place or (None, None))


def test_a_misspelt_name_is_answered_with_the_right_one(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        load(written(tmp_path, '[columns]\na = { kind = "category", bucket = 3 }'))
    assert caught.value.diagnostics[0].help == "did you mean `buckets`?"


@pytest.mark.parametrize("content", [b"\xff\xfe", None])
def test_a_file_that_cannot_be_read_is_refused(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "t.schema.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match="LIP412"):
        load(path)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Schema((Number("a"), Boolean("a"))),
        lambda: Date("a", "2000-01-02", "2000-01-01"),
        lambda: Date("a", low="2000-01-02"),
        lambda: Number("a", high=3.0),
    ],
)
def test_a_schema_made_by_a_program_is_checked_alike(make: Callable[[], object]) -> None:
    with pytest.raises(InputError, match="LIP412"):
        make()


def test_a_day_is_counted_from_1970() -> None:
    assert Date("a", "1970-01-02", "1971-01-01").range == (1.0, 365.0)
