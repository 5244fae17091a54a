"""ε of composed releases, by two accountants; and the noise, or the number of charges, that a budget allows.

A release without a theorem in either accountant is rejected.
"""

from __future__ import annotations

import contextlib
import logging
import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

from ..errors import BudgetError
from .allocation import MISSING, available
from .pld import check_resolution, coarse_epsilon, like_poisson, pld_epsilon, resolved_charges
from .rdp import FEW_ORDERS, rdp_epsilon
from .releases import (
    Accountant,
    Mechanism,
    NeighbouringRelation,
    RandomAllocation,
    Release,
    Run,
    Selection,
    check_accountant,
    check_delta,
    check_target,
)

_NO_NOISE = 1e-100  # squares of less vanish
LARGEST_NOISE_MULTIPLIER = 1e6
SMALLEST_NOISE_MULTIPLIER = 0.05
LARGEST_STEP_COUNT = 10**9
_TOLERANCE = 1e-4  # calibration stops this close (relatively) to the best value, on its private side
_MOST_UP, _MOST_DOWN = math.log(1e3), math.log(2)  # in one step of a search


def epsilon(
    runs: Iterable[Run],
    delta: float,
    relation: NeighbouringRelation = NeighbouringRelation.ADD_REMOVE,
    accountant: Accountant = "pld",
) -> float:
    """Return ε such that the composition of `runs` is (ε, δ)-differentially private.

    Formal guarantees: an upper bound of the true ε, by Rényi divergence (Mironov et al. 2019; without replacement
    Wang et al. 2019, Theorem 27) or by a privacy loss distribution rounded pessimistically (Doroshenko et al.
    2022), for adaptively chosen releases of these parameters. The order of runs does not matter. `inf` if some
    step has no noise to speak of, or if δ is below what the accountant resolves.

    Raises:
        BudgetError: δ outside (0, 1), a negative count, or what `check_supported` refuses.
    """
    check_delta(delta)
    merged = merge(runs)
    check_supported(merged, delta, relation, accountant)
    if not merged:
        return 0.0
    if any(release.noise_multiplier < _NO_NOISE for release in merged):
        return math.inf
    return _epsilon(frozenset(merged.items()), delta, relation, accountant)


@lru_cache(maxsize=256)
def _epsilon(runs: frozenset[Run], delta: float, relation: NeighbouringRelation, accountant: Accountant) -> float:
    """Return ε of supported runs: a budget is asked for again and again, for the same ones."""
    with _quiet():
        counts = Counter(dict(runs))
        if accountant == "rdp":
            return rdp_epsilon(counts, delta, relation)
        return pld_epsilon(counts, delta, relation)


def check_supported(
    runs: Mapping[Release, int], delta: float, relation: NeighbouringRelation, accountant: str
) -> None:
    """Refuse, with `BudgetError`, what the accountant has no theorem or no precision for. Computes nothing."""
    check_accountant(accountant)
    for release in runs:
        if reason := _refusal(release, relation, accountant):
            raise BudgetError(reason)
    if accountant == "pld":
        check_resolution(runs, delta, relation)


def _refusal(release: Release, relation: NeighbouringRelation, accountant: str) -> str | None:
    replaced = relation is NeighbouringRelation.REPLACE_ONE
    if isinstance(release, Mechanism) and release.sampling_rate < 1 and replaced and accountant == "rdp":
        return "the rdp accountant has no theorem for Poisson sampling under replace_one: use accountant='pld'"
    if isinstance(release, RandomAllocation) and not replaced and accountant == "pld" and not available():
        return MISSING
    if isinstance(release, Selection) and accountant == "pld":
        return "the pld accountant has no theorem for the best of several runs: use accountant='rdp'"
    return None


def merge(runs: Iterable[Run]) -> Counter[Release]:
    """Add up the counts of equal releases: composition does not depend on the order.

    Raises:
        BudgetError: a negative count.
    """
    merged: Counter[Release] = Counter()
    for release, count in runs:
        if count < 0:
            raise BudgetError(f"a run of {count} steps: the number of steps cannot be negative")
        if count:
            merged[release] += count
    return merged


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep dp-accounting's absl warnings from being printed; everything is restored on leaving."""
    import dp_accounting.rdp  # noqa: F401  (creates absl's logger, which must not be created by us)

    def refuse(_: logging.LogRecord) -> bool:
        return False

    logger = logging.getLogger("absl")
    logger.addFilter(refuse)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # exp overflows in orders that lose
            yield
    finally:
        logger.removeFilter(refuse)


