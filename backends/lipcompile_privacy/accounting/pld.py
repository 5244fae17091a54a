"""The accountant of privacy loss distributions (PLDs): tight up to its grid, and slower."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache, partial, reduce
from typing import TYPE_CHECKING, Any

from ..errors import BudgetError
from .allocation import allocation_pld, available
from .rdp import FEW_ORDERS, LOW_ORDERS, rdp_epsilon
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
    from dp_accounting.pld.privacy_loss_mechanism import GaussianPrivacyLoss
    from numpy.typing import NDArray


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
_MANY_POINTS = 10.0  # the logarithm of more points than those for which dp-accounting composes without transforms
_TOLERANCE = 1e-6  # relative, of ε by two changes


def lost_delta(steps: int) -> float:
    """Return more than the probability by which a composition of so many steps may be wrong."""
    return SMALLEST_DELTA + _DELTA_PER_STEP * steps


def pld_epsilon(runs: Counter[Release], delta: float, relation: NeighbouringRelation) -> float:
    """Return ε at δ of supported runs; `inf` where noise is too small for dp-accounting's grids."""
    rough = _rough_epsilon(runs, delta, relation)
    if not rough <= _LARGEST_EPSILON:
        return math.inf
    try:
        direct = float(composed_pld(runs, delta, relation, _interval(rough)).get_epsilon_for_delta(delta))
    except OverflowError:  # dp-accounting takes exponentials of losses
        return math.inf
    if relation is NeighbouringRelation.REPLACE_ONE and all(isinstance(one, RandomAllocation) for one in runs):
        return min(direct, _by_two_changes(runs, delta, direct))
    return direct


def coarse_epsilon(run: Run, delta: float, target: float) -> float:
    """Return about the ε of a run, in a tenth of a second, where it is near a target: to begin a search with."""
    mechanism, count = run
    added = NeighbouringRelation.ADD_REMOVE
    rough = rdp_epsilon(Counter({mechanism: count}), delta, added, FEW_ORDERS)
    if not rough <= _FAR * target + 100:
        return rough
    try:
        composed = composed_pld({mechanism: count}, delta, added, max(target / 1000, _INTERVAL))
        return float(composed.get_epsilon_for_delta(delta))
    except OverflowError:
        return rough


def _by_two_changes(runs: Counter[Release], delta: float, direct: float) -> float:
    """Return ε of replacing as removing and adding: 2ε at (1 + e^ε) δ (Dwork and Roth 2014, Theorem 2.2).

    Random allocation is amplified under add/remove alone, which this carries over. `inf` if it cannot help.
    """
    added = NeighbouringRelation.ADD_REMOVE
    if not available() or math.isinf(direct):
        return math.inf
    try:
        interval = _interval(_rough_epsilon(runs, delta, added))
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
    first, *others = (_composed(release, count, delta, relation, interval) for release, count in runs.items())
    return reduce(lambda composed, other: composed.compose(other), others, first)


