"""A model with its schema: kept in a file, and asked."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from lipcompile_privacy.errors import DataError
from lipcompile_torch.train.engine import SeededWarning

from lipcompile.learn.table_model import fit_table, load
from lipcompile.tables.encode import Encoded
from lipcompile.tables.schema import Category, Number, Schema
from lipcompile.tables.stream import encoded

ROWS = 2000


@pytest.fixture(scope="module")
def table() -> dict[str, object]:
    source = np.random.default_rng(0)
    return {
        "age": source.uniform(0, 100, ROWS),
        "job": source.choice(["a", "b"], ROWS),
        "pay": source.uniform(0, 1, ROWS) + 10,
    }


def rows(table: dict[str, object], schema: Schema, y: object) -> Encoded:
    return encoded({**table, "y": y}, schema)


COLUMNS = (Number("age", 0, 100), Category("job", ("a", "b")), Number("pay"))


# Classes of a schema stand in the order of its author, which need not be that of the alphabet.
@pytest.mark.parametrize("classes", [("young", "old"), ("zzz", "old", "young")])
def test_a_model_that_was_kept_predicts_the_same(
    table: dict[str, object], classes: tuple[str, ...], tmp_path: Path
) -> None:
    schema = Schema(COLUMNS, "y", classes=classes)
    data = rows(table, schema, np.where(np.array(table["age"]) > 50, "old", "young"))
    model = fit_table(data, schema, 3.0)
    assert data.y is not None
    assert model.score(model.fitted.outputs(data.x), data.y) > 0.9
    model.save(tmp_path / "model.npz")
    again = load(tmp_path / "model.npz")
    assert again.schema == schema
    assert again.fitted.spent == model.fitted.spent
    assert again.fitted.recipe == model.fitted.recipe
    assert again.fitted.epsilon == model.fitted.epsilon <= 3.0
    np.testing.assert_array_equal(again.predictions(data.x), model.predictions(data.x))
    np.testing.assert_array_equal(again.probabilities(data.x), model.probabilities(data.x))
    np.testing.assert_array_equal(again.encoded(table).x, data.x)


def test_numbers_are_kept_too(table: dict[str, object], tmp_path: Path) -> None:
    schema = Schema(COLUMNS, "y", task="regression", target_range=(0.0, 200.0))
    data = rows(table, schema, np.array(table["age"]) + 50)
    model = fit_table(data, schema, 3.0)
    model.save(tmp_path / "model.npz")
    np.testing.assert_array_equal(load(tmp_path / "model.npz").predictions(data.x), model.predictions(data.x))
    assert data.y is not None
    outputs = model.fitted.outputs(data.x)
    assert model.score(outputs, data.y) > 0.8
    assert model.score(outputs[:1], data.y[:1]) == 0.0  # one row has no variance
    assert model.score(outputs[:1], model.predicted(outputs[:1])) == 1.0


def test_a_file_that_keeps_all_columns_and_does_not_say_so_is_read(
    table: dict[str, object], tmp_path: Path
) -> None:
    schema = Schema((Number("age", 0, 100), Number("pay")), "y", classes=("old", "young"))
    data = rows(table, schema, np.where(np.array(table["age"]) > 50, "old", "young"))
    model = fit_table(data, schema, 3.0)
    model.save(tmp_path / "model.npz")
    with np.load(tmp_path / "model.npz") as archive:
        before = {name: archive[name] for name in archive.files if name not in ("kept", "products")}
    np.savez(tmp_path / "before.npz", **before)
    again = load(tmp_path / "before.npz")
    np.testing.assert_array_equal(again.probabilities(data.x), model.probabilities(data.x))


def test_names_that_are_hashed_cost_no_more_than_names_that_are_public(tmp_path: Path) -> None:
    """The class is whether two categories agree: no column alone says it, and 320 buckets hold eight names."""
    source = np.random.default_rng(0)
    names = {name: source.choice(["a", "b"], ROWS) for name in ("one", "two", "three", "four")}
    schema = Schema((*(Category(name) for name in names), Category("five")), "y", classes=("no", "yes"))
    y = np.where(names["one"] == names["two"], "yes", "no")
    data = encoded({**names, "five": np.full(ROWS, "x"), "y": y}, schema)
    with pytest.warns(SeededWarning):
        model = fit_table(data, schema, 3.0, seed=0)
    assert data.x.shape == (ROWS, 320)
    assert 9 <= len(model.fitted.scaling.kept) < 25  # 311 hold nothing; noise lets one in 44 stand out
    assert len(model.fitted.scaling.products) >= 32
    assert data.y is not None
    assert model.score(model.fitted.outputs(data.x), data.y) > 0.98
    model.save(tmp_path / "model.npz")
    again = load(tmp_path / "model.npz")
    np.testing.assert_array_equal(again.probabilities(data.x), model.probabilities(data.x))


@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x03\x04"])
def test_what_is_no_model_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.npz"
    path.write_bytes(content)
    with pytest.raises(DataError, match="not a model of a table"):
        load(path)
    np.savez(path, facts=np.array('{"format": "another"}'))
    with pytest.raises(DataError, match="not a model of a table"):
        load(path)
    damaged = bytearray(path.read_bytes())
    damaged[damaged.index(b"PK\x01\x02") + 10] = 99  # the method of compression
    path.write_bytes(damaged)
    with pytest.raises(DataError, match="not a model of a table"):
        load(path)
