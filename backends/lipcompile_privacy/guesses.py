"""The evidence of guesses about canaries against a claim of privacy.

The game: each of m canaries is one of two examples, by a fair coin. An adversary sees what training releases, and
guesses the coins of r canaries, the ones it is surest of. Privacy makes right guesses rare, and so many of them
refute it. Here is by how much, for any mechanism whatever that keeps the claim; `docs/audit.md` has the proofs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

_ROUNDING = 1e-9  # of sums of a few thousand terms that are at most 1
_BISECTIONS = 30
_DOUBLINGS, _HALVINGS = 10, 12
_PIECES = 400


@dataclass(frozen=True)
class Claim:
    """That a mechanism is (ε, δ)-differentially private for all of these pairs, whichever of the two examples a
    canary is.

    Raises:
        ValueError: no pair, a negative ε, or a δ outside [0, 1].
    """

    epsilons: Sequence[float]
    deltas: Sequence[float]

    def __post_init__(self) -> None:
        """Refuse what is no claim."""
        if not self.epsilons or len(self.epsilons) != len(self.deltas):
            raise ValueError("a claim needs as many epsilons as deltas, and at least one")
        if min(self.epsilons) < 0 or not 0 <= min(self.deltas) <= max(self.deltas) <= 1:
            raise ValueError("a claim needs epsilons of at least 0, and deltas between 0 and 1")

    def least_wrong(self, right: float) -> float:
        """Return the least probability of an event if a coin is tails, given that of heads: the inverse of 1 - f
        for the trade-off function f (Dong, Roth and Su 2022, equation 4).
        """
        growth, delta = self._arrays
        return float(max(0.0, ((right - delta) / growth).max(), (1 - delta - (1 - right) * growth).max()))

    def best_accuracy(self, guessed: float) -> float:
        """Return the largest share of right guesses about a coin, if it is guessed with this probability > 0."""
        growth, delta = self._arrays
        return float(min(1.0, ((growth + delta / guessed) / (1 + growth)).min()))

    @cached_property
    def _arrays(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return np.exp(np.minimum(self.epsilons, 700.0)), np.asarray(self.deltas, dtype=np.float64)


@dataclass(frozen=True)
class Guesses:
    """How a game ended. The number of guesses was fixed before the coins were tossed.

    Args:
        canaries: m, coins altogether.
        runs: independent trainings that they are shared out among, as evenly as can be.
        guessed: r, coins that were guessed.
        right: guesses that were right.

    Raises:
        ValueError: numbers that are no such game.
    """

    canaries: int
    runs: int
    guessed: int
    right: int

    def __post_init__(self) -> None:
        """Refuse what is no game."""
        if not 0 <= self.right <= self.guessed <= self.canaries or not 1 <= self.runs <= self.canaries:
            raise ValueError(
                f"{self.right} of {self.guessed} guesses about {self.canaries} canaries in {self.runs} "
                "runs: the counts must satisfy 0 <= right <= guessed <= canaries and 1 <= runs <= "
                "canaries"
            )

    @property
    def alone(self) -> bool:
        """Whether every canary has a run of its own."""
        return self.runs == self.canaries


def p_value(game: Guesses, claim: Claim) -> float:
    """Return a bound of the probability of as many right guesses, over coins and training, if the claim holds.

    For canaries that are alone it is that of the mechanism that betrays most of all that keep the claim. For
    canaries that share a run it is the smallest of two bounds of the same probability: that of Mahloujifar, Melis
    and Chaudhuri (2024), and for every pair (ε, δ) one in the manner of Steinke, Nasr and Jagielski (2023, Theorem
    5.2). The formula of their Appendix D is not used: there are mechanisms beyond it, see `docs/audit.md`.
    """
    if game.right == 0:
        return 1.0
    if game.alone:
        return _alone(game, claim)
    pairs = zip(claim.epsilons, claim.deltas, strict=True)
    return min(_together(game, claim), *(_nearly_binomial(game, epsilon, delta) for epsilon, delta in pairs))


def refuted(game: Guesses, claim: Claim, confidence: float) -> bool:
    """Whether so many right guesses have a probability of at most 1 - confidence if the claim holds."""
    return p_value(game, claim) <= 1 - confidence


def largest_refuted(game: Guesses, claims: Callable[[float], Claim], start: float, confidence: float) -> float:
    """Return the largest x whose claim is refuted, up to a search that ends below it; 0 if none is.

    The claims must become weaker as x grows. The search goes up from `start` > 0 as far as 2^10 times as high.
    """
    low, high = 0.0, start
    while high < 2**_DOUBLINGS * start and refuted(game, claims(high), confidence):
        low, high = high, 2 * high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(game, claims(middle), confidence) else (low, middle)
    return low


def _alone(game: Guesses, claim: Claim) -> float:
    """Return the probability for independent canaries, of which the r surest are guessed.

    The sureness of a canary, as its quantile u from the top, is uniform. Given that the first one left out has u,
    which is Beta(r + 1, m - r), the guesses are independent and right with the accuracy of guessing a share u.
    """
    from scipy.stats import beta, binom

    surest, m = game.guessed, game.canaries
    if surest == m:
        return float(binom.sf(game.right - 1, surest, claim.best_accuracy(1.0)))
    cuts = beta.ppf(np.linspace(0, 1, _PIECES + 1), surest + 1, m - surest)
    # The accuracy falls with u: that at the left end of each piece is too large. Left of the first it may be 1.
    accuracies = np.array([claim.best_accuracy(float(cut)) for cut in cuts[1:-1]])
    return float((1 + binom.sf(game.right - 1, surest, accuracies).sum()) / _PIECES)


def _together(game: Guesses, claim: Claim) -> float:
    """Return the bound of Mahloujifar, Melis and Chaudhuri (2024), for a claim of any trade-off function."""
    low, high = 0.0, 1.0
    if _possible(1.0, game, claim):
        return 1.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if _possible(middle, game, claim) else (low, middle)
    return high


def _possible(tail: float, game: Guesses, claim: Claim) -> bool:
    """Whether the claim may allow that the guesses are right as often with probability `tail`.

    With p_j the probability of j right guesses, `right` is Σ_{j>k} j·p_j / m, and `wrong` Σ_{j≥k} (r-j)·p_j / m.
    The claim bounds `wrong` from below by `right` for every k, and all in all they must not exceed r/m.
    """
    r, c, m = game.guessed, game.right, game.canaries
    right, wrong = c * tail / m, (r - c) * tail / m
    for k in range(c - 1, -1, -1):
        least = claim.least_wrong(right)
        right += k / (r - k) * (least - wrong)
        wrong = least
        if right + wrong > r / m + _ROUNDING:
            return False
    return True


def _nearly_binomial(game: Guesses, epsilon: float, delta: float) -> float:
    """Return the probability under pure ε, and what δ adds for each canary, for one pair (ε, δ)."""
    from scipy.stats import binom

    accuracy = 1 / (1 + math.exp(-epsilon))
    tail = float(binom.sf(game.right - 1, game.guessed, accuracy))
    return min(1.0, tail + game.canaries * delta * (1 - accuracy))
