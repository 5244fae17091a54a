"""How the examples of each training step are drawn, and what release that is to the accounting.

====================  ==================================================  ====================================
scheme                batches                                             one charge
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
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from ..accounting import (
    BudgetError,
    Mechanism,
    NeighbouringRelation,
    RandomAllocation,
    Release,
    WithoutReplacement,
)

Sampling = Literal["poisson", "fixed_size", "shuffle", "balls_in_bins", "cyclic_poisson", "fixed_order"]


class SamplingError(ValueError):
    """A loader that cannot be sampled as the accounting assumes, or was not used as it must be."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """The examples of one step.

    Args:
        indices: which examples, int64 [n].
        step: its number in the run, from 0. Loaders draw ahead, so what is drawn may never be used: steps are
            known by their numbers, never by counting those that were taken.
        round: the number of the charge that covers it.
    """

    indices: Tensor
    step: int
    round: int


def steps_of_epoch(size: int, batch_size: int) -> int:
    """Return how many steps an epoch has, of N examples in batches of b: round(N/b), and at least 1."""
    return max(1, round(size / batch_size))


class Scheme(ABC):
    """One row of the table above, for a data set.

    Args:
        size: N, number of examples; public.
        batch_size: b, the expected number of examples of a step, and what gradients are divided by.
        generator: of all random choices; fresh from the operating system's entropy, or the run is not private.

    Attributes:
        round_steps: training steps that a charge covers; None: all of the run.
        steps_per_epoch: round(N/b), and at least 1.
        drawn: how many steps were drawn.
    """

    round_steps: int | None = 1

    def __init__(self, size: int, batch_size: int, generator: torch.Generator) -> None:
        self.size, self.batch_size, self.generator = size, batch_size, generator
        self.steps_per_epoch = steps_of_epoch(size, batch_size)
        self.drawn = 0
        self._iterations = 0

    def charges(self, steps: int) -> int:
        """Return how many charges that many steps take, in whole epochs and without interruption."""
        if self.round_steps is None:
            return min(steps, 1)
        return math.ceil(steps / self.round_steps)

    @abstractmethod
    def release(self, noise_multiplier: float) -> Release:
        """Return what is charged."""

    def epoch(self) -> Iterator[Drawn]:
        """Draw the steps of one epoch, `steps_per_epoch` in number; a batch may be empty.

        Raises:
            SamplingError: another epoch was begun meanwhile.
        """
        self._iterations += 1
        current = self._iterations
        for _ in range(self.steps_per_epoch):
            if self._iterations != current:
                raise SamplingError(
                    "another iteration over the loader has begun: two at a time would mix the steps of two "
                    "epochs; go on with the newer one"
                )
            step = self.drawn
            self.drawn += 1
            yield Drawn(self.batch(step), step, step // self.round_steps if self.round_steps else 0)

    @abstractmethod
    def batch(self, step: int) -> Tensor:
        """Return the indices of the examples of a step, int64 [n]."""

    def _uniform(self, count: int) -> Tensor:
        return torch.rand(count, dtype=torch.float64, generator=self.generator)

    def _bins(self, count: int) -> Tensor:
        """Return a bin for each example, int64 [N], independently and uniformly."""
        return (self._uniform(self.size) * count).long().clamp_(max=count - 1)


class Poisson(Scheme):
    """Each example enters each step with probability q = b/N, independently, up to the 53 bits of a uniform."""

    @property
    def rate(self) -> float:
        """Return q."""
        return self.batch_size / self.size

    def release(self, noise_multiplier: float) -> Release:
        """Return the Poisson-sampled Gaussian mechanism of one step."""
        return Mechanism(self.rate, noise_multiplier)

    def batch(self, step: int) -> Tensor:  # noqa: ARG002  # every step alike
        """Draw afresh; a batch may be empty."""
        return (self._uniform(self.size) < self.rate).nonzero().flatten()


class FixedSize(Scheme):
    """Exactly b examples at each step, without replacement, afresh at every step."""

    def release(self, noise_multiplier: float) -> Release:
        """Return the Gaussian mechanism of one step on a sample without replacement."""
        return WithoutReplacement(self.batch_size, self.size, noise_multiplier)

    def batch(self, step: int) -> Tensor:  # noqa: ARG002  # every step alike
        """Draw afresh: the smallest of 53-bit uniforms, since `randperm` is biased by up to N/2^32 of q."""
        return self._uniform(self.size).topk(self.batch_size, largest=False).indices


class _Epochs(Scheme):
    """Every example takes part exactly once in an epoch; an epoch that is broken off is charged whole."""

    def __init__(self, size: int, batch_size: int, generator: torch.Generator) -> None:
        super().__init__(size, batch_size, generator)
        self.round_steps = self.steps_per_epoch

    def epoch(self) -> Iterator[Drawn]:
        """Assign all examples to the steps of the epoch, afresh."""
        self.drawn = -(-self.drawn // self.steps_per_epoch) * self.steps_per_epoch
        self._batches = self.batches()
        yield from super().epoch()

    def batch(self, step: int) -> Tensor:
        """Return a part of the partition."""
        return self._batches[step % self.steps_per_epoch]

    @abstractmethod
    def batches(self) -> list[Tensor]:
        """Return a partition of all indices into `steps_per_epoch` batches."""


class Shuffle(_Epochs):
    """All examples in a random order, cut into batches of sizes that differ by one at most.

    An epoch is one Gaussian mechanism: given the order, an example that is replaced changes one of its steps.
        Nothing is claimed for the randomness of the order, whose amplification is not proved for the accountants
        at hand.
    """

    def release(self, noise_multiplier: float) -> Release:
        """Return the plain Gaussian mechanism of one epoch."""
        return Mechanism(1.0, noise_multiplier)

    def batches(self) -> list[Tensor]:
        """Cut a random order."""
        return list(torch.randperm(self.size, generator=self.generator).tensor_split(self.steps_per_epoch))


class BallsInBins(_Epochs):
    """Each example enters one step of the epoch, chosen uniformly and independently of all others."""

    def release(self, noise_multiplier: float) -> Release:
        """Return the random allocation of one epoch."""
        return RandomAllocation(self.steps_per_epoch, noise_multiplier)

    def batches(self) -> list[Tensor]:
        """Throw all examples."""
        bins = self._bins(self.steps_per_epoch)
        return [(bins == number).nonzero().flatten() for number in range(self.steps_per_epoch)]


class CyclicPoisson(Scheme):
    """Groups of examples take turns; at its turn each example of a group enters with probability q·groups.

    An example takes part in steps whose numbers differ by multiples of `groups`: what banded noise of at most as
    many bands needs (Choquette-Choo et al. 2023, "(Amplified) Banded Matrix Factorization", Theorem 4: the run
    is then as private as ⌈T/groups⌉ steps of Poisson sampling at rate q·groups). Examples choose their groups
    independently, once for the run.

    Raises:
        BudgetError: q·groups exceeds 1.
    """

    def __init__(self, size: int, batch_size: int, generator: torch.Generator, groups: int) -> None:
        super().__init__(size, batch_size, generator)
        self.rate = batch_size * groups / size
        if self.rate > 1:
            raise BudgetError(
                f"{groups} bands with batches of {batch_size} of {size} examples: a group would have fewer "
                f"examples than a batch; use at most {size // batch_size} bands, or smaller batches"
            )
        self.round_steps = self.groups = groups
        self._group = self._bins(groups)

    def release(self, noise_multiplier: float) -> Release:
        """Return the Poisson-sampled Gaussian mechanism of one turn of all groups."""
        return Mechanism(self.rate, noise_multiplier)

    def batch(self, step: int) -> Tensor:
        """Draw from the group whose turn it is."""
        entered = (self._uniform(self.size) < self.rate) & (self._group == step % self.groups)
        return entered.nonzero().flatten()


class FixedOrder(Scheme):
    """Each example takes part in the same step of every epoch: `steps_per_epoch` steps lie between.

    What correlated noise under minimum separation needs. Examples choose their steps independently under
    add/remove; under replace-one the steps are of equal sizes, up to one. The run is one Gaussian mechanism.
    """

    round_steps = None

    def __init__(self, size: int, batch_size: int, generator: torch.Generator, balanced: bool) -> None:
        super().__init__(size, batch_size, generator)
        shuffled = torch.randperm(size, generator=generator)
        self._bin = torch.empty(size, dtype=torch.int64)
        self._bin[shuffled] = torch.arange(size) % self.steps_per_epoch
        if not balanced:
            self._bin = self._bins(self.steps_per_epoch)

    def release(self, noise_multiplier: float) -> Release:
        """Return the plain Gaussian mechanism of the run."""
        return Mechanism(1.0, noise_multiplier)

    def batch(self, step: int) -> Tensor:
        """Return the examples of that step of the epoch."""
        return (self._bin == step % self.steps_per_epoch).nonzero().flatten()


SchemeMaker = Callable[[int, int, torch.Generator], Scheme]


def scheme_maker(sampling: Sampling, relation: NeighbouringRelation, groups: int = 1) -> SchemeMaker:
    """Return what makes a scheme for (N, b, generator).

    Args:
        sampling: its name.
        relation: the neighbouring relation that its releases are to be accounted under.
        groups: of `cyclic_poisson`.

    Raises:
        BudgetError: an unknown name, or a scheme without a valid analysis under this relation.
    """
    if sampling == "shuffle" and relation is NeighbouringRelation.ADD_REMOVE:
        raise BudgetError(
            "shuffled batches are cut by number: an example more moves others to other batches, and no analysis "
            "under add_remove covers that; use neighbours='replace_one', or sampling='balls_in_bins' or 'poisson'"
        )
    if sampling == "cyclic_poisson":
        return lambda size, batch, generator: CyclicPoisson(size, batch, generator, groups)
    if sampling == "fixed_order":
        balanced = relation is NeighbouringRelation.REPLACE_ONE
        return lambda size, batch, generator: FixedOrder(size, batch, generator, balanced)
    makers: dict[str, SchemeMaker] = {
        "poisson": Poisson,
        "fixed_size": FixedSize,
        "shuffle": Shuffle,
        "balls_in_bins": BallsInBins,
    }
    if sampling not in makers:
        raise BudgetError(f"unknown sampling {sampling!r}: use one of {', '.join(get_args(Sampling))}")
    return makers[sampling]
