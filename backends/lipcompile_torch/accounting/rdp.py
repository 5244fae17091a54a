"""The accountant of Rényi divergences: quick, and above the truth by some per cent."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .guarantee import NeighbouringRelation
from .releases import Mechanism, RandomAllocation, Release

if TYPE_CHECKING:
    from dp_accounting import DpEvent


def rdp_epsilon(runs: Counter[Release], delta: float, relation: NeighbouringRelation, notes: list[str]) -> float:
    """Return ε at δ of supported runs; `notes` receives the warnings of dp-accounting meanwhile."""
    from dp_accounting import NeighboringRelation
    from dp_accounting.rdp import RdpAccountant
    from dp_accounting.rdp.rdp_privacy_accountant import DEFAULT_RDP_ORDERS

    theirs = {
        NeighbouringRelation.ADD_REMOVE: NeighboringRelation.ADD_OR_REMOVE_ONE,
        NeighbouringRelation.REPLACE_ONE: NeighboringRelation.REPLACE_ONE,
    }[relation]

    def at(orders: Sequence[float]) -> float:
        notes.clear()
        accountant = RdpAccountant(orders, theirs)
        for release, count in runs.items():
            accountant.compose(_event(release, relation.moves), count)
        return float(accountant.get_epsilon(delta))

    result = at(DEFAULT_RDP_ORDERS)
    if not _rounded_below_zero(notes):
        return result
    # dp-accounting reads a Rényi divergence that cancelled to below zero as ε = 0. Such orders prove nothing.
    proved = ((at([order]), _rounded_below_zero(notes)) for order in DEFAULT_RDP_ORDERS)
    return min((value for value, void in proved if not void), default=math.inf)


def _event(release: Release, moves: int) -> DpEvent:
    """Return a release as dp-accounting's RDP takes it: with std over the true sensitivity."""
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SampledWithoutReplacementDpEvent

    gaussian = GaussianDpEvent(release.noise_multiplier / moves)
    if isinstance(release, RandomAllocation):  # one batch of an epoch holds the example: no amplification proved
        return gaussian
    if isinstance(release, Mechanism):
        # No sampling: no amplification, and the exact Gaussian is cheaper.
        return gaussian if release.sampling_rate == 1 else PoissonSampledDpEvent(release.sampling_rate, gaussian)
    return SampledWithoutReplacementDpEvent(release.dataset_size, release.batch_size, gaussian)


def _rounded_below_zero(notes: list[str]) -> bool:
    return any("Negative Renyi divergence" in note for note in notes)
