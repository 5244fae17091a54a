"""Closed forms to compare with: the Gaussian mechanism by textbook, refined and exact, and advanced composition.

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

T such mechanisms are one whose σ is √T times smaller; nothing here knows of sampling.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal

from ..errors import BudgetError
from .guarantee import check_target

Formula = Literal["analytic", "refined", "tail", "padded", "classical"]

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

    high = min(1.0, _BELOW[formula])
    while not suffices(high):
        if high >= _BELOW[formula]:
            raise BudgetError(
                f"the {formula} formula is proved for epsilon {_SAID[formula]} only, which needs more noise"
            )
        high = min(2 * high, _BELOW[formula])
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
_BELOW: Mapping[Formula, float] = {
    "analytic": math.inf,
    "refined": math.inf,
    "tail": math.log(4),
    "padded": math.inf,
    "classical": math.nextafter(1, 0),
}
_SAID: Mapping[Formula, str] = {"classical": "< 1", "tail": "<= ln 4"}
