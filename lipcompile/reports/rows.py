"""Rows of tables that reports share: requirements, noise against signal, and copies of a layer taken together."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from lipcompile.analysis.usefulness import LARGEST_EXCESS
from lipcompile.core.derivation import NOT_REACHED, Block, Bound, LayerBounds, Requirements, largest
from lipcompile.numbers.rounding import finite
from lipcompile.reports.formulas import ELLIPSIS

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


@dataclass(frozen=True, slots=True)
class Measured:
    """Gradients at the initial weights, and the noise multiplier and the batch that their noise is of.

    signals: what a backend measured, `parameters` by name and the `total`: of each the `bound` K, the root mean
    square of the norms of gradients (`typical`), the norm of their `mean`, the expected norm of the `noise` on it.
    """

    signals: Any
    noise_multiplier: float
    batch: int


@dataclass(frozen=True, slots=True)
class SignalRow:
    """Norms over all copies of a parameter together."""

    name: str
    bound: float
    typical: float
    mean: float
    noise: float
    copies: int = 1

    @property
    def excess(self) -> float | None:
        """How many times the bound is a typical gradient; None if there is no gradient."""
        return _ratio(self.bound, self.typical)

    @property
    def relative(self) -> float | None:
        """How many times the noise is the mean gradient; None if that is 0."""
        return _ratio(self.noise, self.mean)

    @property
    def drowned(self) -> bool:
        """Whether noise in proportion to the bound is of no use."""
        return self.excess is None or self.excess > LARGEST_EXCESS


def _ratio(one: float, other: float) -> float | None:
    return finite(one / other) if other > 0 else None


def signal_row(name: str, copies: Sequence[Any]) -> SignalRow:
    """Return the norms over all copies of a parameter together."""
    norms = {
        norm: math.hypot(*(getattr(one, norm) for one in copies)) for norm in ("bound", "typical", "mean", "noise")
    }
    return SignalRow(name, **norms, copies=len(copies))


def first_copies(blocks: Iterable[Block]) -> dict[str, str]:
    """Return the layer of the first copy by each layer of a later one; blocks may stand in copies of blocks."""
    nearest = {
        name: first
        for block in blocks
        for copy in block.layers[1:]
        for first, name in zip(block.layers[0], copy, strict=True)
    }

    def resolved(name: str) -> str:
        while name in nearest:
            name = nearest[name]
        return name

    return {name: resolved(name) for name in nearest}


def together(bounds: Sequence[Bound]) -> Bound:
    """Return what holds of all: the largest number if all are known, and ⋯ for formulas that differ."""
    alike = all(bound.expression == bounds[0].expression for bound in bounds)
    return Bound(bounds[0].expression if alike else ELLIPSIS, largest(bounds))


def layer_of_all(found: Sequence[LayerBounds]) -> LayerBounds:
    """Return what holds of all copies of a layer, under the name of the first."""
    what = ("output_norm", "cotangent", "lipschitz")
    return LayerBounds(found[0].name, **{name: together([getattr(one, name) for one in found]) for name in what})


def grouped(names: Iterable[str], first: Mapping[str, str]) -> dict[str, list[str]]:
    """Return all copies of each layer by the first one."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(first.get(name, name), []).append(name)
    return groups
