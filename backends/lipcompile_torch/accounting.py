"""Privacy accounting: the one small interface to dp-accounting.

Notation (the same in every signature):

====================  ======  =========================================================================
`sampling_rate`       q       probability that an example enters a step's batch (Poisson sampling)
`noise_multiplier`    σ       noise standard deviation on the SUM of gradients, over the per-example bound K
`epsilon`, `delta`    ε, δ    the guarantee
====================  ======  =========================================================================

σ is std/K under BOTH neighbouring relations; this module translates. Adding or removing one example moves the sum
by at most K, replacing one by at most 2K. In dp-accounting 0.6 the PLD accountant doubles the sensitivity itself
(`AdjacencyType.REPLACE` shifts both Gaussians away from zero) and so takes std/K, while the RDP accountant
takes std over the true sensitivity, std/(2K), and knows no Poisson sampling under that relation.

Importing this module loads neither torch nor dp-accounting, which takes a second: functions import it.
"""

from __future__ import annotations

import contextlib
import logging
import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Literal, get_args

if TYPE_CHECKING:
    from dp_accounting import DpEvent

Accountant = Literal["rdp", "pld"]

LARGEST_NOISE_MULTIPLIER = 1e6
SMALLEST_NOISE_MULTIPLIER = 0.05
LARGEST_STEP_COUNT = 10**9
_TOLERANCE = 1e-4  # calibration stops this close (relatively) to the best value, on its private side
_PLD_INTERVAL = 1e-4  # dp-accounting's default grid of privacy losses
_PLD_FINE_EPSILON = 20.0  # larger budgets are computed on a proportionally coarser, still pessimistic, grid
# The PLD of T sampled steps is the T-th power of a Fourier transform in double precision: the composed
# distribution is wrong by about T * 1e-18 of probability (measured: even negative δ results). Smaller δ is
# refused.
_PLD_DELTA_PER_STEP = 1e-15
_PLD_SMALLEST_DELTA = 1e-12


class BudgetError(ValueError):
    """A privacy budget that no noise can meet, that is spent, or that an accountant cannot compute."""


class NeighbouringRelation(Enum):
    """When two data sets count as neighbours, that is, what one person can change."""

    ADD_REMOVE = "add_remove"
    REPLACE_ONE = "replace_one"


@dataclass(frozen=True, slots=True)
class Mechanism:
    """One training step: Poisson sampling at rate q, then one Gaussian mechanism with noise multiplier σ.

    However the noise is shared among the parameters, a step is ONE mechanism (see `runtime.noise`).

    Raises:
        BudgetError: q outside (0, 1], or σ negative or not finite.
    """

    sampling_rate: float
    noise_multiplier: float

    def __post_init__(self) -> None:
        if not 0 < self.sampling_rate <= 1:
            raise BudgetError(
                f"sampling rate {self.sampling_rate} is not in (0, 1]: "
                "it is the expected batch size over the number of examples"
            )
        if not 0 <= self.noise_multiplier < math.inf:
            raise BudgetError(f"noise multiplier {self.noise_multiplier} is not a finite number >= 0")


Run = tuple[Mechanism, int]
"""A mechanism and how many steps used it."""


def epsilon(
    runs: Iterable[Run],
    delta: float,
    relation: NeighbouringRelation = NeighbouringRelation.ADD_REMOVE,
    accountant: Accountant = "pld",
) -> float:
    """Return ε such that the composition of `runs` is (ε, δ)-differentially private.

    Formal guarantees: an upper bound of the true ε, by Rényi divergence (Mironov et al. 2019) or by a privacy loss
    distribution rounded pessimistically (Doroshenko et al. 2022), for adaptively chosen mechanisms of these
    parameters. The order of runs does not matter. `inf` if some step has no noise, or if δ is below what the
    accountant resolves.

    Raises:
        BudgetError: δ outside (0, 1), a negative count, or RDP asked for Poisson sampling under replace-one.
    """
    _check_delta(delta)
    merged = _merge(runs)
    check_supported(merged, delta, relation, accountant)
    if not merged:
        return 0.0
    if any(mechanism.noise_multiplier == 0 for mechanism in merged):
        return math.inf
    with _quiet() as notes:
        if accountant == "rdp":
            return _rdp_epsilon(merged, delta, relation, notes)
        return _pld_epsilon(merged, delta, relation, _pld_interval(merged, delta, relation, notes))


