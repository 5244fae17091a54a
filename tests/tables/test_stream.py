"""All rows in one matrix, in memory or in a file that is gone with it; and whether a target can be learned."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lipcompile.diagnostics import InputError
from lipcompile.tables.encode import Encoded, classes_of, release
from lipcompile.tables.schema import Category, Number, Schema, Task
from lipcompile.tables.stream import encoded, taken

COUNT = 150_000
SCHEMA = Schema((Number("a", 0, COUNT), Category("b", ("0", "1"))), "y")
SECRET = "secret-4711"


@pytest.fixture(scope="module")
def table() -> dict[str, Any]:
    a = np.arange(COUNT)
    return {"a": a, "b": a % 2, "y": np.array(["no", "yes"])[a % 2]}


def assert_rows(found: Encoded, rows: np.ndarray[Any, Any]) -> None:
    np.testing.assert_array_equal(found.x, np.stack([rows, rows % 2 == 0, rows % 2 == 1], axis=1))
    assert found.y is not None
    np.testing.assert_array_equal(found.y, np.array(["no", "yes"])[rows % 2])
    assert found.names == ("a", "b=0", "b=1")


@pytest.mark.parametrize(("memory", "kind"), [(2 * 4 * 3 * COUNT, np.ndarray), (2 * 4 * 3 * COUNT - 1, np.memmap)])
def test_rows_stay_in_memory_up_to_half_of_the_limit(table: dict[str, Any], memory: int, kind: type) -> None:
    found = encoded(table, SCHEMA, memory)
    assert type(found.x) is kind
    assert found.x.dtype == np.float32
    assert_rows(found, np.arange(COUNT))
    rows = np.random.default_rng(0).permutation(COUNT)
    part = taken(found, rows, memory)
    assert type(part.x) is kind
    assert_rows(part, np.arange(COUNT))
    assert_rows(taken(found, rows[:7]), np.sort(rows[:7]))
    assert_rows(found, np.arange(COUNT))


def test_a_temporary_file_has_no_name(
    table: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    found = encoded(table, SCHEMA, 0)
    assert list(tmp_path.iterdir()) == []
    assert opened(tmp_path) == 1
    del found
    gc.collect()
    assert opened(tmp_path) == 0


def test_memory_of_a_file_is_given_back(table: dict[str, Any]) -> None:
    """The rows that a temporary file has stay, and those of an array in memory too."""
    for memory in (0, 2**30):
        found = encoded(table, SCHEMA, memory)
        found.x[0, 0] = 7
        release(found.x)
        assert found.x[0, 0] == 7
        assert found.x[1:, 0].sum(dtype=np.float64) == COUNT * (COUNT - 1) / 2


@pytest.mark.parametrize("memory", [0, 2**30])
def test_values_outside_of_a_range_are_counted_over_all_pieces(table: dict[str, Any], memory: int) -> None:
    """Of 150,000 whole numbers from 0 on, those beyond 119,999 are a fifth."""
    schema = Schema((Number("a", 0, 119_999), Category("b", ("0", "1"))), "y")
    assert encoded(table, schema, memory).outside() == {"a": 0.2}


def opened(folder: Path) -> int:
    """Return how many files of a folder this process maps; Linux alone tells."""
    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("no /proc")
    return maps.read_text().count(str(folder))


def test_a_table_without_the_target_has_none(table: dict[str, Any]) -> None:
    found = encoded({"a": table["a"], "b": table["b"]}, SCHEMA)
    assert found.y is None
    assert taken(found, np.array([1])).y is None
    with pytest.raises(InputError, match="LIP411"):
        classes_of(found, SCHEMA)


def test_an_error_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"a,b\n1,0\n{SECRET},1\n")
    with pytest.raises(InputError, match=f"`{path}`: column `a` contains a value") as caught:
        encoded(path, SCHEMA)
    assert "4711" not in str(caught.value)


# Targets


def learned(y: list[Any], task: Task = "classification", **more: Any) -> tuple[str, ...]:
    schema = Schema((Number("a"),), "y", task, **more)
    return classes_of(encoded({"a": np.zeros(len(y)), "y": y}, schema), schema, "`t.csv`")


def test_classes_are_those_of_the_schema_in_its_order_or_those_that_occur() -> None:
    assert learned(["b", "a", "b"]) == ("a", "b")
    assert learned([2, 10, 2]) == ("10", "2")
    assert learned(["b", "a"], classes=("b", "c", "a")) == ("b", "c", "a")
    assert learned(["b", "b"], classes=("b", "c")) == ("b", "c")
    assert learned([1, 2], "regression") == ()
    assert len(learned([f"{n % 25}" for n in range(125)])) == 25  # five rows of each
    assert len(learned([f"{n}" for n in range(20)])) == 20


WRONG: dict[str, tuple[list[Any], dict[str, Any], str]] = {
    "missing in a row": (["a", "b", "NA"], {}, "LIP414"),
    "a missing number": ([1.0, float("nan")], {"task": "regression"}, "LIP414"),
    "one class": ([SECRET, SECRET], {}, "LIP414"),
    "names of people": ([f"{SECRET} {n % 25}" for n in range(100)], {}, "LIP414"),
    "a class that is not public": (["a", "b", SECRET], {"classes": ("a", "b")}, "LIP413"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_target_that_cannot_be_learned_is_refused_and_not_quoted(case: str) -> None:
    y, more, code = WRONG[case]
    with pytest.raises(InputError, match=rf"`t.csv`: the target `y` .*{code}") as caught:
        learned(y, **more)
    assert "4711" not in str(caught.value)
