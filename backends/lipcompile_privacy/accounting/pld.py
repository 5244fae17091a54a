"""The accountant of privacy loss distributions (PLDs): tight up to its grid, and slower."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from ..errors import BudgetError
from .allocation import allocation_pld, available
from .rdp import FEW_ORDERS, rdp_epsilon
from .releases import (
    Mechanism,
    NeighbouringRelation,
    RandomAllocation,
    Release,
    Run,
    Selection,
    WithoutReplacement,
)

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution


_INTERVAL = 1e-4  # dp-accounting's default grid of privacy losses
_CURVE_INTERVAL = 5e-3  # that of whole curves, on the private side all the same
_FAR = 20  # times a target: there a grid that is fine enough at the target takes long
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


def coarse_epsilon(run: Run, delta: float, target: float) -> float:
    """Return about the ε of a run, in a tenth of a second, where it is near a target: to begin a search with."""
    mechanism, count = run
    added = NeighbouringRelation.ADD_REMOVE
    rough = rdp_epsilon(Counter({mechanism: count}), delta, added, [], FEW_ORDERS)
    if not rough <= _FAR * target + 100:
        return rough
    try:
        composed = composed_pld({mechanism: count}, delta, added, max(target / 1000, _INTERVAL))
        return float(composed.get_epsilon_for_delta(delta))
    except OverflowError:
        return rough


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
    if isinstance(release, Selection):
        return False
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


def fixed_size_pld(
    release: WithoutReplacement, relation: NeighbouringRelation, interval: float
) -> PrivacyLossDistribution:
    """Return the PLD of one step of batches of fixed size without replacement, smaller than the data set; σ > 0.

    Let q = B/N, and let μ1 and μ0 be the laws of a step's output when the example z in question is in the batch,
    and when it is not. Exchanging z for any other example carries one into the other and moves the sum by at most
    2K. So

    - removing z leaves exactly μ0, of M(D) = (1 - q) μ0 + q μ1: dominated by Poisson sampling at rate q of a
      Gaussian whose sensitivity is 2K (Zhu, Dong and Wang 2022, Theorem 11);
    - replacing z by z' gives (1 - q) μ0 + q μ1'. By advanced joint convexity (Balle, Barthe and Gaboardi 2018),
      for e^ε = 1 + q (e^ε' - 1), ε >= 0, the hockey-stick divergence of order e^ε between M(D) and M(D') is at
      most q times that of order e^ε' between μ1 and a mixture of μ0 and μ1', each 2K away from μ1: the profile of
      removal again. It holds in both directions; orders below 1 follow from H_α(P‖Q) = 1 - α + α H_{1/α}(Q‖P).

    Formal guarantees: what is returned dominates one step, and so its composition with itself and with others.
    """
    from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism

    if relation is NeighbouringRelation.REPLACE_ONE:
        return _symmetric(release, interval)
    return from_gaussian_mechanism(
        release.noise_multiplier / 2,
        value_discretization_interval=interval,
        sampling_prob=release.sampling_rate,
    )


def _symmetric(release: WithoutReplacement, interval: float) -> PrivacyLossDistribution:
    """Return the PLD whose profile at ε >= 0 is that of removal, and which is its own reverse."""
    import numpy as np
    from dp_accounting.pld.pld_pmf import create_pmf_pessimistic_connect_dots_fixed_gap
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
    from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, GaussianPrivacyLoss

    removal = GaussianPrivacyLoss(
        release.noise_multiplier / 2, sampling_prob=release.sampling_rate, adjacency_type=AdjacencyType.REMOVE
    )
    last = max(1, int(np.ceil(removal.connect_dots_bounds().epsilon_upper / interval)))
    losses = interval * np.arange(last + 1)
    above = removal.get_delta_for_epsilon(losses)
    below = -np.expm1(-losses[1:]) + np.exp(-losses[1:]) * above[1:]  # δ(-ε) = 1 - e^-ε + e^-ε δ(ε)
    deltas = np.concatenate([below[::-1], above])
    return PrivacyLossDistribution(create_pmf_pessimistic_connect_dots_fixed_gap(interval, -last, last, deltas))


def _interval(rough: float) -> float:
    """Choose the grid: PLD's memory grows with ε / interval, and any interval errs on the private side."""
    return _INTERVAL * max(1.0, min(rough, _LARGEST_EPSILON) / _FINE_EPSILON)


def _rough_epsilon(
    runs: Counter[Release], delta: float, relation: NeighbouringRelation, notes: list[str]
) -> float:
    """Return ε of charges that cost about as much, by RDP; up to `_FINE_EPSILON` any bound will do."""
    alike: Counter[Release] = Counter()
    for release, count in runs.items():
        plain = Mechanism(1, release.noise_multiplier / relation.moves), 1
        mechanism, times = plain if is_gaussian(release, relation) else like_poisson(release, relation)
        alike[mechanism] += count * times
    found = partial(rdp_epsilon, alike, delta, NeighbouringRelation.ADD_REMOVE, notes)
    quick = found(FEW_ORDERS)
    return quick if quick <= _FINE_EPSILON else found()


# --- the whole privacy curve: δ as a function of ε ---


def privacy_curve(
    runs: Iterable[Run],
    epsilons: Sequence[float],
    relation: NeighbouringRelation = NeighbouringRelation.ADD_REMOVE,
) -> list[float]:
    """Return for each ε a δ in [0, 1] such that the composition of `runs` is (ε, δ)-differentially private.

    Formal guarantees: all these pairs hold at once. Each δ is that of the Gaussian mechanism (Balle and Wang 2018)
    if every example enters every batch, and otherwise an upper bound, by a privacy loss distribution rounded
    pessimistically (Doroshenko et al. 2022).

    Raises:
        BudgetError: a release that is not Poisson sampling with Gaussian noise, or that has no noise.
    """
    listed = list(runs)
    for release, _ in listed:
        if not isinstance(release, Mechanism) or release.noise_multiplier == 0:
            raise BudgetError(f"{release} has no privacy curve here: only Poisson sampling with noise has")
    slack = lost_delta(sum(count for _, count in listed))
    curve = _numeric_curve if not all(is_gaussian(release, relation) for release, _ in listed) else _gaussian_curve
    return [min(1.0, max(0.0, delta) + slack) for delta in curve(listed, epsilons, relation)]


def _gaussian_curve(runs: list[Run], epsilons: Sequence[float], relation: NeighbouringRelation) -> list[float]:
    from dp_accounting.pld.privacy_loss_mechanism import GaussianPrivacyLoss

    distance = math.hypot(
        *(relation.moves * math.sqrt(count) / release.noise_multiplier for release, count in runs)
    )
    if distance == 0:
        return [0.0] * len(epsilons)
    loss = GaussianPrivacyLoss(1.0, sensitivity=distance)
    return [float(delta) for delta in loss.get_delta_for_epsilon(epsilons)]


def _numeric_curve(runs: list[Run], epsilons: Sequence[float], relation: NeighbouringRelation) -> list[float]:
    counts: Counter[Release] = Counter()
    for release, count in runs:
        counts[release] += count
    composed = composed_pld(counts, SMALLEST_DELTA, relation, _CURVE_INTERVAL)
    return [float(composed.get_delta_for_epsilon(epsilon)) for epsilon in epsilons]
