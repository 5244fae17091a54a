"""Sources of rows: CSV and Parquet files, frames, dicts of arrays, matrices. All become batches of pyarrow."""

from __future__ import annotations

import csv
import datetime
import difflib
import io
import os
import re
import sys
from codecs import getincrementaldecoder
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lipcompile.diagnostics import input_error
from lipcompile.tables.values import arrow, guarded

TEXT = (".csv", ".csv.gz", ".tsv", ".tsv.gz")
ENDINGS = (*TEXT, ".parquet")

_BATCH = 65536  # rows
_BLOCK = 2**22  # bytes of text
_SEPARATORS = ",;\t|"
_HEAD = 2**20  # bytes that are searched for the names at first
_END = "\x02last row of lipcompile\x03"
"""All fields of a row that is appended to text: a quote that is not closed takes it in, and is noticed by that."""


def is_table(path: str | os.PathLike[str]) -> bool:
    """Whether the name of a file is that of a table."""
    return os.fspath(path).lower().endswith(ENDINGS)


def stem(path: Path) -> str:
    """Return the name of a table's file without its ending."""
    ending = next(ending for ending in (*ENDINGS, "") if path.name.lower().endswith(ending))
    return path.name[: len(path.name) - len(ending)]


def batches(source: Any, columns: Sequence[str] | None = None) -> Iterator[Any]:
    """Yield the rows of a source as RecordBatches of pyarrow.

    Args:
        source: a path that ends in one of `ENDINGS`; a frame of pandas or polars, or whatever else has
            `__arrow_c_stream__` or `__dataframe__`; a Dataset of Hugging Face; a mapping from names to arrays
            [N]; a numpy array [N, d] of columns x0, x1, …
        columns: which to read; None: all. Those of text files are texts: a schema says what they are.

    Raises:
        InputError: LIP410, the source cannot be read, or has no rows; LIP411, a column is not there, or twice.
    """
    place = called(source)
    with guarded(place):
        none = True
        with _reader(source, columns, place) as reader:
            for batch in reader:
                for start in range(0, batch.num_rows, _BATCH):
                    none = False
                    yield batch.slice(start, _BATCH)
        if none:
            raise input_error("LIP410", f"{place} has no rows", "add at least one row below the header line")


def called(source: Any) -> str:
    """Return how errors call a source."""
    return f"`{os.fspath(source)}`" if isinstance(source, str | os.PathLike) else "the table"


def _reader(source: Any, columns: Sequence[str] | None, place: str) -> Any:
    """Return a RecordBatchReader of some columns, whose names are distinct."""
    if isinstance(source, str | os.PathLike):
        return _file(Path(source), columns, place)
    try:
        reader = _in_memory(source, place)
    except MixedError:
        message = f"{place} has a column with values of several kinds, such as texts and numbers"
        raise input_error(
            "LIP410", message, "make all values of a column texts, or all numbers, or all dates"
        ) from None
    except (ValueError, TypeError, OverflowError):  # whatever a frame holds that pyarrow has no type for
        raise input_error(
            "LIP410", f"{place} has a column with values other than text, numbers and dates"
        ) from None
    _check(reader.schema.names, columns, place)
    if columns is None:
        return reader
    kinds = arrow().schema([reader.schema.field(name) for name in columns])
    return arrow().RecordBatchReader.from_batches(kinds, (batch.select(columns) for batch in reader))


def _check(names: Sequence[str], columns: Sequence[str] | None, place: str) -> None:
    check_distinct(names, place)
    check_names(columns or (), names, place)


def _file(path: Path, columns: Sequence[str] | None, place: str) -> Any:
    path.stat()
    if not path.is_file():
        raise input_error("LIP410", f"{place} is not a file", "give the path of a file")
    if path.name.lower().endswith(TEXT):
        return _text(path, columns, place)
    if not is_table(path):
        raise input_error("LIP410", f"{place} is not a table", f"its name must end in {', '.join(ENDINGS)}")
    file = arrow("parquet").ParquetFile(path)
    _check(file.schema_arrow.names, columns, place)
    chosen = file.schema_arrow.names if columns is None else list(columns)
    kinds = arrow().schema([file.schema_arrow.field(name) for name in chosen])
    return arrow().RecordBatchReader.from_batches(kinds, file.iter_batches(_BATCH, columns=chosen))


def _text(path: Path, columns: Sequence[str] | None, place: str) -> Any:
    """Return a reader of all fields as texts, so that no type is guessed from the first rows."""
    names, lines, separator = _head(path, place)
    _check(names, columns, place)
    module = arrow("csv")
    reader = module.open_csv(
        arrow().PythonFile(_Ended(path, separator.join([_END] * len(names))), "r"),
        read_options=module.ReadOptions(column_names=names, skip_rows=lines, block_size=_BLOCK),
        parse_options=module.ParseOptions(delimiter=separator, newlines_in_values=True),
        convert_options=module.ConvertOptions(
            column_types=dict.fromkeys(names, arrow().string()),
            include_columns=None if columns is None else list(columns),
            strings_can_be_null=False,
        ),
    )
    return arrow().RecordBatchReader.from_batches(reader.schema, _without_end(reader, place))


