"""How batches are drawn, and what of it is charged.

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
from dataclasses import dataclass
from typing import Literal, get_args

from ..errors import BudgetError
from .guarantee import NeighbouringRelation
from .releases import Mechanism, RandomAllocation, Release, WithoutReplacement, check_rate

Sampling = Literal["poisson", "fixed_size", "shuffle", "balls_in_bins", "cyclic_poisson", "fixed_order"]


@dataclass(frozen=True, slots=True)
class Drawing:
    """One row of the table above.

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
                f"{self.groups} bands with batches of a share {self.sampling_rate:.4g} of the data: a group would "
                f"have fewer examples than a batch; use at most {math.floor(1 / self.sampling_rate)} bands, or "
                "smaller batches"
            )

    @classmethod
    def of(cls, sampling: Sampling, batch_size: int, size: int, groups: int = 1) -> Drawing:
        """Return how batches of expected size b are drawn of N examples."""
        return cls(sampling, batch_size / size, (batch_size, size), groups)

    def check(self, relation: NeighbouringRelation) -> None:
        """Raise BudgetError if there is no valid analysis under this relation."""
        if self.sampling == "shuffle" and relation is NeighbouringRelation.ADD_REMOVE:
            raise BudgetError(
                "shuffled batches are cut by number: an example more moves others to other batches, and no "
                "analysis under add_remove covers that; use neighbours replace_one, or sampling balls_in_bins or "
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
