"""Noise against signal, as reports show it: what a backend measured, and rows of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from lipcompile.analysis.useful import LARGEST_EXCESS


class Signal(Protocol):
    """Norms in a parameter, or in all: the bound, a typical and the mean gradient of examples, the noise."""

    @property
    def bound(self) -> float:
        """K."""

    @property
    def typical(self) -> float:
        """Root mean square of the norms of gradients."""

    @property
    def mean(self) -> float:
        """Norm of the mean of gradients."""

    @property
    def noise(self) -> float:
        """Expected norm of the noise on the mean of a batch."""


class Signals(Protocol):
    """What was measured, by parameter and for the whole gradient."""

    @property
    def parameters(self) -> Mapping[str, Signal]:
        """By name."""

    @property
    def total(self) -> Signal:
        """Of the whole gradient."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Gradients at the initial weights, and the noise multiplier and the batch that their noise is of."""

    signals: Signals
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
    found = one / other if other > 0 else math.inf
    return found if math.isfinite(found) else None


def signal_row(name: str, copies: Sequence[Signal]) -> SignalRow:
    """Return the norms over all copies of a parameter together."""
    return SignalRow(
        name,
        math.hypot(*(one.bound for one in copies)),
        math.hypot(*(one.typical for one in copies)),
        math.hypot(*(one.mean for one in copies)),
        math.hypot(*(one.noise for one in copies)),
        len(copies),
    )
