"""Random allocation: its privacy loss distribution, by the package PLD_accounting (Feldman and Shenfeld 2026).

The package proves what the uniform choice of one batch in t amplifies under add/remove, and rounds
pessimistically. Its σ is the noise over what the example moves its batch by, which is at most K. Its time grows
with the square of the number of grid points, so one epoch is computed on a grid of its own, then brought to that
of the composition.

Formal guarantees: what is returned dominates one epoch, and so its composition with itself and with others.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from functools import lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ..errors import BudgetError
from .rdp import rdp_epsilon
from .releases import Mechanism, NeighbouringRelation, RandomAllocation, Release

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

MISSING = (
    "the pld accountant needs the package PLD_accounting for random allocation: install lipcompile[allocation], "
    "or use accountant='rdp', which counts every epoch as one plain Gaussian mechanism"
)
# Every epoch costs up to this resolution too much, in ε: so much of ε over √epochs is 3 % of the total.
_SHARE = 0.03
# Of the losses of one batch, over 1/σ: 14/σ of them matter, which makes 15000 points and some seconds with numba.
_FINEST = 1e-3
_LOST = 1e-3  # share of δ that cutting off tails may add


def available() -> bool:
    """Whether the package is installed."""
    return find_spec("PLD_accounting") is not None


def allocation_pld(
    release: RandomAllocation, count: int, delta: float, interval: float
) -> PrivacyLossDistribution:
    """Return the PLD of one epoch under add/remove, as fine as `count` such epochs at δ ask for.

    Raises:
        BudgetError: the package is missing, or cannot compute it.
    """
    if not available():
        raise BudgetError(MISSING)
    epochs = 4 ** math.ceil(math.log(count, 4))  # few distinct grids, so that growing counts find theirs again
    tail = _LOST * delta / epochs
    try:
        return _regridded(_one_epoch(release, _resolution(release, epochs, delta), tail), tail, interval)
    except (ValueError, RuntimeError, ArithmeticError, MemoryError) as error:
        raise BudgetError(
            f"PLD_accounting cannot compute the privacy loss distribution of {release}: {error}; use "
            "accountant='rdp', which counts every epoch as one plain Gaussian mechanism"
        ) from error


def _resolution(release: RandomAllocation, epochs: int, delta: float) -> float:
    """Return the error of the loss of one epoch that is aimed at."""
    steps, sigma = release.steps, release.noise_multiplier
    alike: Counter[Release] = Counter({Mechanism(1 / steps, sigma): steps})
    rough = rdp_epsilon(alike, delta, NeighbouringRelation.ADD_REMOVE)
    stages = 2 + 1.5 * math.log2(steps)  # the package shares the error among this many roundings
    return max(_SHARE * rough / math.sqrt(epochs), stages * _FINEST / sigma)


@lru_cache(maxsize=16)
def _one_epoch(release: RandomAllocation, resolution: float, tail: float) -> list[Any]:
    package = _package()
    params = package.PrivacyParams(sigma=release.noise_multiplier, num_steps=release.steps)
    config = package.AllocationSchemeConfig(loss_discretization=resolution, tail_truncation=tail)
    return [
        package.gaussian_allocation_directional_pld(params=params, config=config, direction=direction)
        for direction in (package.Direction.REMOVE, package.Direction.ADD)
    ]


def _regridded(removed_added: list[Any], tail: float, interval: float) -> PrivacyLossDistribution:
    package = _package()
    bound = package.BoundType.DOMINATES
    removed, added = (
        package.rediscretize_dist_by_bound(
            dist=dist, tail_truncation=tail, loss_discretization=interval, bound_type=bound
        )
        for dist in removed_added
    )
    return package.compose_full_pld(remove_dist=removed, add_dist=added, bound_type=bound)


def _package() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ImportWarning)  # it is only slower without numba
        import PLD_accounting
    return PLD_accounting
