"""Releases: what is charged. One charge is one use of a release; σ is std/K in all of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import BudgetError


@dataclass(frozen=True, slots=True)
class Mechanism:
    """One training step: Poisson sampling at rate q, then one Gaussian mechanism with noise multiplier σ.

    However the noise is shared among the parameters, a step is ONE mechanism (see `runtime.noise`). With q = 1 it
    is the plain Gaussian mechanism: one release, of whatever every example takes part in with norm at most K.

    Raises:
        BudgetError: q outside (0, 1], or σ negative or not finite.
    """

    sampling_rate: float
    noise_multiplier: float

    def __post_init__(self) -> None:
        check_rate(self.sampling_rate)
        _check_noise(self.noise_multiplier)

    def fields(self) -> dict[str, Any]:
        """Return what `release_from` makes an equal release of, as a JSON object."""
        return {"sampling_rate": self.sampling_rate, "noise_multiplier": self.noise_multiplier}


@dataclass(frozen=True, slots=True)
class WithoutReplacement:
    """One training step: a batch of B of N examples, uniform among all such batches, then a Gaussian mechanism.

    Steps draw their batches independently of each other. N is public; of two data sets that differ in one example
    it is the size of the larger.

    Raises:
        BudgetError: not 1 <= B <= N, or σ negative or not finite.
    """

    batch_size: int
    dataset_size: int
    noise_multiplier: float

    def __post_init__(self) -> None:
        if not 1 <= self.batch_size <= self.dataset_size:
            raise BudgetError(
                f"a batch of {self.batch_size} examples cannot be drawn without replacement from "
                f"{self.dataset_size}: its size is between 1 and the number of examples"
            )
        _check_noise(self.noise_multiplier)

    @property
    def sampling_rate(self) -> float:
        """The probability B/N that an example enters a step's batch."""
        return self.batch_size / self.dataset_size

    def fields(self) -> dict[str, Any]:
        """Return what `release_from` makes an equal release of, as a JSON object."""
        return {
            "sampling": "fixed_size",
            "batch_size": self.batch_size,
            "dataset_size": self.dataset_size,
            "noise_multiplier": self.noise_multiplier,
        }


@dataclass(frozen=True, slots=True)
class RandomAllocation:
    """One epoch of t steps: every example enters exactly one of t batches, each with probability 1/t.

    The choices of different examples, and of different epochs, are independent (balls in bins: the sizes of
    batches vary). Every batch is released by a Gaussian mechanism with noise multiplier σ.

    Raises:
        BudgetError: t < 1, or σ negative or not finite.
    """

    steps: int
    noise_multiplier: float

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise BudgetError(f"an epoch of {self.steps} steps: at least one batch takes the examples")
        _check_noise(self.noise_multiplier)

    def fields(self) -> dict[str, Any]:
        """Return what `release_from` makes an equal release of, as a JSON object."""
        return {"sampling": "allocation", "steps": self.steps, "noise_multiplier": self.noise_multiplier}


Release = Mechanism | WithoutReplacement | RandomAllocation

Run = tuple[Release, int]
"""A release and how often it was used: a number of charges."""


def release_from(fields: Mapping[str, Any]) -> Release:
    """Return the release that says `fields()` of itself; keys of other meaning may stand beside its own.

    Raises:
        BudgetError: no release says this.
    """
    kind = fields.get("sampling", "poisson")
    if kind not in _READ:
        raise BudgetError(f"unknown sampling {kind!r}: this version accounts for {', '.join(_READ)}")
    try:
        return _READ[kind](fields)
    except (KeyError, TypeError, ValueError) as error:
        raise BudgetError(f"no release of {kind} sampling is described by {dict(fields)!r}: {error!r}") from error


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{value!r} is not a whole number")
    return value


_READ: dict[str, Callable[[Mapping[str, Any]], Release]] = {
    "poisson": lambda f: Mechanism(float(f["sampling_rate"]), float(f["noise_multiplier"])),
    "fixed_size": lambda f: WithoutReplacement(
        _whole(f["batch_size"]), _whole(f["dataset_size"]), float(f["noise_multiplier"])
    ),
    "allocation": lambda f: RandomAllocation(_whole(f["steps"]), float(f["noise_multiplier"])),
}


def check_rate(sampling_rate: float) -> None:
    """Raise BudgetError if q is no sampling rate."""
    if not 0 < sampling_rate <= 1:
        raise BudgetError(
            f"sampling rate {sampling_rate} is not in (0, 1]: "
            "it is the expected batch size over the number of examples"
        )


def _check_noise(noise_multiplier: float) -> None:
    if not 0 <= noise_multiplier < math.inf:
        raise BudgetError(f"noise multiplier {noise_multiplier} is not a finite number >= 0")
