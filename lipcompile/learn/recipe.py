"""Settings of a training, by a rule that looks at the numbers of rows and of columns that are kept."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

LARGE = 200_000
"""Rows from which on steps take a Poisson sample of the rows: noise hardly grows, and a step costs no more."""

FEW = 50
"""Rows for each column, with fewer of which waves of all columns drown in noise."""

PRODUCTS = 20
"""Rows for each column and product of columns, with fewer of which products drown in noise."""

_BATCH = 32_768
_SMALL = 5000


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a model of a table is trained; docs/estimator.md says how the defaults were chosen.

    Args:
        moments: share of the budget, counted in 1/σ², for means and scales of the features and shares of classes.
        ranges: share for the ranges of columns that have no public one; nothing is spent if all have.
        floor: least scale of a feature, in units of its range.
        kind: of the features: the standardised row, and random waves of it, or the row alone; None: `settled`
            chooses.
        width: number of waves, even.
        frequency: of the waves.
        constant: feature that stands for the bias.
        loss_clip: C, of the loss's gradient in the outputs.
        agitation: standard deviation that the noise of one step gives a weight; the learning rate follows from it.
        fastest: largest learning rate: of large tables there is too little noise to choose one by.
        steps: of gradient descent.
        momentum: of gradient descent.
        average: the last share of the steps, whose weights are averaged.
        batch: expected number of rows of a step; None: all.
    """

    moments: float = 0.1
    ranges: float = 0.1
    floor: float = 0.05
    kind: Literal["plain", "waves"] | None = None
    width: int = 256
    frequency: float = 0.6
    constant: float = 0.1
    loss_clip: float = 0.3
    agitation: float = 0.034
    fastest: float = 400.0
    steps: int = 100
    momentum: float = 0.9
    average: float = 0.5
    batch: int | None = None

    def __post_init__(self) -> None:
        shares = (self.moments, self.ranges, self.floor, self.average)
        positive = (self.frequency, self.constant, self.loss_clip, self.agitation, self.fastest)
        if not (all(0 < share < 1 for share in shares) and self.moments + self.ranges < 1):
            raise ValueError(
                "moments, ranges, floor and average must be between 0 and 1, and moments plus ranges below 1"
            )
        if not all(0 < number < 1e6 for number in positive) or not 0 <= self.momentum < 1:
            raise ValueError(
                "frequency, constant, loss_clip, agitation and fastest must be positive, and momentum below 1"
            )
        if self.steps < 1 or self.width < 2 or self.width % 2 or (self.batch is not None and self.batch < 1):
            raise ValueError("steps and batch must be at least 1, and width must be even and at least 2")
        if self.kind not in ("plain", "waves", None):
            raise ValueError(f"kind must be plain or waves; got {self.kind!r}")

    def settled(self, rows: int, columns: int) -> Recipe:
        """Return the recipe with the kind of features for so many rows, and columns that are kept."""
        return self if self.kind else replace(self, kind="plain" if rows < FEW * columns else "waves")


def recipe_for(rows: int, **changes: Any) -> Recipe:
    """Return the recipe for so many rows, with changes by name; looks at no row."""
    moments = 0.15 if rows < _SMALL else 0.05
    batch = _BATCH if rows > LARGE else None
    return replace(Recipe(moments=moments, batch=batch), **changes)