class _Ended(io.RawIOBase):
    """The text in a file, unpacked, and a row that stands behind it."""

    def __init__(self, path: Path, row: str) -> None:
        self._stream = arrow().input_stream(path)
        self._rest = f"\n{row}\n".encode()

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        """Return so many bytes, fewer at the end alone: what is searched for a line end must hold one."""
        found = b""
        while (size < 0 or len(found) < size) and (
            more := self._stream.read(None if size < 0 else size - len(found))
        ):
            found += more
        some = len(self._rest) if size < 0 else size - len(found)
        found, self._rest = found + self._rest[:some], self._rest[some:]
        return found

    def close(self) -> None:
        self._stream.close()
        super().close()


def _without_end(reader: Any, place: str) -> Iterator[Any]:
    """Yield batches without the row that `_Ended` appends; raises InputError if a quote has taken it in."""
    last = None
    for batch in reader:
        if batch.num_rows:
            if last is not None:
                yield last
            last = batch
    if last is None or any(column[-1].as_py() != _END for column in last.columns):
        message = f"{place} cannot be read: a quote is not closed"
        raise input_error("LIP410", message, "look for an unmatched quote; a quote within a field is doubled")
    if last.num_rows > 1:
        yield last.slice(0, last.num_rows - 1)


def _head(path: Path, place: str) -> tuple[list[str], int, str]:
    """Return the names in a text file, the number of lines that they end at, and what separates them."""
    text, decoder = "", getincrementaldecoder("utf-8-sig")("replace")
    with arrow().input_stream(path) as stream:
        while more := stream.read(max(_HEAD, len(text))):
            text += decoder.decode(more)
            if "\0" in text or "\ufffd" in text.lstrip().partition("\n")[0]:
                raise input_error("LIP410", f"{place} is not UTF-8 text", "save it as UTF-8")
            names, lines, separator, is_last = _names(text, path, place)
            if not is_last:
                return names, lines, separator
    if not text.strip():
        raise input_error(
            "LIP410",
            f"{place} is empty",
            "write a header line with the names of the columns, then one line for each row",
        )
    if any(_END in name for name in names):
        raise _no_header(place)
    return names, lines, separator


def _names(text: str, path: Path, place: str) -> tuple[list[str], int, str, bool]:
    """Return what `_head` does of the beginning of a file, and whether the names reach to its end."""
    lines = [*io.StringIO(text, newline="")]
    line = re.sub('"[^"]*"', "", next((line for line in lines if line.strip()), ""))
    separator = "\t" if ".tsv" in path.name.lower() else max(_SEPARATORS, key=line.count)
    reader = csv.reader([*lines, f"\n{_END}"], delimiter=separator)
    try:
        names = next((row for row in reader if row), [])
    except csv.Error:
        raise _no_header(place) from None
    return [name.strip() for name in names], reader.line_num, separator, reader.line_num >= len(lines)


def _no_header(place: str) -> Exception:
    return input_error("LIP410", f"{place} has no header line", "look for an unmatched quote in it")


def _in_memory(source: Any, place: str) -> Any:
    """Return a table in memory as a RecordBatchReader; raises InputError, or what pyarrow does."""
    pa, pandas = arrow(), sys.modules.get("pandas")
    if pandas is not None and isinstance(source, pandas.DataFrame):
        check_distinct(list(map(str, source.columns)), place)
        return _of_pandas(source).to_reader()
    if hasattr(source, "__arrow_c_stream__"):
        return pa.RecordBatchReader.from_stream(source)
    if hasattr(source, "features") and hasattr(source, "with_format"):  # a Dataset of Hugging Face
        return _of_dataset(source)
    if isinstance(source, pa.RecordBatch):
        return pa.Table.from_batches([source]).to_reader()
    if hasattr(source, "__dataframe__"):
        return arrow("interchange").from_dataframe(source).to_reader()
    if isinstance(source, Mapping):
        return pa.table({name: _column(values) for name, values in source.items()}).to_reader()
    if isinstance(source, np.ndarray) and source.ndim == 2:
        return pa.table({f"x{index}": _column(column) for index, column in enumerate(source.T)}).to_reader()
    help_line = "give a path, a data frame, a dict of arrays or a numpy array [N, d]"
    raise input_error("LIP410", f"a {type(source).__name__} is not a table", help_line)


