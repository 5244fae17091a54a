"""Schemas as TOML files that people fill in, one line a column: read, and written with comments."""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields, replace
from datetime import date
from pathlib import Path
from typing import Any, get_args

from lipcompile.diagnostics import Diagnostic, InputError, Location
from lipcompile.tables.schema import (
    Boolean,
    Category,
    Column,
    Date,
    Ignore,
    Number,
    Range,
    Schema,
    Task,
    Text,
    schema_error,
)
from lipcompile.tables.tokens import content, is_content

KINDS: Mapping[str, type[Column]] = {
    "number": Number,
    "category": Category,
    "boolean": Boolean,
    "date": Date,
    "text": Text,
    "ignore": Ignore,
}
_KEYS = ("target", "task", "classes", "target_range", "target_decimal", "columns")


def load(path: Path) -> Schema:
    """Read a schema; raises InputError (LIP412) that names the line. Tokenizers are sought in its folder."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        return placed(schema_of(tomllib.loads(text)), path.parent)
    except OSError as error:
        raise schema_error(f"`{path}` cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise schema_error(f"`{path}` is not UTF-8 text") from None
    except tomllib.TOMLDecodeError as error:
        raise _placed(schema_error(f"no TOML: {error}"), path, text) from None
    except InputError as error:
        raise _placed(error, path, text) from None


def placed(schema: Schema, folder: Path) -> Schema:
    """Return a schema whose paths of tokenizers, relative to a folder, are absolute."""
    return _with_tokenizers(schema, lambda one: one if is_content(one) else str((folder / one).resolve()))


def portable(schema: Schema) -> Schema:
    """Return a schema that holds its tokenizers, not their paths; raises InputError (LIP412)."""
    return _with_tokenizers(schema, content)


def _with_tokenizers(schema: Schema, changed: Callable[[str], str]) -> Schema:
    columns = (replace(c, tokenizer=changed(c.tokenizer)) if isinstance(c, Text) else c for c in schema.columns)
    return replace(schema, columns=tuple(columns))


def _placed(error: InputError, path: Path, text: str) -> InputError:
    """Return an error that says where in the file it is: at the line it tells, or at the name that it quotes."""
    found = tuple(replace(one, location=_location(one, path, text)) for one in error.diagnostics)
    return InputError(found, text)


def _location(found: Diagnostic, path: Path, text: str) -> Location:
    told = re.search(r"at line (\d+), column (\d+)", found.message)
    if told:
        return Location(str(path), int(told[1]), int(told[2]))
    quoted = re.match(r"`(.*?)`", found.message)
    for number, line in enumerate(text.splitlines(), 1):
        key, name = re.match(r"\s*(\"(?:[^\"\\]|\\.)*\"|[\w-]+)\s*=", line), quoted and quoted[1]
        if key and name in (key[1], _unquoted(key[1])):
            return Location(str(path), number, key.start(1) + 1, len(key[1]))
    return Location(str(path))


def _unquoted(key: str) -> str:
    return next(iter(tomllib.loads(f"{key} = 0"))) if key.startswith('"') else key


def schema_of(document: Mapping[str, Any]) -> Schema:
    """Return the schema that a TOML document says; raises InputError (LIP412)."""
    for key in document:
        if key not in _KEYS:
            raise schema_error(f"`{key}` is not a key of a schema", _near(key, _KEYS))
    columns = document.get("columns")
    if not isinstance(columns, Mapping) or not columns:
        raise schema_error("the table [columns] is missing", "write one line for each column below it")
    ends = document.get("target_range")
    task = document.get("task", "classification" if ends is None else "regression")
    if task not in get_args(Task):
        raise schema_error("`task` has an unknown value", f"write {' or '.join(get_args(Task))}")
    return Schema(
        tuple(_column(name, entry) for name, entry in columns.items()),
        _text("target", document["target"]) if "target" in document else None,
        task,
        _texts("classes", document["classes"]) if "classes" in document else None,
        None if ends is None else _ends(ends),
        _field("target_decimal", "decimal", document.get("target_decimal", "."), Number),
    )


def _column(name: str, entry: Any) -> Column:
    if not isinstance(entry, Mapping) or "kind" not in entry:
        raise schema_error(f"`{name}` has no kind", 'such as { kind = "number" }')
    kind = KINDS.get(str(entry["kind"]))
    if kind is None:
        raise schema_error(f"`{name}` has an unknown kind", f"kinds are {', '.join(KINDS)}")
    known = [one.name for one in fields(kind) if one.name != "name"]
    given = {key: value for key, value in entry.items() if key != "kind"}
    for key in given:
        if key not in known:
            raise schema_error(f"`{name}` has `{key}`, which its kind does not allow", _near(key, known))
    if kind is Text and "tokenizer" not in given:
        raise schema_error(f"`{name}` has no tokenizer", 'such as tokenizer = "tokenizer.json"')
    return kind(name, **{key: _field(name, key, value, kind) for key, value in given.items()})


def _near(key: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(key, known, n=1)
    return f"did you mean `{near[0]}`?" if near else f"allowed keys: {', '.join(known) or 'none'}"


def _field(name: str, key: str, value: Any, kind: type[Column]) -> Any:
    """Return the value of a field of a column; raises InputError (LIP412)."""
    match key:
        case "values":
            return _texts(name, value)
        case "low" | "high" if kind is Date:
            return _day(name, key, value)
        case "low" | "high":
            return _number(name, key, value)
        case "tokenizer" | "format":
            return _text(name, value)
        case "buckets" if type(value) is int:
            return value
        case "decimal" if value in (".", ","):
            return value
        case "log" | "missing" | "coerce" if isinstance(value, bool):
            return value
    raise schema_error(
        f"`{name}`: `{key}` has the wrong type",
        'log, missing and coerce must be true or false, buckets a number, and decimal "." or ","',
    )


def _number(name: str, key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise schema_error(f"`{name}`: `{key}` is not a number")
    return float(value)


def _day(name: str, key: str, value: Any) -> str:
    """Return a day as text; TOML has dates, too."""
    if not isinstance(value, str | date):
        raise schema_error(f"`{name}`: `{key}` is not a date", "write it as 2020-01-31")
    return value if isinstance(value, str) else value.isoformat()


def _ends(value: Any) -> Range:
    if not isinstance(value, list) or len(value) != 2:
        raise schema_error("`target_range` must have two ends", "write it as [0, 100]")
    return _number("target_range", "low", value[0]), _number("target_range", "high", value[1])


def _texts(name: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise schema_error(f"`{name}`: a list of texts is needed", 'such as ["yes", "no"]')
    return tuple(_text(name, one) for one in value)


def _text(name: str, value: Any) -> str:
    """Return a text as rows have it: numbers as they are written shortest, truth values as true and false."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return str(value).removesuffix(".0")
    raise schema_error(f"`{name}`: a text is needed")


