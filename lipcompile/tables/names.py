"""Names of columns: public, unless a file has no header line and its first row replaces it."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Sequence

from lipcompile.diagnostics import input_error

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
