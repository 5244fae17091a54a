"""The guarantee (ε at δ, under a neighbouring relation), the charges for it, and the sampling of batches.

One charge is one use of a release; σ is std/K in all of them.

====================  ==================================================  ====================================
`sampling`            batches                                             one charge
====================  ==================================================  ====================================
`poisson`             each example with probability q, at every step      a step: Poisson-sampled Gaussian
`fixed_size`          b examples without replacement, at every step       a step: without replacement
`shuffle`             all in a random order, cut, in every epoch          an epoch: plain Gaussian
`balls_in_bins`       each example in one step of the epoch, uniformly    an epoch: random allocation
`cyclic_poisson`      Poisson of one group after the other, `groups`      `groups` steps: Poisson, q·groups
`fixed_order`         each example in the same step of every epoch        the whole run: plain Gaussian
====================  ==================================================  ====================================

A release that covers several steps is charged before its first one: to see fewer of them is post-processing.

Under add/remove the data sets differ in their number of examples, so where an example goes must not depend on how
many others there are: `shuffle`, whose batches are cut by number, is refused there, `balls_in_bins` is its
counterpart.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any, Literal, get_args

from ..errors import BudgetError, check_number

Accountant = Literal["rdp", "pld"]


class NeighbouringRelation(Enum):
    """When two data sets count as neighbours, that is, what one person can change."""

    ADD_REMOVE = "add_remove"
    REPLACE_ONE = "replace_one"

    @property
    def moves(self) -> int:
        """By how many times the per-example bound K one person can move a sum over the data set."""
        return 2 if self is NeighbouringRelation.REPLACE_ONE else 1

    @property
    def theirs(self) -> Any:
        """The relation as dp-accounting names it."""
        from dp_accounting import NeighboringRelation

        replaced = self is NeighbouringRelation.REPLACE_ONE
        return NeighboringRelation.REPLACE_ONE if replaced else NeighboringRelation.ADD_OR_REMOVE_ONE


def check_accountant(accountant: str) -> None:
    """Raise BudgetError if there is no such accountant."""
    if accountant not in get_args(Accountant):
        raise BudgetError(f"unknown accountant {accountant!r}: use 'pld' or 'rdp'")


def check_delta(delta: float) -> None:
    """Raise BudgetError unless 0 < δ < 1, TypeError for what is no number."""
    check_number("delta", delta)
    if not 0 < delta < 1:
        raise BudgetError(
            f"delta = {delta:g} is not strictly between 0 and 1: Gaussian noise cannot give delta = 0; "
            "a usual choice is below 1 / number of examples"
        )


def check_target(target_epsilon: float, target_delta: float) -> None:
    """Raise BudgetError unless ε is a positive number and 0 < δ < 1, TypeError for what is no number."""
    check_number("epsilon", target_epsilon)
    if not 0 < target_epsilon < math.inf:
        raise BudgetError(
            f"epsilon = {target_epsilon:g} is not a positive number: no finite noise gives epsilon <= 0; "
            "usual budgets lie between 0.1 and 10"
        )
    check_delta(target_delta)


class _Described:
    __slots__ = ()

    def fields(self) -> dict[str, Any]:
        """Return what `release_from` makes an equal release of, as a JSON object."""
        kind = next(name for name, release in _KINDS.items() if release is type(self))
        own = {field.name: getattr(self, field.name) for field in fields(_KINDS[kind])}
        return own if kind == "poisson" else {"sampling": kind, **own}


@dataclass(frozen=True, slots=True)
class Mechanism(_Described):
    """One training step: Poisson sampling at rate q, then one Gaussian mechanism with noise multiplier σ.

    However the noise is shared among the parameters, a step is ONE mechanism. With q = 1 it is the plain Gaussian
    mechanism: one release, of whatever every example takes part in with norm at most K.

    Raises:
        BudgetError: q outside (0, 1], or σ negative or not finite.
    """

    sampling_rate: float
    noise_multiplier: float

    def __post_init__(self) -> None:
        check_rate(self.sampling_rate)
        _check_noise(self.noise_multiplier)


@dataclass(frozen=True, slots=True)
class WithoutReplacement(_Described):
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
                f"{self.dataset_size}: the batch size must be between 1 and the number of examples"
            )
        _check_noise(self.noise_multiplier)

    @property
    def sampling_rate(self) -> float:
        """The probability B/N that an example enters a step's batch."""
        return self.batch_size / self.dataset_size


@dataclass(frozen=True, slots=True)
class RandomAllocation(_Described):
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
            raise BudgetError(f"an epoch of {self.steps} steps: an epoch needs at least one step")
        _check_noise(self.noise_multiplier)


@dataclass(frozen=True, slots=True)
class Selection(_Described):
    """The best of a random number of runs, by a score that each run releases itself; nothing else is released.

    One run is, or costs no more than, ONE Gaussian mechanism with noise multiplier σ, in which every example takes
    part; settings are drawn anew for each run, whatever came before. The number of runs is drawn from the
    truncated negative binomial distribution of shape η and mean m (Papernot and Steinke 2022, Theorem 2; η = 0 is
    the logarithmic, η = 1 the geometric one), and never shown.

    Raises:
        BudgetError: η negative, m below 1, or σ negative or not finite.
    """

    noise_multiplier: float
    mean: float
    shape: float = 0.0

    def __post_init__(self) -> None:
        if not (1 <= self.mean < math.inf and 0 <= self.shape < math.inf):
            raise BudgetError(
                f"a mean of {self.mean:g} runs, of shape {self.shape:g}: the mean must be at least 1, "
                "and the shape at least 0"
            )
        _check_noise(self.noise_multiplier)

    @property
    def sampling_rate(self) -> float:
        """1: every example takes part in every run."""
        return 1.0


