"""pyarrow, when it is needed, and its columns as numpy arrays: numbers, days, yes and no, texts.

A missing value is NaN, None or a code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from decimal import Context, Decimal
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lipcompile.diagnostics import input_error
from lipcompile.tables.schema import Mark

Floats = NDArray[np.float64]

# Texts that say that there is no value, once blanks around them are gone.
MISSING = frozenset(("", "?", "NA", "N/A", "n/a", "NaN", "nan", "null", "NULL"))
# Codes of a text in place of its number.
ABSENT, OTHER = -1, -2

# Numbers in a text: `-1234.5`, `1e3`, `$1,234.50`, `+12 %`, or `1.234,5 €`. The plain ones are those of pyarrow.
_PLAIN = r"[+-]?((\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|(?i:inf(inity)?|nan(\([0-9a-z_]*\))?))"
_SIGNS = "[$€£¥]"
# How dates are written besides ISO, as strptime says it.
FORMATS = tuple(
    f"{day}{time}"
    for day in ("%d/%m/%Y", "%m/%d/%Y", "%d.%m.%Y", "%d-%m-%Y", "%m-%d-%Y", "%Y/%m/%d")
    for time in ("", " %H:%M", " %H:%M:%S")
)
_DIGITS = Context(prec=100)  # more than decimals of pyarrow have
_DAY = 86400e6  # in microseconds
_TRIED = 100  # rows
_FIRST_YEAR = 1000  # of four digits
_YES = dict.fromkeys(("true", "t", "yes", "y", "1", "1.0"), 1)
_NO = dict.fromkeys(("false", "f", "no", "n", "0", "0.0"), 0)
# What is wrong with a file, by a part of pyarrow's message: the message itself may quote rows.
_CAUSES = (
    ("columns, got", "its rows have unequal numbers of fields", "quote fields that hold separators or line ends"),
    ("straddling object", "a row is longer than 4 MiB, or a quote is not closed", "look for an unmatched quote"),
    ("UTF8", "it is not UTF-8 text", "save it as UTF-8"),
)


class UnfitError(ValueError):
    """A column holds something of another kind; says not what."""


def arrow(part: str = "") -> Any:
    """Return pyarrow, or the part of it of that name, such as `csv`; raises InputError (LIP410)."""
    try:
        return import_module(f"pyarrow.{part}" if part else "pyarrow")
    except ModuleNotFoundError:
        raise input_error("LIP410", "tables need pyarrow", "pip install 'lipcompile[tables]'") from None


@contextmanager
def guarded(place: str) -> Iterator[None]:
    """Raise InputError (LIP410) for a source that pyarrow cannot read, without what it says of the rows."""
    lib = arrow("lib")
    try:
        yield
    except OSError as error:
        cause = f"cannot be read: {error.strerror}" if error.strerror else "is damaged or of another format"
        raise input_error("LIP410", f"{place} {cause}") from None
    except lib.ArrowException as error:
        for part, cause, help_line in _CAUSES:
            if part in str(error):
                raise input_error("LIP410", f"{place} cannot be read: {cause}", help_line) from None
        raise input_error("LIP410", f"{place} is damaged or of another format", "write it anew") from None


def numbers(array: Any, *, decimal: Mark = ".", coerce: bool = False) -> Floats:
    """Return numbers, or texts that are numbers, as float64 [N]; raises UnfitError.

    Args:
        array: of pyarrow.
        decimal: the mark before the decimals of a text; the other one groups its digits by three.
        coerce: a text that is no number counts as missing.
    """
    types, array = arrow("types"), _plain(array)
    if types.is_decimal(array.type):  # to the nearest float, whatever the number of its places
        array = _cast(array, arrow().large_string())
    if _is_text(array):
        return _floats(_of_texts(array, decimal, coerce=coerce))
    if types.is_temporal(array.type):
        raise UnfitError
    return _floats(_cast(array, arrow().float64()))


def words(array: Any, decimal: Mark) -> list[str]:
    """Return the texts of a column that are no numbers, without missing ones; none of a column of another type."""
    array = _plain(array)
    if not _is_text(array):
        return []
    compute = arrow("compute")
    others = array.filter(compute.is_null(_numerals(array, decimal)))
    return [text for text in texts(others) if text is not None]


def days(array: Any, form: str | None = None) -> Floats:
    """Return dates, times, or texts that are some, as days since 1970, float64 [N]; raises UnfitError.

    Args:
        array: of pyarrow.
        form: of a text, as strptime says it, with a year of four digits; None: ISO.
    """
    types, array = arrow("types"), _plain(array)
    if _is_text(array):
        array = _times(array) if form is None else _dated(array, form)
    elif not (types.is_date(array.type) or types.is_timestamp(array.type) or types.is_null(array.type)):
        raise UnfitError
    instants = _cast(array, arrow().timestamp("us", getattr(array.type, "tz", None)))
    return _floats(_cast(_cast(instants, arrow().int64()), arrow().float64())) / _DAY


def flags(array: Any) -> Floats:
    """Return yes as 1 and no as 0, float64 [N]; raises UnfitError."""
    array = _plain(array)
    if _is_text(array):
        found = codes(array, lambda text: (_YES | _NO).get(text.lower()))
        if (found == OTHER).any():
            raise UnfitError
        return np.where(found == ABSENT, np.nan, found)
    values = numbers(array)
    if not np.isin(values[~np.isnan(values)], (0, 1)).all():
        raise UnfitError
    return values


def codes(array: Any, code_of: Callable[[str], int | None]) -> NDArray[np.int64]:
    """Return the code of each text, [N]: OTHER for one without a code, ABSENT for none; raises UnfitError.

    `code_of` sees each text once, without blanks around it. Numbers are texts as they are written shortest.
    """
    texts, places = _distinct(array)
    found = [_code(text, code_of) for text in texts]
    return np.array([*found, ABSENT], np.int64)[places]


def texts(array: Any) -> NDArray[np.object_]:
    """Return texts without blanks around them, None where there is none, [N]; raises UnfitError."""
    found, places = _distinct(array)
    return np.array([*(None if text in MISSING else text for text in found), None], object)[places]


def _code(text: str, code_of: Callable[[str], int | None]) -> int:
    code = code_of(text)
    if code is not None:
        return code
    return ABSENT if text in MISSING else OTHER


def _distinct(array: Any) -> tuple[list[str], NDArray[np.int64]]:
    """Return the texts that occur, and which of them each row has, [N]: one more than the last for none.

    The text of a value depends on the value alone: not on the type of its column, which another row may change.
    """
    pa, array = arrow(), _plain(array)
    types, spelled = arrow("types"), _spelling(array.type)
    if types.is_timestamp(array.type) and array.type.tz is not None:
        array = _cast(array, pa.timestamp(array.type.unit, "UTC"))
    elif types.is_floating(array.type):
        array = _cast(array, pa.float64())
    encoded = _cast(array, pa.large_string()).dictionary_encode()
    try:
        found = [spelled(text.strip()) for text in encoded.dictionary.to_pylist()]
    except UnicodeDecodeError:  # bytes that are no text
        raise UnfitError from None
    return found, _cast(encoded.indices.fill_null(len(found)), pa.int64()).to_numpy()


def _spelling(kind: Any) -> Callable[[str], str]:
    """Return how texts that pyarrow makes of values of a type are written."""
    types = arrow("types")
    if types.is_floating(kind) or types.is_decimal(kind):
        return _number
    return _instant if types.is_timestamp(kind) else str


def _number(text: str) -> str:
    """Return a number without an exponent and without zeros at its end, as whole numbers are written."""
    value = Decimal(text)
    return (
        format(_DIGITS.normalize(value), "f").removeprefix("-" if value == 0 else "")
        if value.is_finite()
        else text
    )


def _instant(text: str) -> str:
    """Return a time without zeros at its end, and a date alone at midnight if it has no zone."""
    start, zone = text.removesuffix("Z"), "Z" if text.endswith("Z") else ""
    start = start.rstrip("0").rstrip(".") if "." in start else start
    return start + zone if zone else start.removesuffix(" 00:00:00")


def _plain(array: Any) -> Any:
    """Return an array without dictionary, its texts of the type that every function of pyarrow takes."""
    types = arrow("types")
    if types.is_dictionary(array.type):
        array = arrow().DictionaryArray.from_arrays(array.indices, _plain(array.dictionary)).dictionary_decode()
    is_view = str(array.type) == "string_view"  # `types` asks for it from pyarrow 16 on
    return _cast(array, arrow().large_string()) if is_view else array


def _is_text(array: Any) -> bool:
    types = arrow("types")
    return bool(types.is_string(array.type) or types.is_large_string(array.type))


def _times(array: Any) -> Any:
    """Return instants; those of texts with a zone are in UTC."""
    pa = arrow()
    try:
        return _parsed(array, pa.timestamp("us"))
    except UnfitError:
        return _parsed(array, pa.timestamp("us", "UTC"))


def _dated(array: Any, form: str) -> Any:
    """Return instants of texts of a form; raises UnfitError."""
    compute = arrow("compute")
    present = _trimmed(array)
    for some in (present.slice(0, _TRIED), present):
        found = compute.strptime(some, format=form, unit="us", error_is_null=True)
        first = compute.min(compute.year(found)).as_py()
        if found.null_count > some.null_count or (first is not None and first < _FIRST_YEAR):
            raise UnfitError
    return found


def _of_texts(array: Any, decimal: Mark, *, coerce: bool) -> Any:
    """Return texts as numbers; raises UnfitError, but for those that are coerced."""
    if decimal == "." and not coerce:
        with suppress(UnfitError):
            return _parsed(array, arrow().float64())
    numerals = _numerals(array, decimal)
    if not coerce and numerals.null_count > _trimmed(array).null_count:
        raise UnfitError
    return _cast(numerals, arrow().float64())


def _numerals(array: Any, decimal: Mark) -> Any:
    """Return texts as numbers are written plainly; null for one that is no number."""
    pa, compute = arrow(), arrow("compute")
    group = "," if decimal == "." else "."
    digits = rf"(\d{{1,3}}(\{group}\d{{3}})+|\d+)(\{decimal}\d*)?"
    formatted = rf"([+-]?{_SIGNS}? ?|{_SIGNS} ?[+-]){digits} ?(%|{_SIGNS})?"
    trimmed = _trimmed(array)
    is_number = compute.match_substring_regex(trimmed, f"^({formatted}{'|' + _PLAIN if decimal == '.' else ''})$")
    bare = compute.replace_substring_regex(trimmed, rf"[$€£¥% ]|\{group}", "")
    written = compute.replace_substring(bare, decimal, ".")
    return compute.if_else(is_number, written, pa.scalar(None, trimmed.type))


def _parsed(array: Any, kind: Any) -> Any:
    """Return texts as values of a kind; raises UnfitError."""
    present = _trimmed(array)
    _cast(present.slice(0, _TRIED), kind)  # to fail takes twenty times as long as not to
    return _cast(present, kind)


def _trimmed(array: Any) -> Any:
    """Return texts without blanks around them; null for one that says that there is none."""
    pa, compute = arrow(), arrow("compute")
    trimmed = compute.utf8_trim_whitespace(array)
    absent = compute.is_in(trimmed, value_set=pa.array(sorted(MISSING), trimmed.type))
    return compute.if_else(absent, pa.scalar(None, trimmed.type), trimmed)


def _cast(array: Any, kind: Any) -> Any:
    lib = arrow("lib")
    try:
        return array.cast(kind, safe=False)
    except (lib.ArrowInvalid, lib.ArrowNotImplementedError):
        raise UnfitError from None


def _floats(array: Any) -> Floats:
    values: Floats = array.to_numpy(zero_copy_only=False).astype(np.float64, copy=False)
    return values
