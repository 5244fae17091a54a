"""Strategies: lower-triangular Toeplitz matrices C whose inverse can be applied step by step in little memory."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from operator import mul
from typing import TYPE_CHECKING, Any, Literal

from ..errors import FactorisationError
from .participation import (
    Cyclic,
    MinSeparation,
    Participation,
    built,
    check_coefficients,
    check_positive,
    column_norm,
    participation_from,
    separated_sensitivity,
)

if TYPE_CHECKING:
    from lipcompile_torch.noise.streams import Stream

Objective = Literal["mean", "max"]
"""Of the squared errors of the n prefix sums."""


class Strategy(ABC):
    """C, for `steps` steps and one pattern of participation.

    Formal guarantees: what `stream` returns is C'⁻¹Z for a C' = C / `sensitivity` whose true sensitivity under
    `participation` is at most 1. So adding s·(C'⁻¹Z)_t to the gradient of step t, for per-example gradients of
    norm at most K and s = σ·K, makes `round_steps` steps one Gaussian mechanism of noise multiplier σ, sampled if
    the participation is. s and K may depend on earlier releases, if their ratio does not (Denisov et al. 2022,
    "Improved differential privacy for SGD via optimal private linear operators on adaptive streams", Theorem 2.1).
    """

    steps: int
    participation: Participation

    @abstractmethod
    def column(self) -> list[float]:
        """Return column 0 of C, up to its last entry that may differ from zero; at most `steps` entries."""

    @abstractmethod
    def noising_column(self) -> list[float]:
        """Return column 0 of C⁻¹, `steps` entries, rounded to nearest in each operation."""

    @abstractmethod
    def stream(self) -> Stream:
        """Return the stream of C'⁻¹Z, at its beginning; imports torch."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Return numbers, lists and strings that JSON and `strategy_from` understand."""

    @cached_property
    @abstractmethod
    def sensitivity(self) -> float:
        """At least the sensitivity of C under `participation`; see `participation.py` for the rounding."""

    @property
    def round_steps(self) -> int:
        """How many steps one mechanism covers."""
        return self.participation.round_steps(self.steps)

    def squared_error(self, objective: Objective = "mean") -> float:
        """Return the mean or the largest variance of the n prefix sums of C'⁻¹Z, at unit variance of Z.

        That is sensitivity²·‖AC⁻¹‖²_F/n, or sensitivity² times the largest squared norm of a row of AC⁻¹, which
        is that of the last. Independent noise has (n + 1)/2 and n, times its own squared sensitivity.
        """
        squares = [entry * entry for entry in accumulate(self.noising_column())]
        if objective == "mean":
            squares = [square * (self.steps - index) / self.steps for index, square in enumerate(squares)]
        elif objective != "max":
            raise FactorisationError(f"unknown objective {objective!r}: use 'mean' or 'max'")
        return self.sensitivity**2 * math.fsum(squares)


@dataclass(frozen=True)
class BandedToeplitz(Strategy):
    """C with c_0, c_1, …, c_{bands-1} below and on the diagonal: C[i, j] = c_{i-j}.

    Its stream keeps bands - 1 numbers for each entry of a parameter.

    Args:
        coefficients: c; positive at first, non-negative, non-increasing.
        steps: n >= bands.
        participation: `Cyclic` with a period of at least `bands`, or `MinSeparation`.

    Raises:
        FactorisationError: a condition that does not hold.
    """

    coefficients: tuple[float, ...]
    steps: int
    participation: Participation = field(default_factory=MinSeparation)

    def __post_init__(self) -> None:
        object.__setattr__(self, "coefficients", _floats("coefficients", self.coefficients))
        check_positive("steps", self.steps)
        check_coefficients(self.coefficients)
        if self.bands > self.steps:
            raise FactorisationError(f"{self.bands} bands for {self.steps} steps: use at most {self.steps}")
        if isinstance(self.participation, Cyclic) and self.participation.period < self.bands:
            raise FactorisationError(
                f"{self.bands} bands, but one example may take part again after {self.participation.period} "
                f"steps, in columns of C that overlap: use a period of at least {self.bands}, or fewer bands"
            )

    @property
    def bands(self) -> int:
        """How many diagonals may differ from zero."""
        return len(self.coefficients)

    @cached_property
    def sensitivity(self) -> float:
        """See `Strategy.sensitivity`."""
        if isinstance(self.participation, Cyclic):
            return column_norm(self.coefficients)
        return separated_sensitivity(self.coefficients, self.steps, self.participation)

    def column(self) -> list[float]:
        """Return c."""
        return list(self.coefficients)

    def noising_column(self) -> list[float]:
        """Return 1/c as a power series."""
        first, *rest = self.coefficients
        recent: deque[float] = deque(maxlen=len(rest))  # the latest first
        inverse = []
        for index in range(self.steps):
            value = ((index == 0) - math.fsum(map(mul, rest, recent))) / first
            recent.appendleft(value)
            inverse.append(value)
        return inverse

    def stream(self) -> Stream:
        """Return a stream with a ring of bands - 1 outputs for each parameter."""
        from lipcompile_torch.noise.streams import BandedStream

        return BandedStream(self.coefficients, self.sensitivity, self.steps)

    def to_dict(self) -> dict[str, Any]:
        """See `Strategy.to_dict`."""
        return {
            "kind": "banded",
            "coefficients": list(self.coefficients),
            "steps": self.steps,
            "participation": self.participation.to_dict(),
        }


@dataclass(frozen=True)
class Blt(Strategy):
    """A buffered linear Toeplitz matrix: c_0 = 1 and c_i = Σ_m scales[m]·decays[m]^(i-1).

    Dvijotham et al. 2024, "Efficient and near-optimal noise generation for streaming differential privacy";
    McMahan et al. 2024, "A hassle-free algorithm for private learning in practice: don't use tree aggregation, use
    BLTs".
    Its stream keeps one number for each buffer and entry of a parameter.

    Args:
        decays: θ in [0, 1].
        scales: ω >= 0, as many, of a sum below 1; so that c is non-negative and does not increase.
        steps: n.
        participation: `MinSeparation`; C has no bands.

    Raises:
        FactorisationError: a condition that does not hold.
    """

    decays: tuple[float, ...]
    scales: tuple[float, ...]
    steps: int
    participation: MinSeparation = field(default_factory=MinSeparation)

    def __post_init__(self) -> None:
        object.__setattr__(self, "decays", _floats("decays", self.decays))
        object.__setattr__(self, "scales", _floats("scales", self.scales))
        check_positive("steps", self.steps)
        if not isinstance(self.participation, MinSeparation):
            raise FactorisationError(
                "a BLT has no bands, so its columns overlap under cyclic sampling: use BandedToeplitz, "
                "or a fixed order of the data and MinSeparation"
            )
        if len(self.decays) != len(self.scales):
            raise FactorisationError(
                f"{len(self.decays)} decays, {len(self.scales)} scales: each buffer needs one decay and one scale"
            )
        if not all(0 <= decay <= 1 for decay in self.decays) or not all(scale >= 0 for scale in self.scales):
            raise FactorisationError(
                f"decays {self.decays} must lie in [0, 1], and scales {self.scales} must be >= 0"
            )
        if math.fsum(self.scales) > 1 - 2**-50:
            raise FactorisationError(
                f"the scales {self.scales} add up to 1 or more: the sensitivity is proved only for "
                "non-increasing coefficients (Kalinin & Lampert 2024, Theorem 2)"
            )

    @cached_property
    def sensitivity(self) -> float:
        """See `Strategy.sensitivity`."""
        operations = self.steps + 2 * len(self.decays)  # of each coefficient
        return separated_sensitivity(self.column(), self.steps, self.participation, operations)

    def column(self) -> list[float]:
        """Return c; each by at most `steps` multiplications and `buffers` additions of non-negative numbers."""
        column, powers = [1.0], list(self.scales)
        for _ in range(self.steps - 1):
            column.append(sum(powers))
            powers = list(map(mul, powers, self.decays))
        return column

    def noising_column(self) -> list[float]:
        """Return 1/c as a power series: McMahan et al. 2024, Algorithm 3, on a unit impulse."""
        buffers, inverse = [0.0] * len(self.decays), []
        for index in range(self.steps):
            value = (index == 0) - math.fsum(map(mul, self.scales, buffers))
            buffers = [decay * buffer + value for decay, buffer in zip(self.decays, buffers, strict=True)]
            inverse.append(value)
        return inverse

    def stream(self) -> Stream:
        """Return a stream with one buffer for each decay and parameter."""
        from lipcompile_torch.noise.streams import BufferedStream

        return BufferedStream(self.decays, self.scales, self.sensitivity, self.steps)

    def to_dict(self) -> dict[str, Any]:
        """See `Strategy.to_dict`."""
        return {
            "kind": "blt",
            "decays": list(self.decays),
            "scales": list(self.scales),
            "steps": self.steps,
            "participation": self.participation.to_dict(),
        }


def strategy_from(data: Any) -> Strategy:
    """Return the strategy that `to_dict` described. Its sensitivity is computed anew, and never taken from data.

    Raises:
        FactorisationError: data that describes no strategy, or one that no theorem covers.
    """
    if isinstance(data, Mapping) and "participation" in data:
        data = {**data, "participation": participation_from(data["participation"])}
    strategy: Strategy = built(data, {"banded": BandedToeplitz, "blt": Blt}, "strategy")
    return strategy


def _floats(name: str, values: Any) -> tuple[float, ...]:
    if not isinstance(values, Sequence) or not all(type(value) in (int, float) for value in values):
        raise FactorisationError(f"{name} must be numbers, not {values!r}")
    return tuple(map(float, values))