# --- calibration ---


@dataclass(frozen=True, slots=True)
class Budget:
    """(ε, δ) of a whole training under a neighbouring relation, who counts, and what has spent of it already."""

    epsilon: float
    delta: float
    relation: NeighbouringRelation
    accountant: Accountant
    past: Sequence[Run] = ()

    def spent(self, *runs: Run) -> float:
        """Return ε at δ of `past` and these runs; raises BudgetError if there is no analysis."""
        return epsilon([*self.past, *runs], self.delta, self.relation, self.accountant)

    def check_past(self) -> None:
        """Raise BudgetError if `past` has spent more than there is."""
        if (spent := self.spent()) > self.epsilon:
            raise BudgetError(
                f"the steps already taken cost epsilon = {spent:.4g} at delta = {self.delta:g}, more than "
                f"the target {self.epsilon:g}: the budget allows no further step"
            )

    def roughly(self, run: Run) -> float:
        """Return about the ε of a run, quickly, to start slow searches from; raises as `epsilon` does."""
        if reason := _refusal(run[0], self.relation, self.accountant):
            raise BudgetError(reason)
        alike, times = like_poisson(run[0], self.relation)
        if alike.noise_multiplier < _NO_NOISE:
            return math.inf
        with _quiet():
            if self.accountant == "rdp":
                return rdp_epsilon({run[0]: run[1]}, self.delta, self.relation, FEW_ORDERS)
            return coarse_epsilon((alike, times * run[1]), self.delta, self.epsilon)

    def most(self, run: Callable[[int], Run], cap: int) -> int:
        """Return the largest n <= cap such that run(n) is allowed after `past`; 0 if none."""
        guess = largest(lambda n: self.roughly(run(n)) <= self.epsilon, cap)
        return largest(lambda n: self.spent(run(n)) <= self.epsilon, cap, guess)


def calibrate_noise_multiplier(
    target_epsilon: float,
    target_delta: float,
    release: Callable[[float], Release] | float,
    charges: int,
    relation: NeighbouringRelation = NeighbouringRelation.ADD_REMOVE,
    accountant: Accountant = "pld",
    past: Sequence[Run] = (),
) -> float:
    """Return the smallest σ, up to 0.01 % of σ or of ε, that meets the target after `past` and `charges` more.

    `release` says what is charged at a given σ, as in `partial(WithoutReplacement, 256, 60000)`; a number stands
    for Poisson sampling at that rate. ε must fall as σ grows.

    Formal guarantees: `epsilon` was evaluated at the returned σ itself and was at most `target_epsilon`.

    Raises:
        BudgetError: a target that is no budget, that `past` has spent already, or that needs an absurd σ.
    """
    check_target(target_epsilon, target_delta)
    budget = Budget(target_epsilon, target_delta, relation, accountant, past)
    if charges < 1:
        raise BudgetError(f"cannot calibrate noise for {charges} steps: at least one step is needed")
    at = release if callable(release) else partial(Mechanism, release)
    budget.check_past()

    def spent(sigma: float) -> float:
        return budget.spent((at(sigma), charges))

    def rough(sigma: float) -> float:
        return budget.roughly((at(sigma), charges))

    # Precise evaluations are slow: their search starts from a rough answer, which is mostly near.
    guess = smallest(rough, 1.0, target_epsilon, target_delta)
    slope = _slope(guess, rough(guess), 1.01 * guess, rough(1.01 * guess))
    return smallest(spent, guess, target_epsilon, target_delta, slope)


def calibrate_steps(
    target_epsilon: float,
    target_delta: float,
    release: Release,
    relation: NeighbouringRelation = NeighbouringRelation.ADD_REMOVE,
    accountant: Accountant = "pld",
    past: Sequence[Run] = (),
) -> int:
    """Return how many further charges of `release` the budget allows after `past`: the largest such number.

    At most `LARGEST_STEP_COUNT`. May be 0.

    Raises:
        BudgetError: a target that is no budget, or that `past` exceeds already.
    """
    check_target(target_epsilon, target_delta)
    budget = Budget(target_epsilon, target_delta, relation, accountant, past)
    budget.check_past()
    resolved = resolved_charges(release, target_delta, relation, past) if accountant == "pld" else math.inf
    return budget.most(lambda n: (release, n), int(min(LARGEST_STEP_COUNT, resolved)))


