"""Whether a target can be learned, and its classes. No value of it is told: a class may belong to one person."""

from __future__ import annotations

import numpy as np

from lipcompile.diagnostics import input_error
from lipcompile.tables.encode import Encoded
from lipcompile.tables.schema import Schema

_MANY = 20  # classes
_ROWS = 5  # for each class


def too_many(classes: int, rows: int) -> bool:
    """Return whether classes that are read from rows may be names of people: many, with few rows of each."""
    return classes > max(_MANY, rows // _ROWS)


def classes_of(data: Encoded, schema: Schema, place: str = "the table") -> tuple[str, ...]:
    """Check the target of rows to learn from, and return its classes in order; none of a regression.

    They are those of the schema. If it has none they are read from the rows, which no budget covers: whoever calls
    this says so.

    Raises:
        InputError: LIP411, there is no target; LIP413, it has other classes than the public ones; LIP414, it is
            missing in a row; or, where classes are not public, the same in all rows, or another in many of them.
    """
    column = f"{place}: the target `{schema.target}`"
    if data.y is None:
        raise input_error("LIP411", f"{place} has no target column", "name the column with --target")
    if schema.task == "regression":
        if np.isnan(data.y).any():
            raise _absent(column)
        return ()
    found = set(data.y)
    if None in found:
        raise _absent(column)
    if schema.classes is None and len(found) == 1:
        raise input_error("LIP414", f"{column} has the same class in all rows", "learn another column")
    if schema.classes is None and too_many(len(found), len(data.y)):
        help_line = 'learn another column; or write `classes` into the schema, or task = "regression"'
        raise input_error("LIP414", f"{column} has too many classes for so few rows", help_line)
    if schema.classes is not None and not found <= set(schema.classes):
        help_line = "write all classes into the schema, or remove the rows with other classes"
        raise input_error("LIP413", f"{column} has a class that the schema does not have", help_line)
    return schema.classes or tuple(sorted(found))


def _absent(column: str) -> Exception:
    return input_error("LIP414", f"{column} is missing in some rows", "remove those rows")
