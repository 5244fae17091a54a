"""Playing the game of guessing: coins, training, scores, guesses."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import torch
from lipcompile_privacy.accounting import NeighbouringRelation
from lipcompile_privacy.guesses import Claim, Guesses, largest_refuted
from torch import Tensor


class Watch(Protocol):
    """Is told how an audit goes."""

    def __call__(self, state: str, done: int, planned: int) -> None:
        """So many of the planned trainings are over."""


def play(
    train: Callable[[Tensor], Tensor],
    canaries: int,
    runs: int = 1,
    guesses: int | None = None,
    seed: int | None = None,
    watch: Watch | None = None,
) -> Guesses:
    """Play the game of guessing with any training function, your own for example.

    Args:
        train: is given coins [m], boolean, trains once with the canaries whose coin is heads (or with the first
            example of a pair where it is heads, the second one where it is tails), and returns scores [m]:
            positive for heads, negative for tails, the further from 0 the surer. Calls must be independent.
        canaries: coins altogether.
        runs: calls of `train`; each gets its share of the canaries.
        guesses: how many, made where the scores are furthest from 0; None: half of the canaries if each has a run
            of its own, otherwise a quarter.
        seed: of the coins; None: the operating system's entropy.
        watch: is told after every call.

    Raises:
        ValueError: scores of another shape or not finite, or numbers that are no game.
    """
    generator = torch.Generator()
    generator.manual_seed(seed) if seed is not None else generator.seed()
    surest = max(1, canaries // (2 if runs == canaries else 4)) if guesses is None else guesses
    Guesses(canaries, runs, surest, 0)  # refuses what is no game before it begins
    tossed, scored = [], []
    for run, count in enumerate(_shares(canaries, runs)):
        coins = torch.rand(count, generator=generator) < 0.5
        score = torch.as_tensor(train(coins)).detach().double().cpu()
        if score.shape != coins.shape or not bool(score.isfinite().all()):
            raise ValueError(f"training must return {count} finite scores, got {score}")
        tossed.append(coins)
        scored.append(score)
        if watch is not None:
            watch("", run + 1, runs)
    return Guesses(canaries, runs, surest, _right(torch.cat(tossed), torch.cat(scored), surest))


def lower_epsilon(
    game: Guesses,
    delta: float,
    confidence: float = 0.95,
    relation: NeighbouringRelation = NeighbouringRelation.REPLACE_ONE,
) -> float:
    """Return a lower bound of ε at δ of the mechanism that the game was played with, whatever it is.

    It holds with probability at least `confidence` over the coins and the training. `relation` says of what: pairs
    are one example in place of another; where only adding and removing one was promised, that is one of each, so
    (ε, δ) allows (2ε, (1 + e^ε)·δ). For canaries that are there or not, the relation of the promise is itself that
    of the game: leave it as it is.
    """

    def claims(candidate: float) -> Claim:
        if relation is NeighbouringRelation.REPLACE_ONE:
            return Claim([candidate], [delta])
        return Claim([2 * candidate], [min(1.0, (1 + math.exp(candidate)) * delta)])

    return largest_refuted(game, claims, 1.0, confidence)


def _shares(canaries: int, runs: int) -> list[int]:
    """Share canaries out among runs, as evenly as can be, the larger shares first."""
    each, left = divmod(canaries, runs)
    return [each + (run < left) for run in range(runs)]


def _right(coins: Tensor, scores: Tensor, surest: int) -> int:
    """Guess the coins of the scores that are furthest from 0, heads where they are above it; count the right."""
    chosen = scores.abs().argsort(descending=True, stable=True)[:surest]
    return int((coins[chosen] == (scores[chosen] > 0)).sum())