# --- written, with comments that say what to fill in ---

_HEAD = """\
# What is public about {source}, for `lipcompile train`.
{origins}
# Write down only what you know without looking at the rows: every entry of this file is treated as public.
#
#   {{ kind = "number", low = 0, high = 120 }}      Values outside are clipped. Without low and high the range is
#                                                 estimated privately, which costs a part of epsilon. log = true
#                                                 suits amounts.
#   {{ kind = "category", values = ["a", "b"] }}    Without values, names are hashed to buckets = 64.
#   {{ kind = "date", low = "2000-01-01", high = "2030-12-31" }}
#   {{ kind = "text", tokenizer = "tokenizer.json" }}     Free text; the tokenizer is a public file.
#   {{ kind = "boolean" }}                          true and false, yes and no, 1 and 0.
#   {{ kind = "ignore" }}                           Not looked at; nor are columns that have no line here.
#
# missing = true of a number or a category adds a column that says where its value is missing.
# coerce = true of a number lets a text that is no number count as missing; decimal = "," reads 1.234,5.
# format = "%d/%m/%Y" of a date reads 31/01/2020.
"""
# Where what is in a schema comes from.
KINDS_READ = "The kinds of columns were read from the rows, and the privacy budget does not cover that."
CLASSES_READ = "The classes were read from the rows, and the privacy budget does not cover that."
NAMES_READ = (
    "The names of columns look like values: without a header line they are the first row, and the privacy "
    "budget does not cover that."
)
PUBLIC = "The whole schema was read from the rows, which were declared public."
_KINDS = {kind: name for name, kind in KINDS.items()}


def text(schema: Schema, source: str, origins: Sequence[str]) -> str:
    """Return a schema as TOML, commented.

    Args:
        schema: what to write.
        source: the name of the table.
        origins: KINDS_READ, CLASSES_READ, NAMES_READ, PUBLIC, as it applies.
    """
    told = "\n".join(f"# {origin}" for origin in origins)
    lines = [_HEAD.format(source=" ".join(source.split()), origins=told or "#")]
    lines += [*_target(schema), "[columns]", *map(_line, schema.columns)]
    return "\n".join(lines) + "\n"


def _target(schema: Schema) -> list[str]:
    if schema.target is None:
        return []
    lines = [f"target = {_value(schema.target)}", f"task = {_value(schema.task)}"]
    if schema.task == "regression":
        lines += [f"target_range = {_value(schema.target_range)}"] if schema.target_range else [_NO_RANGE]
        lines += [f"target_decimal = {_value(schema.target_decimal)}"] if schema.target_decimal != "." else []
    else:
        lines += [f"classes = {_value(schema.classes)}"] if schema.classes else [_NO_CLASSES]
    return [*lines, ""]


_NO_RANGE = (
    "# target_range = [0, 100]     Without it the range is estimated privately, which costs a part of epsilon."
)
_NO_CLASSES = (
    '# classes = ["a", "b"]     Without it they are read from the rows, and the budget does not cover that.'
)


def _line(column: Column) -> str:
    given = {"kind": _KINDS[type(column)]}
    for one in fields(column):
        value = getattr(column, one.name)
        if one.name != "name" and value != one.default:
            given[one.name] = value
    entries = ", ".join(f"{key} = {_value(value)}" for key, value in given.items())
    return f"{_key(column.name)} = {{ {entries} }}"


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _value(name)


def _value(value: Any) -> str:
    """Return a value in TOML, whose texts are those of JSON but for one character."""
    match value:
        case bool():
            return str(value).lower()
        case str():
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case tuple():
            return f"[{', '.join(map(_value, value))}]"
        case float() if value.is_integer() and abs(value) < 1e15:
            return str(int(value))
    return repr(value)
