"""How many runs a private selection takes: a random number that is never shown (Papernot and Steinke 2022)."""

from __future__ import annotations

import math
import secrets
from random import Random

from .errors import BudgetError

_MOST = 100_000
_TOLERANCE = 1e-12


def number_of_runs(mean: float, shape: float = 0.0, source: Random | None = None) -> int:
    """Draw from the truncated negative binomial distribution of shape η and mean m (Definition 1 there).

    P(k) is in proportion to (1 - γ)^k·Γ(k + η)/(Γ(η)·k!), k >= 1; of shape 0 it is the logarithmic distribution,
    of shape 1 the geometric one.

    Args:
        mean: m >= 1.
        shape: η >= 0.
        source: of uniform numbers; None: the operating system's.

    Raises:
        BudgetError: m or η out of range.
    """
    if not (1 <= mean <= _MOST and 0 <= shape <= 1000):
        raise BudgetError(
            f"a mean of {mean:g} runs, of shape {shape:g}: the mean must be between 1 and {_MOST}, and "
            "the shape >= 0"
        )
    if mean == 1:
        return 1
    gamma = _gamma(mean, shape)
    left = (source or secrets.SystemRandom()).random()
    runs, share = 1, _first(gamma, shape)
    while left > share and share > 0:
        left -= share
        share *= (1 - gamma) * (runs + shape) / (runs + 1)
        runs += 1
    return runs


def _first(gamma: float, shape: float) -> float:
    """Return P(1)."""
    if shape == 0:
        return (1 - gamma) / -math.log(gamma)
    return shape * (1 - gamma) / math.expm1(-shape * math.log(gamma))


def _mean(gamma: float, shape: float) -> float:
    if shape == 0:
        return (1 / gamma - 1) / -math.log(gamma)
    return shape * (1 / gamma - 1) / -math.expm1(shape * math.log(gamma))


def _gamma(mean: float, shape: float) -> float:
    """Return γ in (0, 1) of this mean, which falls with it, by bisection of its logarithm."""
    low, high = math.log(1e-30), -_TOLERANCE
    while high - low > _TOLERANCE:
        middle = (low + high) / 2
        if _mean(math.exp(middle), shape) > mean:
            low = middle
        else:
            high = middle
    return math.exp(high)
