"""The accountant of privacy loss distributions: tight up to its grid, and slower."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from .guarantee import BudgetError, NeighbouringRelation
from .rdp import rdp_epsilon
from .releases import Mechanism, RandomAllocation, Release, Run

if TYPE_CHECKING:
    from dp_accounting import DpEvent

_INTERVAL = 1e-4  # dp-accounting's default grid of privacy losses
_FINE_EPSILON = 20.0  # larger budgets are computed on a proportionally coarser, still pessimistic, grid
# The PLD of T sampled steps is the T-th power of a Fourier transform in double precision: the composed
# distribution is wrong by about T * 1e-18 of probability (measured: even negative δ results). Smaller δ is
# refused.
_DELTA_PER_STEP = 1e-15
_SMALLEST_DELTA = 1e-12


def pld_epsilon(runs: Counter[Release], delta: float, relation: NeighbouringRelation, notes: list[str]) -> float:
    """Return ε at δ of supported runs; `notes` receives the warnings of dp-accounting meanwhile."""
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld import PLDAccountant

    theirs = {
        NeighbouringRelation.ADD_REMOVE: NeighboringRelation.ADD_OR_REMOVE_ONE,
        NeighbouringRelation.REPLACE_ONE: NeighboringRelation.REPLACE_ONE,
    }[relation]
    accountant = PLDAccountant(theirs, _interval(runs, delta, relation, notes))
    for release, count in runs.items():
        accountant.compose(_event(release), count)
    return float(accountant.get_epsilon(delta))


def check_resolution(runs: Mapping[Release, int], delta: float) -> None:
    """Raise BudgetError if rounding alone would decide ε at so small a δ."""
    steps = sum(count for release, count in runs.items() if _sampled(release))
    if steps and delta < max(_SMALLEST_DELTA, _DELTA_PER_STEP * steps):
        raise BudgetError(
            f"delta = {delta:g} is below what the pld accountant resolves for {steps} steps: use accountant='rdp'"
        )


def resolved_charges(release: Release, delta: float, past: Iterable[Run]) -> float:
    """Return how many charges after `past` leave δ within what this accountant resolves."""
    if not _sampled(release):
        return math.inf
    return math.floor(delta / _DELTA_PER_STEP) - sum(count for before, count in past if _sampled(before))


def like_poisson(release: Release, moves: int) -> tuple[Mechanism, int]:
    """Return charges under add/remove that cost about as much: to begin a search with, never to account."""
    sigma = release.noise_multiplier / moves
    if isinstance(release, Mechanism):
        return Mechanism(release.sampling_rate, sigma), 1
    if isinstance(release, RandomAllocation):
        return Mechanism(1, sigma), 1
    return Mechanism(release.batch_size / release.dataset_size, sigma), 1


def _sampled(release: Release) -> bool:
    """Whether the PLD of a release is composed numerically; that of plain Gaussians has a closed form."""
    return isinstance(release, Mechanism) and release.sampling_rate < 1


def _event(release: Release) -> DpEvent:
    """Return a release as dp-accounting's PLD takes it: with std/K under every relation."""
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent

    gaussian = GaussianDpEvent(release.noise_multiplier)
    if isinstance(release, Mechanism) and release.sampling_rate < 1:
        return PoissonSampledDpEvent(release.sampling_rate, gaussian)
    return gaussian


def _interval(runs: Counter[Release], delta: float, relation: NeighbouringRelation, notes: list[str]) -> float:
    """Choose the grid: PLD's memory grows with ε / interval, and any interval errs on the private side."""
    alike: Counter[Release] = Counter()
    for release, count in runs.items():
        mechanism, times = like_poisson(release, relation.moves)
        alike[mechanism] += count * times
    rough = rdp_epsilon(alike, delta, NeighbouringRelation.ADD_REMOVE, notes)
    return _INTERVAL * max(1.0, min(rough, 1e9) / _FINE_EPSILON)
