"""The accountant of Rényi divergences: quick, and above the truth by some per cent."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .releases import NeighbouringRelation, RandomAllocation, Release, Selection, WithoutReplacement

if TYPE_CHECKING:
    from dp_accounting import DpEvent

_MOST_NOISE = (
    1e6  # dp-accounting fails without replacement at 1e9; less noise than there is errs on the private side
)

# Orders that cost little: those that are no whole numbers take most of the time.
FEW_ORDERS = (2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64, 128, 256)
LOW_ORDERS = (1.1, 1.25, 1.5, 1.75, 2.5, 3.5)  # some of these are the best ones of a large ε


def rdp_epsilon(
    runs: Counter[Release],
    delta: float,
    relation: NeighbouringRelation,
    notes: list[str],
    orders: Sequence[float] | None = None,
) -> float:
    """Return ε at δ of supported runs; `notes` receives the warnings of dp-accounting meanwhile.

    Any `orders` prove an upper bound; by default those of dp-accounting.
    """
    from dp_accounting.rdp import RdpAccountant
    from dp_accounting.rdp.rdp_privacy_accountant import DEFAULT_RDP_ORDERS

    orders = DEFAULT_RDP_ORDERS if orders is None else orders

    def at(orders: Sequence[float]) -> float:
        notes.clear()
        accountant = RdpAccountant(orders, relation.theirs)
        for release, count in runs.items():
            accountant.compose(_event(release, relation), count)
        return float(accountant.get_epsilon(delta))

    result = at(orders)
    if not _rounded_below_zero(notes):
        return result
    # dp-accounting reads a Rényi divergence that cancelled to below zero as ε = 0. Such orders prove nothing.
    proved = ((at([order]), _rounded_below_zero(notes)) for order in orders)
    return min((value for value, void in proved if not void), default=math.inf)


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


def _rounded_below_zero(notes: list[str]) -> bool:
    return any("Negative Renyi divergence" in note for note in notes)