def calibrate_noise_multiplier(
    target_epsilon: float,
    target_delta: float,
    sampling_rate: float,
    steps: int,
    relation: NeighbouringRelation = NeighbouringRelation.ADD_REMOVE,
    accountant: Accountant = "pld",
    past: Sequence[Run] = (),
) -> float:
    """Return the smallest σ, up to 0.01 % of σ or of ε, that meets the target after `past` and `steps` more steps.

    Formal guarantees: `epsilon` was evaluated at the returned σ itself and was at most `target_epsilon`.

    Raises:
        BudgetError: a target that is no budget, that `past` has spent already, or that needs an absurd σ.
    """
    _check_target(target_epsilon, target_delta)
    if steps < 1:
        raise BudgetError(f"cannot calibrate noise for {steps} steps: at least one step is needed")

    def spent(sigma: float) -> float:
        return epsilon([*past, (Mechanism(sampling_rate, sigma), steps)], target_delta, relation, accountant)

    _check_past(past, target_epsilon, target_delta, relation, accountant)
    guess = _guess(target_epsilon, target_delta, sampling_rate, steps, relation, accountant)
    return _smallest(spent, guess, target_epsilon, target_delta)


def _guess(
    target_epsilon: float,
    target_delta: float,
    sampling_rate: float,
    steps: int,
    relation: NeighbouringRelation,
    accountant: Accountant,
) -> float:
    """Start PLD's search, whose evaluations are slow, from RDP's answer under add/remove (doubled for 2K)."""
    if accountant == "rdp":
        return 1.0
    start = calibrate_noise_multiplier(target_epsilon, target_delta, sampling_rate, steps, accountant="rdp")
    return start * (2 if relation is NeighbouringRelation.REPLACE_ONE else 1)


def calibrate_steps(
    target_epsilon: float,
    target_delta: float,
    mechanism: Mechanism,
    relation: NeighbouringRelation = NeighbouringRelation.ADD_REMOVE,
    accountant: Accountant = "pld",
    past: Sequence[Run] = (),
) -> int:
    """Return how many further steps of `mechanism` the budget allows after `past`: the largest such number.

    At most `LARGEST_STEP_COUNT`. May be 0.

    Raises:
        BudgetError: a target that is no budget, or that `past` exceeds already.
    """
    _check_target(target_epsilon, target_delta)
    _check_past(past, target_epsilon, target_delta, relation, accountant)

    def allowed(steps: int) -> bool:
        runs = [*past, (mechanism, steps)]
        return epsilon(runs, target_delta, relation, accountant) <= target_epsilon

    # Above this count PLD could not resolve δ (for RDP the cap never binds in practice).
    sampled_pld = accountant == "pld" and mechanism.sampling_rate < 1
    resolved = int(target_delta / _PLD_DELTA_PER_STEP) - sum(count for _, count in past)
    return _largest(allowed, min(LARGEST_STEP_COUNT, resolved) if sampled_pld else LARGEST_STEP_COUNT)


# --- the two accountants -----------------------------------------------------------------------------------------


def _event(mechanism: Mechanism, scale: float = 1.0) -> DpEvent:
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent

    gaussian = GaussianDpEvent(mechanism.noise_multiplier * scale)
    if mechanism.sampling_rate == 1:  # no sampling: no amplification, and the exact Gaussian is cheaper
        return gaussian
    return PoissonSampledDpEvent(mechanism.sampling_rate, gaussian)


