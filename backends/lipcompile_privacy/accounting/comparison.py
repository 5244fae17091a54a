"""What other analyses say of the same releases: formulas for one Gaussian mechanism, and advanced composition.

All are upper bounds of ε, as the accountants' are, and looser: for comparison, not for spending.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Literal, get_args

from ..errors import BudgetError
from .calibration import LARGEST_STEP_COUNT, largest, smallest
from .composition import merge
from .gaussian import gaussian_epsilon, gaussian_noise
from .guarantee import NeighbouringRelation, check_delta, check_target
from .releases import Mechanism, RandomAllocation, Release, Run, WithoutReplacement

Comparison = Literal["advanced", "analytic", "refined", "tail", "padded", "classical"]
COMPARISONS: tuple[Comparison, ...] = get_args(Comparison)


def comparison_epsilon(
    comparison: Comparison,
    runs: Iterable[Run],
    delta: float,
    relation: NeighbouringRelation = NeighbouringRelation.ADD_REMOVE,
) -> float:
    """Return ε at δ of the composition of `runs`, by advanced composition or by a formula of `gaussian`.

    The formulas take every charge as a plain Gaussian mechanism, which dominates it, without what sampling
    amplifies; advanced composition (Dwork and Roth 2014, Theorem 3.20; of unequal charges, Kairouz, Oh and
    Viswanath 2015, Theorem 3.5) knows what it amplifies of one step's (ε, δ) (Balle, Barthe and Gaboardi 2018).

    Raises:
        BudgetError: δ outside (0, 1), or what the analysis has no theorem for.
    """
    check_delta(delta)
    merged = merge(runs)
    if not merged:
        return 0.0
    if any(release.noise_multiplier == 0 for release in merged):
        return math.inf
    if comparison == "advanced":
        return _advanced(merged, delta, relation)
    distances = (
        _moves(release, relation) * math.sqrt(n) / release.noise_multiplier for release, n in merged.items()
    )
    return gaussian_epsilon(comparison, 1 / math.hypot(*distances), delta)


def comparison_noise(
    comparison: Comparison,
    target_epsilon: float,
    target_delta: float,
    release: Callable[[float], Release],
    charges: int,
    relation: NeighbouringRelation = NeighbouringRelation.ADD_REMOVE,
) -> float:
    """Return the σ at which `charges` of release(σ) meet the target by this analysis.

    Raises:
        BudgetError: no budget, or what the analysis has no theorem for.
    """
    check_target(target_epsilon, target_delta)
    if comparison == "advanced":
        return smallest(
            lambda sigma: comparison_epsilon(comparison, [(release(sigma), charges)], target_delta, relation),
            1.0,
            target_epsilon,
            target_delta,
        )
    one = gaussian_noise(comparison, target_epsilon, target_delta)
    return one * _moves(release(1.0), relation) * math.sqrt(charges)


def comparison_steps(
    comparison: Comparison,
    target_epsilon: float,
    target_delta: float,
    release: Release,
    relation: NeighbouringRelation = NeighbouringRelation.ADD_REMOVE,
) -> int:
    """Return how many charges of a release meet the target by this analysis, at most `LARGEST_STEP_COUNT`.

    Raises:
        BudgetError: no budget, or what the analysis has no theorem for.
    """
    check_target(target_epsilon, target_delta)
    if comparison == "advanced":
        return largest(
            lambda n: comparison_epsilon(comparison, [(release, n)], target_delta, relation) <= target_epsilon,
            LARGEST_STEP_COUNT,
        )
    one = gaussian_noise(comparison, target_epsilon, target_delta)
    return min(LARGEST_STEP_COUNT, math.floor((release.noise_multiplier / (one * _moves(release, relation))) ** 2))


def _moves(release: Release, relation: NeighbouringRelation) -> int:
    """Return by how many K the example moves the sum of the batch that it is in."""
    return 2 if isinstance(release, WithoutReplacement) else relation.moves


def _advanced(runs: dict[Release, int], delta: float, relation: NeighbouringRelation) -> float:
    """Give half of δ to the composition and share the other half evenly among the charges; or compose plainly."""
    charges = sum(runs.values())
    each = {release: _one(release, delta / (2 * charges), relation) for release in runs}
    squares = sum(count * each[release] ** 2 for release, count in runs.items())
    excess = sum(count * each[release] * _expm1(each[release]) for release, count in runs.items())
    plain = sum(count * _one(release, delta / charges, relation) for release, count in runs.items())
    return min(plain, math.sqrt(2 * math.log(2 / delta) * squares) + excess)


def _one(release: Release, delta: float, relation: NeighbouringRelation) -> float:
    """Return ε of one charge at δ: of a Gaussian at δ/q by the exact formula, amplified."""
    rate = 1.0 if isinstance(release, RandomAllocation) else release.sampling_rate
    if rate < 1 and isinstance(release, Mechanism) and relation is NeighbouringRelation.REPLACE_ONE:
        raise BudgetError("advanced composition has no amplification by Poisson sampling under replace_one here")
    if delta >= rate:
        return 0.0
    epsilon = gaussian_epsilon("analytic", release.noise_multiplier / _moves(release, relation), delta / rate)
    return epsilon + math.log(rate) if epsilon > 700 else math.log1p(rate * math.expm1(epsilon))


def _expm1(value: float) -> float:
    return math.expm1(value) if value < 700 else math.inf
