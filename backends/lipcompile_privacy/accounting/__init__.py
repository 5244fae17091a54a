"""Privacy accounting: the one small interface to dp-accounting.

Notation (the same in every signature):

====================  ======  =========================================================================
`sampling_rate`       q       probability that an example enters a step's batch (Poisson sampling)
`noise_multiplier`    σ       noise standard deviation on the SUM of gradients, over the per-example bound K
`epsilon`, `delta`    ε, δ    the guarantee
====================  ======  =========================================================================

What is counted are charges: uses of a release, which is one step (`Mechanism`, `WithoutReplacement`) or one epoch
(`RandomAllocation`).

σ is std/K under BOTH neighbouring relations; this package translates. Adding or removing one example moves the sum
by at most K, replacing one by at most 2K. In dp-accounting 0.6 the PLD accountant doubles the sensitivity itself
(`AdjacencyType.REPLACE` shifts both Gaussians away from zero) and so takes std/K, while the RDP accountant
takes std over the true sensitivity, std/(2K), and knows no Poisson sampling under that relation.

Importing this package loads neither torch nor dp-accounting, which takes a second: functions import it.
"""

from __future__ import annotations

from ..errors import BudgetError
from .comparison import (
    COMPARISONS,
    Comparison,
    Formula,
    comparison_epsilon,
    comparison_noise,
    comparison_steps,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_noise,
)
from .composition import (
    LARGEST_NOISE_MULTIPLIER,
    LARGEST_STEP_COUNT,
    SMALLEST_NOISE_MULTIPLIER,
    calibrate_batch_size,
    calibrate_noise_multiplier,
    calibrate_steps,
    check_supported,
    epsilon,
)
from .releases import (
    Accountant,
    Drawing,
    Mechanism,
    NeighbouringRelation,
    RandomAllocation,
    Release,
    Run,
    Sampling,
    Selection,
    WithoutReplacement,
    release_from,
)

__all__ = [
    "COMPARISONS",
    "LARGEST_NOISE_MULTIPLIER",
    "LARGEST_STEP_COUNT",
    "SMALLEST_NOISE_MULTIPLIER",
    "Accountant",
    "BudgetError",
    "Comparison",
    "Drawing",
    "Formula",
    "Mechanism",
    "NeighbouringRelation",
    "RandomAllocation",
    "Release",
    "Run",
    "Sampling",
    "Selection",
    "WithoutReplacement",
    "calibrate_batch_size",
    "calibrate_noise_multiplier",
    "calibrate_steps",
    "check_supported",
    "comparison_epsilon",
    "comparison_noise",
    "comparison_steps",
    "epsilon",
    "gaussian_delta",
    "gaussian_epsilon",
    "gaussian_noise",
    "release_from",
]