def _rdp_epsilon(
    runs: Counter[Mechanism], delta: float, relation: NeighbouringRelation, notes: list[str]
) -> float:
    from dp_accounting.rdp import RdpAccountant
    from dp_accounting.rdp.rdp_privacy_accountant import DEFAULT_RDP_ORDERS

    # RDP takes std over the true sensitivity, which is 2K when an example is replaced.
    scale = 0.5 if relation is NeighbouringRelation.REPLACE_ONE else 1.0

    def at(orders: Sequence[float]) -> float:
        notes.clear()
        accountant = RdpAccountant(orders)
        for mechanism, count in runs.items():
            accountant.compose(_event(mechanism, scale), count)
        return float(accountant.get_epsilon(delta))

    result = at(DEFAULT_RDP_ORDERS)
    if not _rounded_below_zero(notes):
        return result
    # dp-accounting reads a Rényi divergence that cancelled to below zero as ε = 0. Such orders prove nothing.
    proved = ((at([order]), _rounded_below_zero(notes)) for order in DEFAULT_RDP_ORDERS)
    return min((value for value, void in proved if not void), default=math.inf)


def _rounded_below_zero(notes: list[str]) -> bool:
    return any("Negative Renyi divergence" in note for note in notes)


def _pld_epsilon(runs: Counter[Mechanism], delta: float, relation: NeighbouringRelation, interval: float) -> float:
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld import PLDAccountant

    theirs = {
        NeighbouringRelation.ADD_REMOVE: NeighboringRelation.ADD_OR_REMOVE_ONE,
        NeighbouringRelation.REPLACE_ONE: NeighboringRelation.REPLACE_ONE,
    }[relation]
    accountant = PLDAccountant(theirs, interval)
    for mechanism, count in runs.items():
        accountant.compose(_event(mechanism), count)
    return float(accountant.get_epsilon(delta))


def _pld_interval(
    runs: Counter[Mechanism], delta: float, relation: NeighbouringRelation, notes: list[str]
) -> float:
    """Choose the grid: PLD's memory grows with ε / interval, and any interval errs on the private side."""
    scale = 0.5 if relation is NeighbouringRelation.REPLACE_ONE else 1.0
    halved = Counter({Mechanism(m.sampling_rate, m.noise_multiplier * scale): n for m, n in runs.items()})
    rough = _rdp_epsilon(halved, delta, NeighbouringRelation.ADD_REMOVE, notes)
    return _PLD_INTERVAL * max(1.0, min(rough, 1e9) / _PLD_FINE_EPSILON)


@contextlib.contextmanager
def _quiet() -> Iterator[list[str]]:
    """Collect dp-accounting's absl warnings instead of printing them; everything is restored on leaving."""
    import dp_accounting.rdp  # noqa: F401  (creates absl's logger, which must not be created by us)

    notes: list[str] = []

    def collect(record: logging.LogRecord) -> bool:
        notes.append(record.getMessage())
        return False

    logger = logging.getLogger("absl")
    logger.addFilter(collect)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # exp overflows in orders that lose
            yield notes
    finally:
        logger.removeFilter(collect)


# --- searches ----------------------------------------------------------------------------------------------------


def _smallest(spent: Callable[[float], float], guess: float, target_epsilon: float, target_delta: float) -> float:
    """Return σ with spent(σ) <= target, as small as the tolerance and `SMALLEST_NOISE_MULTIPLIER` allow."""
    high = min(max(guess, SMALLEST_NOISE_MULTIPLIER), LARGEST_NOISE_MULTIPLIER)
    low, over = high, 0.0
    while (under := spent(high)) > target_epsilon:
        if high >= LARGEST_NOISE_MULTIPLIER:
            raise BudgetError(
                f"epsilon = {target_epsilon:g} at delta = {target_delta:g} would need a noise multiplier above "
                f"{LARGEST_NOISE_MULTIPLIER:g}: raise epsilon or delta, or train for fewer steps"
            )
        # ε falls about as 1/σ.
        factor = min(max(1.5, 1.1 * under / target_epsilon), 1e3)
        low, over, high = high, under, min(high * factor, LARGEST_NOISE_MULTIPLIER)
    while over <= target_epsilon:
        if high <= SMALLEST_NOISE_MULTIPLIER:
            return high
        low = max(high / 1.15, SMALLEST_NOISE_MULTIPLIER)
        over = spent(low)
        if over <= target_epsilon:
            high, under = low, over
    return _narrow(spent, low, over, high, under, target_epsilon)