def calibrate_batch_size(
    target_epsilon: float,
    target_delta: float,
    run: Callable[[int], Run],
    most: int,
    relation: NeighbouringRelation = NeighbouringRelation.ADD_REMOVE,
    accountant: Accountant = "pld",
) -> int:
    """Return the largest batch size up to `most` that the budget allows; 0 if none.

    `run` says what is charged, and how often, for batches of a given size. ε should grow with it; where it does
    not, as the number of steps of an epoch is a whole number, a size a little larger may be allowed as well.

    Formal guarantees: `epsilon` was evaluated at the returned size itself and was at most `target_epsilon`.

    Raises:
        BudgetError: a target that is no budget.
    """
    check_target(target_epsilon, target_delta)
    return Budget(target_epsilon, target_delta, relation, accountant).most(run, most)


def smallest(
    spent: Callable[[float], float], guess: float, target_epsilon: float, target_delta: float, slope: float = -1.0
) -> float:
    """Return σ with spent(σ) <= target, as small as the tolerance and `SMALLEST_NOISE_MULTIPLIER` allow.

    Secant steps from the guess, in logarithms, to a little above the root. What they take at least grows, so that
    they come to an end between what is too little and what is enough.

    Args:
        slope: about d ln ε / d ln σ at the guess.

    Raises:
        BudgetError: `LARGEST_NOISE_MULTIPLIER` would not do.
    """
    sigma, least = min(max(guess, SMALLEST_NOISE_MULTIPLIER), LARGEST_NOISE_MULTIPLIER), _TOLERANCE / 8
    low, high, before = 0.0, math.inf, (sigma, 0.0)
    while True:
        enough = (value := spent(sigma)) <= target_epsilon  # which NaN is not
        if not enough and sigma >= LARGEST_NOISE_MULTIPLIER:
            raise BudgetError(
                f"epsilon = {target_epsilon:g} at delta = {target_delta:g} would need a noise multiplier above "
                f"{LARGEST_NOISE_MULTIPLIER:g}: raise epsilon or delta, or train for fewer steps"
            )
        if enough and value >= target_epsilon * (1 - _TOLERANCE):
            return sigma
        low, high = (low, sigma) if enough else (sigma, high)
        if high <= max(SMALLEST_NOISE_MULTIPLIER, low * (1 + _TOLERANCE)):
            return high
        slope, before = _slope(*before, sigma, value, slope), (sigma, value)
        move = (math.log(max(_NO_NOISE, value) / target_epsilon) + _TOLERANCE / 2) / -slope
        if low and high < math.inf:
            width = math.log(high / low)
            margin = min(least, width / 4)
            sigma = low * math.exp(min(max(math.log(sigma / low) + move, margin), width - margin))
        else:
            move = max(move, least) if low else min(move, -least)
            sigma *= math.exp(min(max(move, -_MOST_DOWN), _MOST_UP))
            sigma = min(max(sigma, SMALLEST_NOISE_MULTIPLIER), LARGEST_NOISE_MULTIPLIER)
        least *= 2


def _slope(sigma: float, value: float, other: float, other_value: float, usual: float = -1.0) -> float:
    """Return d ln ε / d ln σ between two points, which is negative; the usual one where they do not tell."""
    if not 0 < value < math.inf or not 0 < other_value < math.inf or other == sigma:
        return usual
    return min(math.log(other_value / value) / math.log(other / sigma), -0.1)


def largest(allowed: Callable[[int], bool], cap: int, guess: int = 0) -> int:
    """Return the largest n <= cap with allowed(n), for a monotone predicate that allows 0; sooner near a guess."""
    low, stride = 0, 1
    if 0 < guess <= cap:
        if allowed(guess):
            low, stride = guess, max(1, guess // 16)
        else:
            cap = guess - 1
    high = low + stride
    while high <= cap and allowed(high):
        low, stride = high, 2 * stride
        high = low + stride
    high = min(high, cap + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if allowed(middle) else (low, middle)
    return low
