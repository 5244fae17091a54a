"""Other analyses of the same releases: formulas for one Gaussian mechanism, and advanced composition.

All are upper bounds of ε, as the accountants' are, and looser: for comparison, not for spending.

Each formula gives the noise multiplier σ = std/Δ of one Gaussian mechanism. All but the exact one start from the
tail of the privacy loss, N(1/(2σ²), 1/σ²): with x = εσ - 1/(2σ) it exceeds ε with probability
Q(x) <= e^(-x²/2)/2 for x >= 0, and Q(x) <= e^(-x²/2)/√(2π) for x >= 1; and that this is at most δ suffices.
Since x² >= ε²σ² - ε:

===========  =================================  =========  ==================================================
name         σ                                  holds for  source
===========  =================================  =========  ==================================================
`classical`  √(2 ln(1.25/δ)) / ε                ε < 1      Dwork and Roth 2014, Theorem A.1 (δ <= 0.4)
`tail`       √(2 ln(1/δ)) / ε                   ε <= ln 4  x² >= 2 ln(1/δ) - ε above (δ <= 0.4)
`padded`     √(2 ln(1/δ) + 2ε) / ε              all ε      the same; looser than needed
`refined`    √(min(2 ln(1/δ), r) + ε) / ε       all ε      r = max(1, 2 ln(1/δ) - ln 2π), the second tail
`analytic`   least σ with δ(σ) <= δ             all ε      Balle and Wang 2018, Theorem 8: exact
===========  =================================  =========  ==================================================

T such mechanisms are one whose σ is √T times smaller; the formulas know nothing of sampling.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, get_args

from ..errors import BudgetError
from .composition import LARGEST_STEP_COUNT, largest, merge, smallest
from .releases import (
    Mechanism,
    NeighbouringRelation,
    RandomAllocation,
    Release,
    Run,
    Selection,
    WithoutReplacement,
    check_delta,
    check_target,
)

Formula = Literal["analytic", "refined", "tail", "padded", "classical"]
Comparison = Literal["advanced", "analytic", "refined", "tail", "padded", "classical"]
COMPARISONS: tuple[Comparison, ...] = get_args(Comparison)

_DIGITS = 40
_LARGEST_DELTA = 0.4  # the proofs of `classical` and `tail` need √(2 ln(1.25/δ)) >= 3/2, and x >= 0
_MARGIN = 1e-12  # relative; certified values are tried in steps of it, above the float that was found


def gaussian_delta(noise_multiplier: float, epsilon: float) -> float:
    """Return the least δ of a Gaussian mechanism at ε, exact but for the last digit of a float, rounded up."""
    return math.nextafter(float(_delta(noise_multiplier, epsilon)), math.inf)


def gaussian_noise(formula: Formula, epsilon: float, delta: float) -> float:
    """Return the σ that a formula asks for, for (ε, δ).

    Formal guarantees: the mechanism is (ε, δ)-differentially private; σ of `analytic` was certified by evaluating
    δ(σ) <= δ at 40 digits and exceeds the least one by some 1e-12 of it.

    Raises:
        BudgetError: no budget, or an ε that the formula does not hold for.
    """
    check_target(epsilon, delta)
    return _FORMULAS[formula](epsilon, delta)


def gaussian_epsilon(formula: Formula, noise_multiplier: float, delta: float) -> float:
    """Return the least ε, up to 1e-9 of it, at which a formula asks for no more than this σ.

    Raises:
        BudgetError: the formula holds for no such ε.
    """
    if noise_multiplier == 0:
        return math.inf

    def suffices(epsilon: float) -> bool:
        if formula == "analytic":
            return bool(_delta(noise_multiplier, epsilon) <= delta)
        return _FORMULAS[formula](epsilon, delta) <= noise_multiplier

    limit = _BELOW.get(formula, math.inf)
    high = min(1.0, limit)
    while not suffices(high):
        if high >= limit:
            raise BudgetError(
                f"the {formula} formula is proved for epsilon {_SAID[formula]} only, which needs more noise"
            )
        high = min(2 * high, limit)
    low = 0.0
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if suffices(middle) else (middle, high)
    return high


def _classical(epsilon: float, delta: float) -> float:
    _check_range("classical", epsilon, delta)
    return math.sqrt(2 * math.log(1.25 / delta)) / epsilon


def _tail(epsilon: float, delta: float) -> float:
    _check_range("tail", epsilon, delta)
    return math.sqrt(2 * math.log(1 / delta)) / epsilon


def _padded(epsilon: float, delta: float) -> float:
    return math.sqrt(2 * math.log(1 / delta) + 2 * epsilon) / epsilon


def _refined(epsilon: float, delta: float) -> float:
    first = 2 * math.log(1 / delta)
    return math.sqrt(min(first, max(1.0, first - math.log(2 * math.pi))) + epsilon) / epsilon


def _check_range(formula: Formula, epsilon: float, delta: float) -> None:
    limit = _BELOW[formula]
    if epsilon > limit or delta > _LARGEST_DELTA:
        raise BudgetError(
            f"the {formula} formula is proved for epsilon {_SAID[formula]} and delta <= {_LARGEST_DELTA} only"
        )


def _analytic(epsilon: float, delta: float) -> float:
    from dp_accounting import get_sigma_gaussian

    sigma, step = float(get_sigma_gaussian(epsilon, delta)), _MARGIN
    while _delta(sigma, epsilon) > delta:
        sigma, step = sigma * (1 + step), 2 * step
    return sigma


def _delta(noise_multiplier: float, epsilon: float) -> Any:
    """Return Φ(1/(2σ) - εσ) - e^ε Φ(-1/(2σ) - εσ), as an mpmath number."""
    from mpmath import mp, mpf

    with mp.workdps(_DIGITS):
        half, shift = 1 / (2 * mpf(noise_multiplier)), mpf(epsilon) * mpf(noise_multiplier)
        return mp.ncdf(half - shift) - mp.exp(epsilon) * mp.ncdf(-half - shift)


_FORMULAS: Mapping[Formula, Callable[[float, float], float]] = {
    "analytic": _analytic,
    "refined": _refined,
    "tail": _tail,
    "padded": _padded,
    "classical": _classical,
}
_BELOW: Mapping[Formula, float] = {"tail": math.log(4), "classical": math.nextafter(1, 0)}  # others hold for all ε
_SAID: Mapping[Formula, str] = {"classical": "< 1", "tail": "<= ln 4"}


def comparison_epsilon(
    comparison: Comparison,
    runs: Iterable[Run],
    delta: float,
    relation: NeighbouringRelation = NeighbouringRelation.ADD_REMOVE,
) -> float:
    """Return ε at δ of the composition of `runs`, by advanced composition or by a formula.

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
    """Return by how many K the example moves the sum of the batch that it is in; raises BudgetError if none is."""
    if isinstance(release, Selection):
        raise BudgetError("no closed formula covers the best of several runs: use accountant='rdp'")
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
        raise BudgetError(
            "the advanced composition formula has no amplification by Poisson sampling under replace_one"
        )
    if delta >= rate:
        return 0.0
    epsilon = gaussian_epsilon("analytic", release.noise_multiplier / _moves(release, relation), delta / rate)
    return epsilon + math.log(rate) if epsilon > 700 else math.log1p(rate * math.expm1(epsilon))


def _expm1(value: float) -> float:
    return math.expm1(value) if value < 700 else math.inf