def _narrow(
    spent: Callable[[float], float], low: float, over: float, high: float, under: float, target: float
) -> float:
    """Shrink [low, high], spent(low) > target >= spent(high), by log-log secants; return the upper end."""
    while (width := math.log(high / low)) > _TOLERANCE and under < target * (1 - _TOLERANCE):
        share = 0.5
        if under > 0 and math.isfinite(over):
            # A little above the root, where the answer lies.
            share = math.log(over / target) / math.log(over / under) + 0.3 * _TOLERANCE / width
        middle = low * math.exp(width * min(max(share, 0.1), 0.9))
        if (value := spent(middle)) > target:
            low, over = middle, value
        else:
            high, under = middle, value
    return high


def _largest(allowed: Callable[[int], bool], cap: int) -> int:
    """Return the largest n <= cap with allowed(n), for a monotone predicate that allows 0."""
    low, high = 0, 1
    while high <= cap and allowed(high):
        low, high = high, 2 * high
    high = min(high, cap + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if allowed(middle) else (low, middle)
    return low


# --- checks ------------------------------------------------------------------------------------------------------


def _merge(runs: Iterable[Run]) -> Counter[Mechanism]:
    """Add up the counts of equal mechanisms: composition does not depend on the order."""
    merged: Counter[Mechanism] = Counter()
    for mechanism, count in runs:
        if count < 0:
            raise BudgetError(f"a run of {count} steps: the number of steps cannot be negative")
        if count:
            merged[mechanism] += count
    return merged


def _check_delta(delta: float) -> None:
    if not 0 < delta < 1:
        raise BudgetError(
            f"delta = {delta:g} is not strictly between 0 and 1: Gaussian noise cannot give delta = 0; "
            "a usual choice is below 1 / number of examples"
        )


def _check_target(target_epsilon: float, target_delta: float) -> None:
    if not 0 < target_epsilon < math.inf:
        raise BudgetError(
            f"epsilon = {target_epsilon:g} is not a positive number: no finite noise gives epsilon <= 0; "
            "usual budgets lie between 0.1 and 10"
        )
    _check_delta(target_delta)


def check_supported(
    runs: Mapping[Mechanism, int], delta: float, relation: NeighbouringRelation, accountant: str
) -> None:
    """Refuse, with `BudgetError`, what the accountant has no theorem or no precision for. Computes nothing."""
    if accountant not in get_args(Accountant):
        raise BudgetError(f"unknown accountant {accountant!r}: use 'pld' or 'rdp'")
    sampled = sum(count for mechanism, count in runs.items() if mechanism.sampling_rate < 1)
    if accountant == "rdp" and relation is NeighbouringRelation.REPLACE_ONE and sampled:
        raise BudgetError(
            "the rdp accountant has no theorem for Poisson sampling under replace_one: use accountant='pld'"
        )
    if accountant == "pld" and sampled and delta < max(_PLD_SMALLEST_DELTA, _PLD_DELTA_PER_STEP * sampled):
        raise BudgetError(
            f"delta = {delta:g} is below what the pld accountant resolves for {sampled} steps: "
            "use accountant='rdp'"
        )


def _check_past(
    past: Sequence[Run],
    target_epsilon: float,
    target_delta: float,
    relation: NeighbouringRelation,
    accountant: Accountant,
) -> None:
    spent = epsilon(past, target_delta, relation, accountant)
    if spent > target_epsilon:
        raise BudgetError(
            f"the steps already taken cost epsilon = {spent:.4g} at delta = {target_delta:g}, more than the "
            f"target {target_epsilon:g}: no further step is possible within it"
        )
