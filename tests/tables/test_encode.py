"""Rows as numbers: what each kind becomes, by hand; and that no row looks at another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lipcompile.diagnostics import InputError
from lipcompile.tables.encode import Encoded, assembled, bucket, encoded_batch, indicators, layout
from lipcompile.tables.schema import Boolean, Category, Column, Date, Ignore, Mark, Number, Schema, Text
from lipcompile.tables.values import MISSING

NAN = math.nan


def encode(table: Any, schema: Schema, place: str = "the table") -> Encoded:
    """Encode a Table or RecordBatch, which may have no rows."""
    batches = table.to_batches() if hasattr(table, "to_batches") else [table]
    parts = [encoded_batch(batch, schema, place) for batch in batches]
    x = [x for x, _ in parts] or [np.empty((0, len(layout(schema).names)), np.float32)]
    return assembled(np.concatenate(x), [y for _, y in parts if y is not None], schema)


def encoded(column: Column, values: Any) -> Encoded:
    return encode(pa.table({"a": values}), Schema((column,)))


def assert_x(found: Encoded, *rows: Sequence[float]) -> None:
    assert found.x.dtype == np.float32
    np.testing.assert_array_equal(found.x, np.array(rows, np.float32))


TEXTS = [" 1.5", "2e3 ", "-0", *sorted(MISSING), " ? ", None]


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())]
)
def test_texts_are_numbers_whatever_type_of_text_they_are(kind: Any) -> None:
    array = (
        pa.array(TEXTS).dictionary_encode().cast(kind) if pa.types.is_dictionary(kind) else pa.array(TEXTS, kind)
    )
    assert_x(encoded(Number("a"), array), [1.5], [2000], [0], *[[NAN]] * (len(MISSING) + 2))


@pytest.mark.parametrize(
    "array",
    [
        pa.array([1, 2, None], pa.int64()),
        pa.array([1, 2, None], pa.uint8()),
        pa.array([1, 2, NAN], pa.float32()),
        pa.array([1, 2, None], pa.decimal128(5, 1)),
    ],
)
def test_numbers_of_every_type_are_numbers(array: Any) -> None:
    assert_x(encoded(Number("a"), array), [1], [2], [NAN])


def test_truth_values_are_numbers() -> None:
    assert_x(encoded(Number("a"), pa.array([True, False, None])), [1], [0], [NAN])


def test_a_column_without_a_value_is_missing_everywhere() -> None:
    for column in (Number("a"), Date("a"), Boolean("a")):
        assert_x(encoded(column, pa.nulls(2)), [NAN], [NAN])
    assert_x(encoded(Category("a", ("x",), missing=True), pa.nulls(1)), [0, 1])


def test_values_beyond_float32_and_infinity_stay_finite() -> None:
    largest = float(np.finfo(np.float32).max)
    found = encoded(Number("a", 0, 1), pa.array([1e300, -1e300, math.inf, -math.inf, 2.0]))
    assert_x(found, [largest], [-largest], [largest], [-largest], [2])


def test_a_text_that_is_no_number_is_missing_where_that_is_said() -> None:
    """And only there; a number without it is the same number with it."""
    texts = ["1.5", " -2e3 ", ".5", "5.", "1E+2", "unknown", "1,5", "1.5 kg", "", None]
    x = [1.5, -2000, 0.5, 5, 100, NAN, NAN, NAN, NAN, NAN]
    assert_x(encoded(Number("a", coerce=True, missing=True), texts), *([v, math.isnan(v)] for v in x))
    assert_x(encoded(Number("a"), texts[:5]), *([v] for v in x[:5]))
    assert_x(encoded(Number("a", coerce=True), [1, None, 3]), [1], [NAN], [3])
    with pytest.raises(InputError, match="column `a` contains a value that is not a number"):
        encoded(Number("a"), texts[:6])


POINTS = {
    "$1,234.50": 1234.5,
    "-$5": -5,
    "$ -5": -5,
    "12 %": 12,
    "€7": 7,
    "7€": 7,
    "1,234,567": 1234567,
    "1e3": 1000,
}
COMMAS = {"1.234,50 €": 1234.5, "-5": -5, "1,5": 1.5, "12%": 12, "1.234": 1234, "7": 7}
NEITHER = [
    "1,23",
    "12,34,567",
    "0x10",
    "1 234",
    "$",
    "%",
    "--5",
    "-$-5",
    "1.2.3",
    "5 kg",
    "(5)",
    "1,234.5.6",
    "inf,",
]


def test_numbers_of_texts_may_be_grouped_and_stand_beside_a_sign() -> None:
    assert_x(encoded(Number("a"), [*POINTS]), *([v] for v in POINTS.values()))
    assert_x(encoded(Number("a", decimal=","), [*COMMAS]), *([v] for v in COMMAS.values()))
    assert_x(encoded(Number("a"), ["$5", "NA", None]), [5], [NAN], [NAN])
    marks: dict[Mark, list[str]] = {".": NEITHER, ",": [*NEITHER[1:], "1.5", "1e3"]}
    for mark, texts in marks.items():
        assert np.isnan(encoded(Number("a", decimal=mark, coerce=True), texts).x).all()
        for text in texts:
            with pytest.raises(InputError):
                encoded(Number("a", decimal=mark), ["5", text])


@pytest.mark.parametrize("other", ["7", "$5", "1,234", "12 %", "inf", "+2"])
def test_whether_a_text_is_a_number_depends_on_no_other_row(other: str) -> None:
    """What pyarrow reads alone is a number beside others that it does not read, and where words are missing."""
    largest = float(np.finfo(np.float32).max)
    signed = {"+5": 5, "+.5e1": 5, "-Inf": -largest, "infinity": largest, "NAN": NAN, "-nan": NAN}
    for text, x in {**signed, "+$5": 5, "$+5": 5, "+1,234.5": 1234.5, "+12 %": 12}.items():
        for column in (Number("a"), Number("a", coerce=True)):
            assert_x(encoded(column, [text]), [x])
            found = encoded(column, [text, other]).x[:, 0]
            np.testing.assert_array_equal(found[0], np.float32(x))
            assert not np.isnan(found[1])
    assert_x(encoded(Number("a", decimal=","), ["+1.234,5", "+5"]), [1234.5], [5])


def test_a_missing_number_has_a_column_that_says_so() -> None:
    found = encoded(Number("a", 0, 3, missing=True), pa.array([1.0, None]))
    assert_x(found, [1, 0], [NAN, 1])
    assert found.names == ("a", "a missing")
    np.testing.assert_array_equal(found.low, [0, 0])
    np.testing.assert_array_equal(found.high, [3, 1])


def test_a_logarithm_is_that_of_values_and_of_the_range() -> None:
    found = encoded(Number("a", -1, math.e - 1, log=True), pa.array([math.e**2 - 1, 1 - math.e**3, 0.0]))
    np.testing.assert_allclose(found.x[:, 0], [2, -3, 0], rtol=1e-6)
    np.testing.assert_allclose((found.low[0], found.high[0]), (-math.log(2), 1), rtol=1e-15)


def test_values_outside_of_their_public_range_are_counted() -> None:
    """0.1 is no float32, and inside as an end of the range. Missing values and open ranges do not count."""
    columns = (Number("a", 0.0, 0.1, missing=False), Number("b", missing=False), Number("c", 0.0, 1.0))
    table = pa.table({"a": [0.1, 0.2, -1.0, 0.0], "b": [1e9, 0.0, 0.0, 0.0], "c": [None, 0.5, 1.0, 2.0]})
    assert encode(table, Schema(columns)).outside() == {"a": 0.5, "c": 0.25}


def test_an_open_range_is_nan() -> None:
    found = encoded(Number("a"), pa.array([1.0]))
    assert np.isnan([found.low, found.high]).all()
    assert found.low.dtype == found.high.dtype == np.float64


DAY = ["1970-01-02", " 2000-03-01 12:00:00", None, "NA"]


def test_a_date_is_a_number_of_days() -> None:
    found = encoded(Date("a", "1970-01-02", "2000-03-01"), pa.array(DAY))
    assert_x(found, [1], [11017.5], [NAN], [NAN])
    assert (found.low[0], found.high[0]) == (1, 11017)


@pytest.mark.parametrize(
    "kind", [pa.date32(), pa.date64(), pa.timestamp("ns"), pa.timestamp("s"), pa.timestamp("ms", "Asia/Tokyo")]
)
def test_dates_of_every_type_are_days(kind: Any) -> None:
    assert_x(encoded(Date("a"), pa.array([86400, None], pa.timestamp("s")).cast(kind)), [1], [NAN])


def test_dates_may_have_a_form_of_their_own() -> None:
    """18262 days from 1970-01-01 to 2020-01-01."""
    column = Date("a", format="%d/%m/%Y")
    assert_x(encoded(column, ["1/1/2020", " 02/01/2020", "NA", None]), [18262], [18263], [NAN], [NAN])
    for text in ["2020-01-01", "1/1/20", "1/1/00", "1/13/2020", "1/1/2020 10:30"]:
        with pytest.raises(InputError, match="column `a` contains a value that is not a date"):
            encoded(column, ["1/1/2020", text])
    with pytest.raises(InputError, match="has not all of"):
        Date("a", format="%d/%m/%y")


def test_times_with_zones_are_days_in_utc() -> None:
    assert_x(encoded(Date("a"), pa.array(["1970-01-02T12:00:00+12:00", "1970-01-02T00:00:00Z"])), [1], [1])


def test_yes_and_no_are_one_and_zero() -> None:
    yes, no = ["true", "T", " Yes", "y", "1", "1.0"], ["False", "f", "no", "N", "0", "0.0"]
    found = encoded(Boolean("a"), pa.array([*yes, *no, "", None]))
    assert_x(found, *[[1]] * 6, *[[0]] * 6, [NAN], [NAN])
    assert (found.low[0], found.high[0]) == (0, 1)
    assert_x(encoded(Boolean("a"), pa.array([1.0, 0.0, None])), [1], [0], [NAN])
    assert_x(encoded(Boolean("a"), pa.array([True, False, None])), [1], [0], [NAN])


def test_a_category_has_one_indicator_a_value() -> None:
    found = encoded(Category("a", ("x", "NA"), missing=True), pa.array([" x", "other", "NA", "", None]))
    assert_x(found, [1, 0, 0], [0, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 1])
    assert found.names == ("a=x", "a=NA", "a missing")
    np.testing.assert_array_equal([found.low, found.high], [[0] * 3, [1] * 3])


@pytest.mark.parametrize(
    "array", [pa.array([1, 2]), pa.array([1.0, 2.0]), pa.array(["1", "2"]).dictionary_encode()]
)
def test_numbers_are_categories_too(array: Any) -> None:
    assert_x(encoded(Category("a", ("2", "1")), array), [0, 1], [1, 0])


def test_names_are_hashed_by_a_fixed_public_hash() -> None:
    digest = 0x707438FAA779D508  # of `b2sum -l 64`
    assert bucket("Zürich", 10) == digest % 10 == 8
    found = encoded(Category("a", buckets=10), pa.array([" Zürich ", "?"]))
    assert_x(found, [*[0] * 8, 1, 0], [0] * 10)
    assert found.names[8] == "a#8"


def test_columns_stand_in_the_order_of_the_schema_and_others_are_not_looked_at() -> None:
    table = pa.table({"b": [1], "c": [[1, 2]], "a": [2], "d": ["x"]})
    found = encode(table, Schema((Number("a"), Ignore("d"), Number("b"), Ignore("not there"))))
    assert_x(found, [2, 1])
    assert found.names == ("a", "b")
    assert found.y is None


def test_targets_are_texts_or_numbers() -> None:
    table = pa.table({"a": [1, 2, 3], "y": ["1", " 2 ", None]})
    classes = encode(table, Schema((Number("a"),), "y")).y
    assert classes is not None
    assert classes.tolist() == ["1", "2", None]
    found = encode(table, Schema((Number("a"),), "y", "regression")).y
    assert found is not None
    np.testing.assert_array_equal(found, [1, 2, NAN])
    assert encode(table, Schema((Number("a"),), "z")).y is None


def test_what_is_shown_of_encoded_rows_has_no_value_of_them() -> None:
    found = encode(pa.table({"a": [4711.0], "y": ["4711"]}), Schema((Number("a"),), "y"))
    assert "4711" not in repr(found)


def test_a_batch_and_no_rows_are_tables() -> None:
    schema = Schema((Number("a"), Category("b", ("x",))), "y")
    batch = pa.record_batch({"a": [1.0], "b": ["x"], "y": ["n"]})
    assert_x(encode(batch, schema), [1, 1])
    assert encode(batch.slice(0, 0), schema).x.shape == (0, 2)
    assert encode(pa.table({}), schema).x.shape == (0, 2)


def test_categories_of_polars_are_texts() -> None:
    texts = pa.array(["u", "v"]).cast(pa.string_view())
    table = pa.table({"a": pa.DictionaryArray.from_arrays(pa.array([1, 0, None]), texts)})
    assert encode(table, Schema((Category("a", ("u", "v")),))).x.tolist() == [[0, 1], [1, 0], [0, 0]]


SECRET = "secret-4711"
UNFIT: dict[str, tuple[Column, Any]] = {
    "text for a number": (Number("a"), [*["1"] * 300, SECRET]),
    "dates for a number": (Number("a"), pa.array([1], pa.date32())),
    "lists for a number": (Number("a"), [[1]]),
    "text for a date": (Date("a"), ["2000-01-01", SECRET]),
    "numbers for a date": (Date("a"), [4711]),
    "text for yes and no": (Boolean("a"), ["yes", SECRET]),
    "a number for yes and no": (Boolean("a"), [0, 4711]),
    "lists for a category": (Category("a"), [[SECRET]]),
    "bytes that are no text for a category": (Category("a"), [b"\xff" + SECRET.encode()]),
}


@pytest.mark.parametrize("case", UNFIT)
def test_what_does_not_fit_is_refused_by_the_name_of_its_column(case: str) -> None:
    with pytest.raises(InputError, match=r"`t.csv`: column `a` contains a value that is not .*LIP413") as caught:
        encode(pa.table({"a": UNFIT[case][1]}), Schema((UNFIT[case][0],)), "`t.csv`")
    assert "4711" not in str(caught.value)


def test_a_target_that_is_no_number_is_refused() -> None:
    table = pa.table({"a": [1], "y": [SECRET]})
    with pytest.raises(InputError, match="column `y` contains a value that is not a number") as caught:
        encode(table, Schema((Number("a"),), "y", "regression"))
    assert "4711" not in str(caught.value)


def test_a_missing_column_is_named_beside_those_that_are_there() -> None:
    with pytest.raises(InputError, match="no column `b`") as caught:
        encode(pa.table({"a": [1], "c": [1]}), Schema((Number("a"), Number("b"))))
    (found,) = caught.value.diagnostics
    assert (found.code, found.help) == ("LIP411", "it has `a`, `c`")


ALL = Schema(
    (
        Number("n", missing=True),
        Number("l", -1, 1, log=True),
        Category("c", ("x", "y"), missing=True),
        Category("h", buckets=5),
        Boolean("b"),
        Date("d"),
    ),
    "y",
)
ROW = st.fixed_dictionaries(
    {
        "n": st.sampled_from(["", "1", "-7.25", " nan"]),
        "l": st.sampled_from(["0", "1e9", "?"]),
        "c": st.sampled_from(["x", "y", "z", "NA"]),
        "h": st.text("xé ?\n", max_size=3),
        "b": st.sampled_from(["yes", "0", ""]),
        "d": st.sampled_from(["2000-01-01", "1999-12-31 06:00:00", ""]),
        "y": st.sampled_from(["no", "yes"]),
    }
)


@settings(max_examples=50, deadline=None)
@given(st.lists(ROW, min_size=1, max_size=6))
def test_each_row_is_encoded_by_itself(rows: list[dict[str, str]]) -> None:
    whole = encode(pa.Table.from_pylist(rows), ALL)
    alone = [encode(pa.Table.from_pylist([row]), ALL) for row in rows]
    np.testing.assert_array_equal(whole.x, np.concatenate([one.x for one in alone]))
    assert whole.y is not None
    assert [*whole.y] == [row["y"] for row in rows]
    assert {one.names for one in alone} == {whole.names}


def test_what_is_an_indicator_follows_from_the_schema() -> None:
    columns: tuple[Column, ...] = (
        Number("age", missing=True),
        Ignore("note"),
        Category("job", ("clerk", "nurse"), missing=True),
        Boolean("member"),
        Date("joined"),
    )
    known = indicators(Schema(columns))
    assert known.which.tolist() == [False, True, True, True, True, True, False]
    assert known.source.tolist() == [0, 0, 2, 2, 2, 3, 4]
    assert known.ones == 2
    assert known.threshold.tolist() == [-math.inf, 2.0, 2.0, 2.0, 2.0, -math.inf, -math.inf]
    assert not known.categories_alone
    assert indicators(Schema(columns[1:4])).categories_alone


def test_a_text_fills_some_of_its_buckets_alone() -> None:
    """A row of ones in all 256 buckets has norm 16; a note of a dozen words has 3, and noise follows the norm."""
    known = indicators(Schema((Text("note", "{}", buckets=256), Text("word", "{}", buckets=4))))
    assert known.ones == 32 + 4
    assert set(known.threshold) == {1.0}
    assert not known.categories_alone