Release = Mechanism | WithoutReplacement | RandomAllocation | Selection

Run = tuple[Release, int]
"""A release and how often it was used: a number of charges."""


_KINDS: Mapping[str, type[Release]] = {
    "poisson": Mechanism,
    "fixed_size": WithoutReplacement,
    "allocation": RandomAllocation,
    "selection": Selection,
}


def release_from(given: Mapping[str, Any]) -> Release:
    """Return the release that says `fields()` of itself; keys of other meaning may stand beside its own.

    Raises:
        BudgetError: no release says this.
    """
    kind = given.get("sampling", "poisson")
    if kind not in _KINDS:
        raise BudgetError(f"unknown sampling {kind!r}: this version accounts for {', '.join(_KINDS)}")
    try:
        return _KINDS[kind](*(_NUMBERS[field.type](given[field.name]) for field in fields(_KINDS[kind])))
    except (KeyError, TypeError, ValueError) as error:
        raise BudgetError(
            f"invalid description of a release by {kind} sampling, {dict(given)!r}: {error!r}"
        ) from error


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{value!r} is not a whole number")
    return value


_NUMBERS: Mapping[Any, Callable[[Any], Any]] = {"float": float, "int": _whole}


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


Sampling = Literal["poisson", "fixed_size", "shuffle", "balls_in_bins", "cyclic_poisson", "fixed_order"]


@dataclass(frozen=True, slots=True)
class Drawing:
    """How batches are drawn: one row of the table of this module.

    Args:
        sampling: its name.
        sampling_rate: q, the expected batch size over the number of examples.
        sizes: (b, N), where they are known: `fixed_size` needs them.
        groups: of `cyclic_poisson`.

    Raises:
        BudgetError: an unknown name, q outside (0, 1], missing sizes, groups with fewer examples than a batch.
    """

    sampling: Sampling
    sampling_rate: float
    sizes: tuple[int, int] | None = None
    groups: int = 1

    def __post_init__(self) -> None:
        if self.sampling not in get_args(Sampling):
            raise BudgetError(f"unknown sampling {self.sampling!r}: use one of {', '.join(get_args(Sampling))}")
        check_rate(self.sampling_rate)
        if self.sampling == "fixed_size" and self.sizes is None:
            raise BudgetError("fixed_size sampling is analysed by its batch size and dataset size, not by a rate")
        if self.sampling == "cyclic_poisson" and self.charged_rate > 1:
            raise BudgetError(
                f"{self.groups} bands with sampling rate {self.sampling_rate:.4g}: each group "
                "would have fewer examples than a batch; use at most "
                f"{math.floor(1 / self.sampling_rate)} bands, or smaller batches"
            )

    @classmethod
    def of(cls, sampling: Sampling, batch_size: int, size: int, groups: int = 1) -> Drawing:
        """Return how batches of expected size b are drawn of N examples."""
        return cls(sampling, batch_size / size, (batch_size, size), groups)

    def check(self, relation: NeighbouringRelation) -> None:
        """Raise BudgetError if there is no valid analysis under this relation."""
        if self.sampling == "shuffle" and relation is NeighbouringRelation.ADD_REMOVE:
            raise BudgetError(
                "no analysis covers shuffled batches under add_remove, because an added example moves "
                "others to other batches; use neighbours replace_one, or sampling balls_in_bins or "
                "poisson"
            )

    @property
    def steps_per_epoch(self) -> int:
        """How many steps an epoch has: round(N/b), and at least 1."""
        batches = self.sizes[1] / self.sizes[0] if self.sizes else 1 / self.sampling_rate
        return max(1, round(batches))

    @property
    def round_steps(self) -> int | None:
        """How many steps a charge covers; None: all of the run."""
        if self.sampling in ("shuffle", "balls_in_bins"):
            return self.steps_per_epoch
        return {"fixed_order": None, "cyclic_poisson": self.groups}.get(self.sampling, 1)

    @property
    def charged_rate(self) -> float:
        """The rate at which a charge samples, if it is a Poisson-sampled or plain Gaussian mechanism."""
        return 1.0 if self.sampling in ("shuffle", "fixed_order") else self.sampling_rate * self.groups

    def charges(self, steps: int) -> int:
        """Return how many charges that many steps take, in whole epochs and without interruption."""
        return min(steps, 1) if self.round_steps is None else math.ceil(steps / self.round_steps)

    def steps(self, charges: int) -> int:
        """Return how many steps that many charges pay for; of a run that is one charge, 1 stands for all of it."""
        return charges * (self.round_steps or 1)

    def release(self, noise_multiplier: float) -> Release:
        """Return what is charged at this σ."""
        if self.sampling == "balls_in_bins":
            return RandomAllocation(self.steps_per_epoch, noise_multiplier)
        check_rate(self.sampling_rate)
        if self.sampling == "fixed_size" and self.sizes is not None:
            return WithoutReplacement(*self.sizes, noise_multiplier)
        return Mechanism(self.charged_rate, noise_multiplier)
