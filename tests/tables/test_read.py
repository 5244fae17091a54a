"""Sources of rows: files and what is in memory, read alike; wrong ones, of which no row is quoted."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lipcompile.diagnostics import InputError
from lipcompile.tables.read import batches, is_table, stem
from lipcompile.tables.schema import Number, Schema
from lipcompile.tables.stream import encoded

SECRET = "secret-4711"


def rows(source: Any, columns: list[str] | None = None) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pa.Table.from_batches(batches(source, columns)).to_pylist()
    return found


def written(folder: Path, name: str, content: str | bytes) -> Path:
    data = content if isinstance(content, bytes) else content.encode()
    path = folder / name
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return path


TEXTS = [{"a": "1", "b": "x, y"}, {"a": "", "b": "NA"}]
SAME: Mapping[str, tuple[str, str]] = {
    "a name of Windows": ("T.CSV", 'a,b\n1,"x, y"\n,NA\n'),
    "plain": ("t.csv", 'a,b\n1,"x, y"\n,NA\n'),
    "compressed": ("t.csv.gz", 'a,b\n1,"x, y"\n,NA\n'),
    "line ends of Windows": ("t.csv", 'a,b\r\n1,"x, y"\r\n,NA\r\n'),
    "a byte order mark": ("t.csv", '\ufeffa,b\n1,"x, y"\n,NA\n'),
    "quoted names, and blanks around them": ("t.csv", '"a", b\n1,"x, y"\n,NA\n'),
    "empty lines": ("t.csv", '\n\na,b\n1,"x, y"\n\n,NA\n\n'),
    "semicolons": ("t.csv", "a;b\n1;x, y\n;NA\n"),
    "bars": ("t.csv", "a|b\n1|x, y\n|NA\n"),
    "tabs": ("t.tsv", "a\tb\n1\tx, y\n\tNA\n"),
    "tabs in a compressed file": ("t.tsv.gz", "a\tb\n1\tx, y\n\tNA\n"),
}


@pytest.mark.parametrize("case", SAME)
def test_text_files_are_read_as_texts(case: str, tmp_path: Path) -> None:
    path = written(tmp_path, *SAME[case])
    assert rows(path) == rows(str(path)) == TEXTS
    assert rows(path, ["b"]) == [{"b": "x, y"}, {"b": "NA"}]


def test_quoted_lines_and_quotes_stay_in_their_field(tmp_path: Path) -> None:
    path = written(tmp_path, "t.csv", 'a,"b\nc"\n"1\n2","say ""x"""\n')
    assert rows(path) == [{"a": "1\n2", "b\nc": 'say "x"'}]


def test_a_column_may_look_like_numbers_at_first(tmp_path: Path) -> None:
    count = 300_000
    path = written(tmp_path, "t.csv", "a,b\n" + "1,2\n" * count + "x,2.5\n")
    found = rows(path)
    assert len(found) == count + 1
    assert found[-1] == {"a": "x", "b": "2.5"}


def test_batches_are_of_bounded_size() -> None:
    sizes = [len(batch) for batch in batches({"a": np.zeros(150_000)})]
    assert sizes == [65536, 65536, 150_000 - 2 * 65536]


class Stream:
    """A frame that nobody knows, with the one protocol or the other."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self.table.__arrow_c_stream__(requested_schema)


class Interchanged:
    """The older protocol."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def __dataframe__(self, *given: Any, **named: Any) -> Any:
        return self.table.__dataframe__(*given, **named)


NUMBERS = {"x0": [1.0, 2.0], "x1": [3.0, 4.0]}