def _of_pandas(frame: Any) -> Any:
    """Return a frame as a Table; of its objects pyarrow would choose a type by itself."""
    kinds = [getattr(kind, "categories", frame.iloc[:, at]).dtype for at, kind in enumerate(frame.dtypes)]
    objects = [at for at, kind in enumerate(kinds) if isinstance(kind, np.dtype) and kind.hasobject]
    rest = frame.drop(columns=[frame.columns[at] for at in objects])
    found = arrow().Table.from_pandas(rest, preserve_index=False)
    for at in objects:
        found = found.add_column(at, str(frame.columns[at]), from_objects(frame.iloc[:, at].to_numpy(object)))
    return found


def _column(values: Any) -> Any:
    """Return the values of a column as pyarrow takes them."""
    if isinstance(values, list | tuple):  # numpy would choose a type that holds all of them
        found = np.empty(len(values), object)
        found[:] = values
        return from_objects(found)
    found = np.asarray(values)
    return from_objects(found) if found.dtype == object and found.ndim == 1 else found


def _of_dataset(source: Any) -> Any:
    """Return the rows of a Dataset of Hugging Face as a RecordBatchReader, in its order."""
    pieces = source.with_format("arrow").iter(_BATCH)
    found = (batch for piece in pieces for batch in piece.combine_chunks().to_batches())
    return arrow().RecordBatchReader.from_batches(source.features.arrow_schema, found)


# --- names of columns: public, unless a file has no header line and its first row replaces it ---

_LONGEST = 100
_NO_NAMES = "the names look like values: if the file has no header line, add one above the rows"


def check_names(wanted: Sequence[str], names: Sequence[str], place: str) -> None:
    """Raise InputError (LIP411) if a wanted column is not there, or there twice."""
    counts = Counter(names)
    missing = [name for name in wanted if not counts[name]]
    if missing:
        raise input_error("LIP411", f"{place} has no column {_listed(missing)}", _known(names, missing[0]))
    twice = [name for name in wanted if counts[name] > 1]
    if twice:
        raise input_error(
            "LIP411", f"{place} has several columns {_listed(twice)}", "give each column a unique name"
        )


def check_distinct(names: Sequence[str], place: str) -> None:
    """Raise InputError (LIP411) if two columns have one name; it is not told if it may be a value."""
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        told = f" {_listed(twice)}" if are_names(names) else ""
        raise input_error("LIP411", f"{place} has several columns with the same name{told}", _help_line(names))


def _help_line(names: Sequence[str]) -> str:
    return "give each column a unique name" if are_names(names) else _NO_NAMES


def _known(names: Sequence[str], missing: str) -> str:
    """Name the columns, the one that was meant first."""
    if not are_names(names):
        return _NO_NAMES
    near = difflib.get_close_matches(missing, names, n=1)
    return (f"did you mean `{near[0]}`? " if near else "") + f"it has {_listed(names)}"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def are_names(names: Sequence[str]) -> bool:
    """Whether no name looks like a value, as it does if a row replaces the names."""
    return all(map(_is_name, names))


def _is_name(name: str) -> bool:
    try:
        float(name)
    except ValueError:
        return name.isprintable() and 0 < len(name) <= _LONGEST
    return False


# The first that a value is an instance of; a time is a date, too, and a truth value a number.
_KINDS: tuple[tuple[str, tuple[type, ...]], ...] = (
    ("truth value", (bool, np.bool_)),
    ("number", (int, float, np.integer, np.floating)),
    ("text", (str,)),
    ("decimal", (Decimal,)),
    ("time", (datetime.datetime, np.datetime64)),
    ("date", (datetime.date,)),
)
_NOTHING = ("NAType", "NaTType")  # of pandas, which need not be there
_EXACT = 2**53  # beyond, floats do not hold all whole numbers


class MixedError(ValueError):
    """Objects of several kinds; says not which."""


def from_objects(values: NDArray[Any]) -> Any:
    """Return objects [N] as an array of pyarrow, of the type of all; None, NaN, NaT and NA are missing.

    One value of another kind, which would change the type of its column and all other rows, is refused.

    Raises:
        MixedError: they are of several kinds, or times with and without a zone, or floats beside whole numbers
            that no float holds.
        ValueError, TypeError, OverflowError: pyarrow has no type for them.
    """
    plain = [value.item() if isinstance(value, np.number | np.bool_) else value for value in values]
    present = [value for value in plain if not _is_missing(value)]
    if len(set(map(_kind, present))) > 1:
        raise MixedError
    whole = [value for value in present if type(value) is int]
    if whole and any(type(value) is float for value in present):
        if any(abs(value) > _EXACT for value in whole):
            raise MixedError
        plain = [None if _is_missing(value) else float(value) for value in plain]
    return arrow().array(plain, from_pandas=True)


def _is_missing(value: Any) -> bool:
    if isinstance(value, float):
        return value != value
    return value is None or type(value).__name__ in _NOTHING


def _kind(value: Any) -> tuple[object, bool]:
    """Return the kind of a value, which for types that are not listed is the type; and whether it has a zone."""
    kind = next((name for name, types in _KINDS if isinstance(value, types)), type(value))
    return kind, kind == "time" and getattr(value, "tzinfo", None) is not None
