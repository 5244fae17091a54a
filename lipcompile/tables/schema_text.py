"""Schemas as TOML files, with comments that say what to fill in."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from lipcompile.tables.schema import Column, Schema
from lipcompile.tables.schema_file import KINDS

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
#   {{ kind = "boolean" }}                          true and false, yes and no, 1 and 0.
#   {{ kind = "ignore" }}                           Not looked at; nor are columns that have no line here.
#
# missing = true of a number or a category adds a column that says where its value is missing.
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
    lines += [*_target(schema), "[columns]", *map(_column, schema.columns)]
    return "\n".join(lines) + "\n"


def _target(schema: Schema) -> list[str]:
    if schema.target is None:
        return []
    lines = [f"target = {_value(schema.target)}", f"task = {_value(schema.task)}"]
    if schema.task == "regression":
        lines += [f"target_range = {_value(schema.target_range)}"] if schema.target_range else [_NO_RANGE]
    else:
        lines += [f"classes = {_value(schema.classes)}"] if schema.classes else [_NO_CLASSES]
    return [*lines, ""]


_NO_RANGE = (
    "# target_range = [0, 100]     Without it the range is estimated privately, which costs a part of epsilon."
)
_NO_CLASSES = (
    '# classes = ["a", "b"]     Without it they are read from the rows, and the budget does not cover that.'
)


def _column(column: Column) -> str:
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