class HuggingFace:
    """A Dataset as the library `datasets` has it, where this is read: pieces of pyarrow, whatever its order."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table
        self.features = SimpleNamespace(arrow_schema=table.schema)

    def with_format(self, kind: str) -> HuggingFace:
        assert kind == "arrow"
        return self

    def iter(self, batch_size: int) -> Iterator[pa.Table]:
        assert batch_size > 1
        yield from (self._table.slice(start, 1) for start in range(len(self._table)))


IN_MEMORY: Mapping[str, Callable[[], Any]] = {
    "a dict": lambda: {name: np.array(values) for name, values in NUMBERS.items()},
    "a dict of lists": lambda: NUMBERS,
    "a matrix": lambda: np.array([*NUMBERS.values()]).T,
    "a matrix of objects": lambda: np.array([*NUMBERS.values()], object).T,
    "pandas": lambda: pd.DataFrame(NUMBERS),
    "pandas with an index": lambda: pd.DataFrame(NUMBERS, index=pd.Index(["p", "q"], name="person")),
    "a table of pyarrow": lambda: pa.table(NUMBERS),
    "a batch of pyarrow": lambda: pa.record_batch(NUMBERS),
    "a reader of pyarrow": lambda: pa.table(NUMBERS).to_reader(),
    "a stream": lambda: Stream(pa.table(NUMBERS)),
    "an interchanged frame": lambda: Interchanged(pa.table(NUMBERS)),
    "datasets": lambda: HuggingFace(pa.table(NUMBERS)),
    "polars": lambda: pytest.importorskip("polars").DataFrame(NUMBERS),
}


@pytest.mark.parametrize("case", IN_MEMORY)
def test_what_is_in_memory_is_read_alike(case: str) -> None:
    expected = [{"x0": 1.0, "x1": 3.0}, {"x0": 2.0, "x1": 4.0}]
    assert rows(IN_MEMORY[case]()) == expected
    assert rows(IN_MEMORY[case](), ["x1"]) == [{"x1": 3.0}, {"x1": 4.0}]


def test_texts_and_dates_of_pandas_and_numpy_are_read() -> None:
    frame = pd.DataFrame(
        {"t": ["x", None], "c": pd.Categorical(["x", None]), "d": pd.to_datetime(["2000-01-01", None])}
    )
    (first, second) = rows(frame)
    assert (first["t"], first["c"], first["d"].year) == ("x", "x", 2000)
    assert list(second.values()) == [None] * 3
    assert rows(np.array([["x", "y"]])) == [{"x0": "x", "x1": "y"}]


@pytest.mark.parametrize("end", ["", "\n", "\r\n", "\r", "\n\n"])
def test_the_last_row_is_read_with_and_without_a_line_end(end: str, tmp_path: Path) -> None:
    path = written(tmp_path, "t.csv", 'a,b\n1,"x\ny"\n2,' + end)
    expected = [{"a": "1", "b": "x\ny"}, {"a": "2", "b": ""}]
    assert rows(path) == expected
    assert rows(path, ["b"]) == [{"b": row["b"]} for row in expected]


def test_names_may_be_longer_than_a_mebibyte_and_hold_separators(tmp_path: Path) -> None:
    names = [f"column {n}, é;;" for n in range(80_000)]
    header = ",".join(f'"{name}"' for name in names)
    assert len(header) > 2**20
    path = written(tmp_path, "t.csv", f"{header}\n{','.join(map(str, range(80_000)))}\n")
    assert rows(path, [names[79_999], names[3]]) == [{names[79_999]: "79999", names[3]: "3"}]


def test_parquet_is_read(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"a": [1, None], "b": ["x", "y"], "c": [[1], [2]]}), path)
    assert rows(path, ["b", "a"]) == [{"b": "x", "a": 1}, {"b": "y", "a": None}]
    assert len(rows(path)) == 2


def csv(content: str | bytes, name: str = "t.csv") -> Callable[[Path], Any]:
    return lambda folder: written(folder, name, content)


def truncated(folder: Path) -> Path:
    path = written(folder, "t.csv.gz", "a,b\n" + "".join(f"{SECRET}{n},{n * n}\n" for n in range(1000)))
    path.write_bytes(path.read_bytes()[:-100])
    return path


def no_parquet(folder: Path) -> Path:
    return written(folder, "t.parquet", f"a\n{SECRET}\n")


def a_folder(folder: Path) -> Path:
    (folder / "t.csv").mkdir()
    return folder / "t.csv"


# What is wrong: how it is made, its code, and what is said.
WRONG: Mapping[str, tuple[Callable[[Path], Any], str, str]] = {
    "empty": (csv(""), "LIP410", "is empty"),
    "blank": (csv("\n \n"), "LIP410", "is empty"),
    "names alone": (csv("a,b\n"), "LIP410", "has no rows"),
    "an empty frame": (lambda _: pd.DataFrame({"a": []}), "LIP410", "the table has no rows"),
    "missing": (lambda folder: folder / "t.csv", "LIP410", "No such file"),
    "a folder": (a_folder, "LIP410", "is not a file"),
    "another format": (csv(SECRET, "t.xlsx"), "LIP410", "is not a table"),
    "unequal rows": (csv(f"a,b\n1,2\n1,{SECRET},3\n"), "LIP410", "unequal numbers of fields"),
    "a quote that is not closed": (csv('a,b\n1,"2\n' + f"1,{SECRET}\n" * 600_000), "LIP410", "an unmatched quote"),
    "a quote that is not closed in the last field": (
        csv(f'a,b\n1,2\n1,"2\n1,{SECRET}\n'),
        "LIP410",
        "a quote is not closed",
    ),
    "one column, and a quote that is not closed": (
        csv(f'a\n1\n"2\n{SECRET}\n'),
        "LIP410",
        "a quote is not closed",
    ),
    "a quote that is not closed in names of a short file": (
        csv(f'"a,b\n1,{SECRET}\n'),
        "LIP410",
        "an unmatched quote",
    ),
    "names alone, without a line end": (csv("a,b"), "LIP410", "has no rows"),
    "a quote that is not closed in the names": (
        csv('"a,b\n' + f"1,{SECRET}\n" * 60_000),
        "LIP410",
        "an unmatched quote",
    ),
    "Latin-1": (csv(f"a,b\n{SECRET},é\n".encode("latin-1")), "LIP410", "not UTF-8 text"),
    "UTF-16": (csv(f"a,b\n{SECRET},é\n".encode("utf-16")), "LIP410", "not UTF-8 text"),
    "a broken archive": (truncated, "LIP410", "damaged"),
    "no archive": (lambda folder: csv(b"")(folder).rename(folder / "t.csv.gz"), "LIP410", "is empty"),
    "no parquet": (no_parquet, "LIP410", "damaged or of another format"),
    "several columns of a name": (
        csv(f"a,b,a\n1,2,{SECRET}\n"),
        "LIP411",
        "several columns with the same name `a`",
    ),
    "pandas with several columns of a name": (
        lambda _: pd.DataFrame([[1, SECRET]], columns=["a", "a"]),
        "LIP411",
        "several columns with the same name `a`",
    ),
    "a row where names are needed": (csv(f"4711,{SECRET},4711\n1,2,3\n"), "LIP411", "the same name [LIP411]"),
    "mixed objects of pandas": (
        lambda _: pd.DataFrame({"a": [1, SECRET]}),
        "LIP410",
        "the table has a column with values of several kinds",
    ),
    "unequal columns": (
        lambda _: {"a": [1], "b": [SECRET, "y"]},
        "LIP410",
        "the table has a column with values other than",
    ),
    "a number": (lambda _: 3, "LIP410", "a int is not a table"),
    "a cube": (lambda _: np.zeros((2, 2, 2)), "LIP410", "a ndarray is not a table"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_source_is_refused_and_no_row_is_quoted(case: str, tmp_path: Path) -> None:
    make, code, message = WRONG[case]
    source = make(tmp_path)
    with pytest.raises(InputError) as caught:
        rows(source)
    (found,) = caught.value.diagnostics
    assert found.code == code
    assert message in str(caught.value)
    assert "4711" not in str(caught.value)
    if isinstance(source, Path):
        assert str(source) in found.message


def test_names_are_not_told_where_they_may_be_a_row(tmp_path: Path) -> None:
    path = written(tmp_path, "t.csv", f"39,{SECRET}\n50,y\n")
    with pytest.raises(InputError) as caught:
        rows(path, ["age"])
    assert "4711" not in str(caught.value)
    assert "no header line" in caught.value.diagnostics[0].help


def test_what_was_read_fits_a_schema(tmp_path: Path) -> None:
    table = pa.Table.from_batches(batches(written(tmp_path, "t.csv", "a\n 1\n?\n")))
    np.testing.assert_array_equal(encoded(table, Schema((Number("a"),))).x, [[1], [np.nan]])


def test_pyarrow_is_asked_for_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow.lib", None)
    with pytest.raises(InputError, match=r"pip install 'lipcompile\[tables\]'"):
        rows({"a": [1]})


def test_a_table_is_known_by_its_name() -> None:
    names = ["a.csv", "a.b.csv.gz", "a.tsv", "a.tsv.gz", "a.parquet", "a.CSV"]
    assert all(map(is_table, names))
    assert [stem(Path("x") / name) for name in names] == ["a", "a.b", "a", "a", "a", "a"]
    assert not any(map(is_table, ["a.lip", "a.onnx", "nets:Net", "a.npz", "csv"]))
    assert stem(Path("a.lip")) == "a.lip"
