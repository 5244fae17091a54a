"""The requirements R1 to R3, as every report lists them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lipcompile.core.derivation import NOT_REACHED, Requirements

State = Literal["holds", "fails", "not reached"]

_TITLES = {
    "lipschitz_loss": ("R1", "Lipschitz loss"),
    "bounded_input": ("R2", "bounded input"),
    "lipschitz_layers": ("R3", "Lipschitz layers"),
}


@dataclass(frozen=True, slots=True)
class RequirementRow:
    """One of R1 to R3: `number` is R1, `title` what it asks."""

    number: str
    title: str
    state: State
    detail: str


def requirement_rows(requirements: Requirements) -> tuple[RequirementRow, ...]:
    """Return R1 to R3 with their titles."""
    rows = []
    for field, (number, title) in _TITLES.items():
        found = getattr(requirements, field)
        state: State = "not reached" if found.detail == NOT_REACHED else "holds" if found.ok else "fails"
        rows.append(RequirementRow(number, title, state, found.detail))
    return tuple(rows)
