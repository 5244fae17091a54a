"""The whole privacy curve of composed releases: δ as a function of ε."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from ..errors import BudgetError
from .guarantee import NeighbouringRelation
from .pld import SMALLEST_DELTA, composed_pld, is_gaussian, lost_delta
from .releases import Mechanism, Release, Run

_INTERVAL = 5e-3  # of privacy losses: fifty times as coarse as for a budget, and on the private side all the same


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
    curve = _numeric if not all(is_gaussian(release, relation) for release, _ in listed) else _gaussian
    return [min(1.0, max(0.0, delta) + slack) for delta in curve(listed, epsilons, relation)]


def _gaussian(runs: list[Run], epsilons: Sequence[float], relation: NeighbouringRelation) -> list[float]:
    from dp_accounting.pld.privacy_loss_mechanism import GaussianPrivacyLoss

    distance = math.hypot(
        *(relation.moves * math.sqrt(count) / release.noise_multiplier for release, count in runs)
    )
    if distance == 0:
        return [0.0] * len(epsilons)
    loss = GaussianPrivacyLoss(1.0, sensitivity=distance)
    return [float(delta) for delta in loss.get_delta_for_epsilon(epsilons)]


def _numeric(runs: list[Run], epsilons: Sequence[float], relation: NeighbouringRelation) -> list[float]:
    counts: Counter[Release] = Counter()
    for release, count in runs:
        counts[release] += count
    composed = composed_pld(counts, SMALLEST_DELTA, relation, _INTERVAL)
    return [float(composed.get_delta_for_epsilon(epsilon)) for epsilon in epsilons]
