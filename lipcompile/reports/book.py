"""Formulas that are too long for the cell where they belong: they get a number, and stand at the end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from lipcompile.reports.pieces import Pieces, is_short, pieces


@dataclass(slots=True)
class Book:
    """Collects the long formulas of one document; the first one has number 1, and equal ones have one number."""

    _numbers: dict[Any, int] = field(default_factory=dict)

    def number(self, expression: Any) -> int | None:
        """Return the number of a long formula, None if it is short."""
        return None if is_short(expression) else self._numbers.setdefault(expression, len(self._numbers) + 1)

    def entries(self) -> list[Pieces]:
        """Return the formulas so far, by their numbers, in pieces."""
        return [pieces(expression) for expression in self._numbers]
