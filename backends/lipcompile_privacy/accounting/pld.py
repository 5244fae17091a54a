"""The accountant of privacy loss distributions (PLDs): tight up to its grid, and slower."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

from ..errors import BudgetError
from .allocation import allocation_pld, available
from .fixed_size import fixed_size_pld
from .guarantee import NeighbouringRelation
from .rdp import rdp_epsilon
from .releases import Mechanism, RandomAllocation, Release, Run, WithoutReplacement

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

_INTERVAL = 1e-4  # dp-accounting's default grid of privacy losses
_LARGEST_EPSILON = 1e9  # of a rough estimate: beyond, no grid holds what is lost
_FINE_EPSILON = 20.0  # larger budgets are computed on a proportionally coarser, still pessimistic, grid
# The PLD of T sampled steps is the T-th power of a Fourier transform in double precision: the composed
# distribution is wrong by about T * 1e-18 of probability (measured: even negative δ results). Smaller δ is
# refused.
_DELTA_PER_STEP = 1e-15
SMALLEST_DELTA = 1e-12
_LARGEST_EXPONENT = 700.0
_TOLERANCE = 1e-6  # relative, of ε by two changes


def lost_delta(steps: int) -> float:
    """Return more than the probability by which a composition of so many steps may be wrong."""
    return SMALLEST_DELTA + _DELTA_PER_STEP * steps


def pld_epsilon(runs: Counter[Release], delta: float, relation: NeighbouringRelation, notes: list[str]) -> float:
    """Return ε at δ of supported runs; `inf` where noise is too small for dp-accounting's grids.

    Args:
        notes: receives the warnings of dp-accounting meanwhile.
    """
    rough = _rough_epsilon(runs, delta, relation, notes)
    if not rough <= _LARGEST_EPSILON:
        return math.inf
    try:
        direct = float(composed_pld(runs, delta, relation, _interval(rough)).get_epsilon_for_delta(delta))
    except OverflowError:  # dp-accounting takes exponentials of losses
        return math.inf
    if relation is NeighbouringRelation.REPLACE_ONE and all(isinstance(one, RandomAllocation) for one in runs):
        return min(direct, _by_two_changes(runs, delta, direct, notes))
    return direct


def _by_two_changes(runs: Counter[Release], delta: float, direct: float, notes: list[str]) -> float:
    """Return ε of replacing as removing and adding: 2ε at (1 + e^ε) δ (Dwork and Roth 2014, Theorem 2.2).

    Random allocation is amplified under add/remove alone, which this carries over. `inf` if it cannot help.
    """
    added = NeighbouringRelation.ADD_REMOVE
    if not available() or math.isinf(direct):
        return math.inf
    try:
        interval = _interval(_rough_epsilon(runs, delta, added, notes))
        composed = composed_pld(runs, delta / 10, added, interval)
    except (BudgetError, OverflowError):
        return math.inf
    slack = lost_delta(sum(runs.values()))

    def suffices(epsilon: float) -> bool:
        once = max(0.0, float(composed.get_delta_for_epsilon(epsilon))) + slack
        return once <= delta / (1 + math.exp(epsilon))

    # Large ε are beyond what rounding lets δ be known to, so the search comes from below.
    low, high = 0.0, direct / 1000
    while not suffices(high):
        low, high = high, 1.2 * high
        if high > min(direct / 2, _LARGEST_EXPONENT):
            return math.inf
    while high - low > _TOLERANCE * high:
        middle = (low + high) / 2
        low, high = (low, middle) if suffices(middle) else (middle, high)
    return 2 * high


def composed_pld(
    runs: Mapping[Release, int], delta: float, relation: NeighbouringRelation, interval: float
) -> PrivacyLossDistribution:
    """Return the PLD of supported runs, all with noise, on a grid of this interval; it dominates at every ε.

    Where it is to be precise is said by δ: only random allocation, whose own grid is costly, looks at it.
    """
    from dp_accounting.pld.privacy_loss_distribution import identity

    composed = identity(interval)
    for release, count in runs.items():
        composed = composed.compose(_composed(release, count, delta, relation, interval))
    return composed


def check_resolution(runs: Mapping[Release, int], delta: float, relation: NeighbouringRelation) -> None:
    """Raise BudgetError if rounding alone would decide ε at so small a δ."""
    steps = sum(count for release, count in runs.items() if not is_gaussian(release, relation))
    if steps and delta < max(SMALLEST_DELTA, _DELTA_PER_STEP * steps):
        raise BudgetError(
            f"delta = {delta:g} is below what the pld accountant resolves for {steps} steps: use accountant='rdp'"
        )


def resolved_charges(release: Release, delta: float, relation: NeighbouringRelation, past: Iterable[Run]) -> float:
    """Return how many charges after `past` leave δ within what this accountant resolves."""
    if is_gaussian(release, relation):
        return math.inf
    before = sum(count for release, count in past if not is_gaussian(release, relation))
    return math.floor(delta / _DELTA_PER_STEP) - before


def is_gaussian(release: Release, relation: NeighbouringRelation) -> bool:
    """Whether a release is charged as a plain Gaussian mechanism at std/K, whose composition has a closed form.

    A random allocation is under replace-one: the example is in one batch of the epoch, and its replacement in the
    same; what the choice of the batch amplifies is proved under add/remove alone. See also `pld_epsilon`.
    """
    replaced = relation is NeighbouringRelation.REPLACE_ONE
    if isinstance(release, RandomAllocation):
        return release.steps == 1 or replaced
    # One example more in the data set exchanges, at this size of batches, one example for another.
    return release.sampling_rate == 1 and (replaced or isinstance(release, Mechanism))


def like_poisson(release: Release, relation: NeighbouringRelation) -> tuple[Mechanism, int]:
    """Return charges under add/remove that cost about as much: to begin a search with, never to account."""
    sigma = release.noise_multiplier / relation.moves
    if isinstance(release, RandomAllocation):
        return Mechanism(1 / release.steps, sigma), release.steps
    if isinstance(release, Mechanism):
        return Mechanism(release.sampling_rate, sigma), 1
    return Mechanism(release.sampling_rate, release.noise_multiplier / 2), 1


def _composed(
    release: Release, count: int, delta: float, relation: NeighbouringRelation, interval: float
) -> PrivacyLossDistribution:
    """Return the PLD of `count` charges, on the grid of this interval."""
    from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism

    if is_gaussian(release, relation):
        # Gaussians compose to a Gaussian; dp-accounting takes std/K, whatever the relation.
        sigma = release.noise_multiplier / math.sqrt(count)
        return from_gaussian_mechanism(
            sigma, value_discretization_interval=interval, neighboring_relation=relation.theirs
        )
    if isinstance(release, RandomAllocation):
        return allocation_pld(release, count, delta, interval).self_compose(count)
    return _one_step(release, relation, interval).self_compose(count)


@lru_cache(maxsize=32)
def _one_step(
    release: Mechanism | WithoutReplacement, relation: NeighbouringRelation, interval: float
) -> PrivacyLossDistribution:
    """Return the PLD of one sampled step: half of the time of a question, and the same for every count."""
    from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism

    if isinstance(release, WithoutReplacement):
        return fixed_size_pld(release, relation, interval)
    return from_gaussian_mechanism(
        release.noise_multiplier,
        value_discretization_interval=interval,
        sampling_prob=release.sampling_rate,
        neighboring_relation=relation.theirs,
    )


def _interval(rough: float) -> float:
    """Choose the grid: PLD's memory grows with ε / interval, and any interval errs on the private side."""
    return _INTERVAL * max(1.0, min(rough, _LARGEST_EPSILON) / _FINE_EPSILON)


def _rough_epsilon(
    runs: Counter[Release], delta: float, relation: NeighbouringRelation, notes: list[str]
) -> float:
    """Return ε of charges that cost about as much, by RDP."""
    alike: Counter[Release] = Counter()
    for release, count in runs.items():
        plain = Mechanism(1, release.noise_multiplier / relation.moves), 1
        mechanism, times = plain if is_gaussian(release, relation) else like_poisson(release, relation)
        alike[mechanism] += count * times
    return rdp_epsilon(alike, delta, NeighbouringRelation.ADD_REMOVE, notes)
