"""How the examples of each training step are drawn: a scheme for each row of `accounting.releases`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from lipcompile_privacy.accounting import Drawing, NeighbouringRelation, Sampling
from lipcompile_privacy.errors import SamplingError as SamplingError
from torch import Tensor

from ..noise.processor import Bits

OTHER_ITERATION = (
    "another iteration over the loader has begun, and two at the same time would mix the steps of two epochs: "
    "continue with the newer one"
)
_MANY = 8  # a batch that is a larger share than 1/8 of the data has many draws that come twice


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


class Scheme(ABC):
    """A way to draw batches, for a data set.

    Args:
        drawing: what it is called, its rate q and sizes (b, N), and what is charged for it.
        bits: of all random choices; of a cipher under a secret key, or the run is not private.

    Attributes:
        drawn: how many steps were drawn.
    """

    def __init__(self, drawing: Drawing, bits: Bits) -> None:
        if drawing.sizes is None:
            raise SamplingError("sampling needs a data set of known size")
        self._drawing, self._sizes, self._bits = drawing, drawing.sizes, bits
        self.drawn = 0
        self._iterations = 0

    @property
    def drawing(self) -> Drawing:
        """How batches are drawn; what is charged for them rests on it, so it does not change."""
        return self._drawing

    @property
    def batch_size(self) -> int:
        """b, the expected number of examples of a step."""
        return self._sizes[0]

    @property
    def size(self) -> int:
        """N."""
        return self._sizes[1]

    @property
    def steps_per_epoch(self) -> int:
        """How many steps an epoch has."""
        return self.drawing.steps_per_epoch

    def epoch(self) -> Iterator[Drawn]:
        """Draw the steps of one epoch, `steps_per_epoch` in number; a batch may be empty.

        Raises:
            SamplingError: another epoch was begun meanwhile.
        """
        self._iterations += 1
        current = self._iterations
        for _ in range(self.steps_per_epoch):
            if self._iterations != current:
                raise SamplingError(OTHER_ITERATION)
            step = self.drawn
            self.drawn += 1
            yield Drawn(
                self.batch(step), step, step // self.drawing.round_steps if self.drawing.round_steps else 0
            )

    @abstractmethod
    def batch(self, step: int) -> Tensor:
        """Return the indices of the examples of a step, int64 [n]."""

    def places(self, examples: int, count: int) -> Tensor:
        """Return different places for so many examples among `count`, at random, int64 [examples]."""
        return self._uniform(count).argsort()[:examples]

    def _uniform(self, count: int) -> Tensor:
        """Return uniform multiples of 2^-53 below 1, float64 [count]."""
        words = np.empty(count + count % 2, np.uint64)  # a generator gives an even number of words
        self._bits.fill_(words)
        return torch.from_numpy((words[:count] >> np.uint64(11)) * 2.0**-53)

    def _order(self) -> Tensor:
        """Return all indices in an order that the data did not choose, int64 [N]."""
        return self.places(self.size, self.size)

    def _bins(self, count: int) -> Tensor:
        """Return a bin for each example, int64 [N], independently and uniformly."""
        return (self._uniform(self.size) * count).long().clamp_(max=count - 1)


class Poisson(Scheme):
    """Each example enters each step with probability q = b/N, independently, up to the 53 bits of a uniform."""

    def batch(self, step: int) -> Tensor:  # noqa: ARG002  # every step alike
        """Draw afresh; a batch may be empty."""
        return (self._uniform(self.size) < self.drawing.charged_rate).nonzero().flatten()


class FixedSize(Scheme):
    """Exactly b examples at each step, without replacement, afresh at every step.

    Formal guarantees: every set of b examples is equally likely, up to the 53 bits of a uniform.
    """

    def batch(self, step: int) -> Tensor:  # noqa: ARG002  # every step alike
        """Draw afresh: the first b different ones among independent draws, or the b smallest of N uniforms where
        that would take many.
        """
        if _MANY * self.batch_size > self.size:
            return self._uniform(self.size).topk(self.batch_size, largest=False).indices
        drawn = torch.empty(0, dtype=torch.int64)
        while True:
            more = (self._uniform(self.batch_size + self.batch_size // 4 + 8) * self.size).long()
            drawn = torch.cat((drawn, more.clamp_(max=self.size - 1)))
            first = np.sort(np.unique(drawn.numpy(), return_index=True)[1])
            if len(first) >= self.batch_size:
                return drawn[torch.from_numpy(first[: self.batch_size])]


class _Epochs(Scheme):
    """Every example takes part exactly once in an epoch; an epoch that is broken off is charged whole."""

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

    def batches(self) -> list[Tensor]:
        """Cut a random order."""
        return list(self._order().tensor_split(self.steps_per_epoch))


class BallsInBins(_Epochs):
    """Each example enters one step of the epoch, chosen uniformly and independently of all others."""

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
    """

    def __init__(self, drawing: Drawing, bits: Bits) -> None:
        super().__init__(drawing, bits)
        self._group = self._bins(drawing.groups)

    def batch(self, step: int) -> Tensor:
        """Draw from the group whose turn it is."""
        entered = (self._uniform(self.size) < self.drawing.charged_rate) & (
            self._group == step % self.drawing.groups
        )
        return entered.nonzero().flatten()


class FixedOrder(Scheme):
    """Each example takes part in the same step of every epoch: `steps_per_epoch` steps lie between.

    The sampling that correlated noise under minimum separation needs. Examples choose their steps independently
    under add/remove; under replace-one the steps are of equal sizes, up to one. The run is one Gaussian mechanism.
    """

    def __init__(self, drawing: Drawing, bits: Bits, balanced: bool) -> None:
        super().__init__(drawing, bits)
        steps = self.steps_per_epoch
        self._bin = self._order() % steps if balanced else self._bins(steps)

    def batch(self, step: int) -> Tensor:
        """Return the examples of that step of the epoch."""
        return (self._bin == step % self.steps_per_epoch).nonzero().flatten()


_SCHEMES: dict[Sampling, type[Scheme]] = {
    "poisson": Poisson,
    "fixed_size": FixedSize,
    "shuffle": Shuffle,
    "balls_in_bins": BallsInBins,
    "cyclic_poisson": CyclicPoisson,
}


def scheme_for(drawing: Drawing, relation: NeighbouringRelation, bits: Bits) -> Scheme:
    """Return the scheme that draws so.

    Args:
        drawing: with sizes.
        relation: the neighbouring relation that its releases are to be accounted under.
        bits: of all random choices.

    Raises:
        BudgetError: there is no valid analysis under this relation.
    """
    drawing.check(relation)
    if drawing.sampling == "fixed_order":
        return FixedOrder(drawing, bits, balanced=relation is NeighbouringRelation.REPLACE_ONE)
    return _SCHEMES[drawing.sampling](drawing, bits)
