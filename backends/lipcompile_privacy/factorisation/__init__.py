"""Correlated noise by matrix factorisation: strategies C, their certified sensitivity, and their optimisers.

Independent noise Z on gradients G becomes C⁻¹Z: what is released, G + C⁻¹Z = C⁻¹(CG + Z), is one Gaussian
mechanism on CG followed by post-processing: its noise multiplier is that of Z over the sensitivity of C. Sums of
gradients, which is what a trained weight is, then carry the noise AC⁻¹Z (A: lower triangle of ones), whose error
C is chosen to make small.

    strategy = optimal_banded(steps=2048, bands=32)     # compile time
    data = strategy.to_dict()                           # JSON; `strategy_from` reads and checks it
    strategy.stream()                                   # C⁻¹Z with unit sensitivity, step by step

Nothing here imports torch; `stream` does. The optimisers import numpy and scipy, the strategies neither.
"""

from __future__ import annotations

from ..errors import FactorisationError
from .optimise import optimal_banded, optimal_blt, planned_strategy
from .participation import Cyclic, MinSeparation, Participation
from .strategies import BandedToeplitz, Blt, Strategy, strategy_from

__all__ = [
    "BandedToeplitz",
    "Blt",
    "Cyclic",
    "FactorisationError",
    "MinSeparation",
    "Participation",
    "Strategy",
    "optimal_banded",
    "optimal_blt",
    "planned_strategy",
    "strategy_from",
]