def check_resolution(runs: Mapping[Release, int], delta: float, relation: NeighbouringRelation) -> None:
    """Raise BudgetError if rounding alone would decide ε at so small a δ."""
    steps = sum(count for release, count in runs.items() if not is_gaussian(release, relation))
    if steps and delta < max(SMALLEST_DELTA, _DELTA_PER_STEP * steps):
        raise BudgetError(
            f"delta = {delta:g} is too small for the pld accountant to resolve over {steps} steps: use "
            "accountant='rdp'"
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
    if is_gaussian(release, relation):
        # Gaussians compose to a Gaussian; σ is std/K, whatever the relation.
        return _gaussian(release.noise_multiplier / math.sqrt(count), 1.0, relation, interval)
    if isinstance(release, RandomAllocation):
        return allocation_pld(release, count, delta, interval).self_compose(count)
    one = _one_step(release, relation, interval)
    return one if count == 1 else _dense(one, count).self_compose(count)


def _dense(one: PrivacyLossDistribution, count: int) -> PrivacyLossDistribution:
    """Return a PLD as dp-accounting makes it before it composes `count` of them, unless these have few points.

    To see whether they have, it computes size^count, a number of millions of digits where there are many steps.
    """
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

    pmfs = [one._pmf_remove] if one._symmetric else [one._pmf_remove, one._pmf_add]
    return PrivacyLossDistribution(
        *(pmf.to_dense_pmf() if count * math.log(pmf.size) > _MANY_POINTS else pmf for pmf in pmfs)
    )


@lru_cache(maxsize=32)
def _one_step(
    release: Mechanism | WithoutReplacement, relation: NeighbouringRelation, interval: float
) -> PrivacyLossDistribution:
    """Return the PLD of one sampled step: half of the time of a question, and the same for every count."""
    if isinstance(release, WithoutReplacement):
        return fixed_size_pld(release, relation, interval)
    return _gaussian(release.noise_multiplier, release.sampling_rate, relation, interval)


def _gaussian(
    sigma: float, rate: float, relation: NeighbouringRelation, interval: float
) -> PrivacyLossDistribution:
    """Return the PLD of a Gaussian mechanism of one step, with Poisson sampling if rate < 1.

    It is what dp-accounting's `from_gaussian_mechanism` returns, up to rounding, in a tenth of the time.
    """
    import numpy as np
    from dp_accounting.pld.pld_pmf import create_pmf_pessimistic_connect_dots_fixed_gap
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
    from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, GaussianPrivacyLoss

    kinds = [AdjacencyType.REMOVE, AdjacencyType.ADD] if rate < 1 else [AdjacencyType.REMOVE]
    if relation is NeighbouringRelation.REPLACE_ONE:
        kinds = [AdjacencyType.REPLACE]
    pmfs = []
    for kind in kinds:
        loss = GaussianPrivacyLoss(sigma, sampling_prob=rate, adjacency_type=kind)
        bounds = loss.connect_dots_bounds()
        low, high = math.floor(bounds.epsilon_lower / interval), math.ceil(bounds.epsilon_upper / interval)
        deltas = gaussian_deltas(loss, sigma, interval * np.arange(low, high + 1))
        pmfs.append(create_pmf_pessimistic_connect_dots_fixed_gap(interval, low, high, deltas))
    return PrivacyLossDistribution(*pmfs)


def gaussian_deltas(loss: GaussianPrivacyLoss, sigma: float, epsilons: NDArray[Any]) -> NDArray[Any]:
    """Return δ at each ε of a Gaussian mechanism of sensitivity 1, with or without Poisson sampling.

    dp-accounting's `loss.get_delta_for_epsilon` takes one ε after the other; this takes all at once. δ is
    P(x <= c) - e^ε Q(x <= c), where c is the x whose loss is ε. This c maximises it: the rounding of c counts in
    second order only.
    """
    import numpy as np

    with np.errstate(divide="ignore", over="ignore"):
        cuts = _CUTS[loss.adjacency_type.name](epsilons, loss.sampling_prob, sigma**2)
    deltas = loss.mu_upper_cdf(cuts) - np.exp(epsilons + loss.mu_lower_log_cdf(cuts))
    return np.asarray(np.clip(deltas, 0, 1))


def _removal_cuts(epsilons: NDArray[Any], rate: float, variance: float) -> NDArray[Any]:
    """Return c with ε = ln(1 - q + q e^l), where l = -(c + 1/2)/σ² is the loss without sampling; or inf."""
    import numpy as np

    share = -np.expm1(np.log1p(-rate) - epsilons)  # 1 - (1 - q) e^-ε
    plain = epsilons + np.log(np.maximum(share, 0)) - math.log(rate)
    return np.asarray(-0.5 - variance * plain)


def _addition_cuts(epsilons: NDArray[Any], rate: float, variance: float) -> NDArray[Any]:
    """Return what removal has at -ε, mirrored: the densities are those of removal, exchanged."""
    return -_removal_cuts(-epsilons, rate, variance)


def _replacement_cuts(epsilons: NDArray[Any], rate: float, variance: float) -> NDArray[Any]:
    """Return c = -σ² (arsinh(α sinh(ε/2)) + ε/2), where α = e^(1/(2σ²)) (1 - q)/q, by logarithms."""
    import numpy as np

    half = np.abs(epsilons) / 2
    log_sinh = half + np.log(-np.expm1(-2 * half)) - math.log(2)
    power = log_sinh + 0.5 / variance + np.log1p(-rate) - math.log(rate)
    arsinh = np.logaddexp(0.5 * np.logaddexp(0, 2 * power), power)
    return np.asarray(-variance * np.sign(epsilons) * (arsinh + half))


_CUTS = {"REMOVE": _removal_cuts, "ADD": _addition_cuts, "REPLACE": _replacement_cuts}


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
    if relation is NeighbouringRelation.REPLACE_ONE:
        return _symmetric(release, interval)
    return _gaussian(release.noise_multiplier / 2, release.sampling_rate, relation, interval)


def _symmetric(release: WithoutReplacement, interval: float) -> PrivacyLossDistribution:
    """Return the PLD whose profile at ε >= 0 is that of removal, and which is its own reverse."""
    import numpy as np
    from dp_accounting.pld.pld_pmf import create_pmf_pessimistic_connect_dots_fixed_gap
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
    from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, GaussianPrivacyLoss

    sigma = release.noise_multiplier / 2
    removal = GaussianPrivacyLoss(sigma, sampling_prob=release.sampling_rate, adjacency_type=AdjacencyType.REMOVE)
    last = max(1, int(np.ceil(removal.connect_dots_bounds().epsilon_upper / interval)))
    losses = interval * np.arange(last + 1)
    above = gaussian_deltas(removal, sigma, losses)
    below = -np.expm1(-losses[1:]) + np.exp(-losses[1:]) * above[1:]  # δ(-ε) = 1 - e^-ε + e^-ε δ(ε)
    deltas = np.concatenate([below[::-1], above])
    return PrivacyLossDistribution(create_pmf_pessimistic_connect_dots_fixed_gap(interval, -last, last, deltas))


def _interval(rough: float) -> float:
    """Choose the grid: PLD's memory grows with ε / interval, and any interval errs on the private side."""
    return _INTERVAL * max(1.0, min(rough, _LARGEST_EPSILON) / _FINE_EPSILON)


def _rough_epsilon(runs: Counter[Release], delta: float, relation: NeighbouringRelation) -> float:
    """Return more than the ε of charges that cost about as much, by RDP: nearly all of it is for large ε alone."""
    alike: Counter[Release] = Counter()
    for release, count in runs.items():
        plain = Mechanism(1, release.noise_multiplier / relation.moves), 1
        mechanism, times = plain if is_gaussian(release, relation) else like_poisson(release, relation)
        alike[mechanism] += count * times
    found = partial(rdp_epsilon, alike, delta, NeighbouringRelation.ADD_REMOVE)
    quick = found(FEW_ORDERS)
    return quick if quick <= _FINE_EPSILON else min(quick, found(LOW_ORDERS))


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
            raise BudgetError(f"{release} has no privacy curve: only Poisson sampling with noise has one")
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
