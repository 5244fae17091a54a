"""The accountant of Rényi divergences: quick, and above the truth by some per cent."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from .releases import NeighbouringRelation, RandomAllocation, Release, Selection, WithoutReplacement

if TYPE_CHECKING:
    import numpy as np
    from dp_accounting import DpEvent
    from numpy.typing import NDArray

# dp-accounting fails without replacement at 1e9; less noise than there is errs on the private side.
_MOST_NOISE = 1e6

# Orders that cost little: those that are no whole numbers take most of the time.
FEW_ORDERS = (2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64, 128, 256)
LOW_ORDERS = (1.1, 1.25, 1.5, 1.75, 2.5, 3.5)  # some of these are the best ones of a large ε


def rdp_epsilon(
    runs: Mapping[Release, int],
    delta: float,
    relation: NeighbouringRelation,
    orders: Sequence[float] | None = None,
) -> float:
    """Return ε at δ of supported runs.

    Any `orders` prove an upper bound; by default those of dp-accounting.
    """
    import numpy as np
    from dp_accounting.rdp.rdp_privacy_accountant import DEFAULT_RDP_ORDERS, compute_epsilon

    tried = np.array(DEFAULT_RDP_ORDERS if orders is None else orders, dtype=float)
    each = [count * _divergences(release, relation, tuple(tried)) for release, count in runs.items()]
    # dp-accounting reads a Rényi divergence that cancelled to below zero as ε = 0. Such orders prove nothing.
    proved = np.all([divergences >= 0 for divergences in each], axis=0)
    if not proved.any():
        return math.inf
    return float(compute_epsilon(tried[proved], np.sum(each, axis=0)[proved], delta)[0])


@lru_cache(maxsize=64)
def _divergences(
    release: Release, relation: NeighbouringRelation, orders: tuple[float, ...]
) -> NDArray[np.float64]:
    """Return the divergence of one charge at each order: nearly all of the time, and the same for every count."""
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant(orders, relation.theirs)
    accountant.compose(_event(release, relation))
    divergences: NDArray[np.float64] = accountant.rdp
    return divergences


def _event(release: Release, relation: NeighbouringRelation) -> DpEvent:
    """Return a release as dp-accounting's RDP takes it: with std over the true sensitivity."""
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
    from dp_accounting.dp_event import RepeatAndSelectDpEvent

    if isinstance(release, WithoutReplacement):
        return _fixed_size(release, relation)
    gaussian = GaussianDpEvent(release.noise_multiplier / relation.moves)
    if isinstance(release, Selection):
        return RepeatAndSelectDpEvent(gaussian, release.mean, release.shape)
    # One batch of an epoch of random allocation holds the example. And without sampling there is no amplification.
    if isinstance(release, RandomAllocation) or release.sampling_rate == 1:
        return gaussian
    return PoissonSampledDpEvent(release.sampling_rate, gaussian)


def _fixed_size(release: WithoutReplacement, relation: NeighbouringRelation) -> DpEvent:
    """Return batches of fixed size, in which an example is exchanged for another under both relations: 2K.

    Under add/remove Poisson sampling of that rate and sensitivity dominates them, see `fixed_size`.
    """
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SampledWithoutReplacementDpEvent

    gaussian = GaussianDpEvent(min(release.noise_multiplier, _MOST_NOISE) / 2)
    if release.sampling_rate == 1:
        return gaussian
    if relation is NeighbouringRelation.REPLACE_ONE:
        return SampledWithoutReplacementDpEvent(release.dataset_size, release.batch_size, gaussian)
    return PoissonSampledDpEvent(release.sampling_rate, gaussian)
