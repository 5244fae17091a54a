"""Rules that no input attains: how near the best witness comes, and why the rest is lost.

Such a rule is sound but not tight. `test_tightness` demands the stated share; `test_mutations` does not
ask that each step of the rule be seen, and shrinks the rule as a whole to just below the share.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Loose:
    """share: attained over claimed by the best witness, rounded down. reason: what the proof gives away."""

    share: float
    reason: str


# Op, then rule as in `harness.rules_of` ("norm", "lipschitz", "kappa:query", …; a rule per input is one rule).
LOOSE: Mapping[str, Mapping[str, Loose]] = {
    "lrn": dict.fromkeys(
        ("lipschitz", "cotangent"),
        Loose(0.84, "a channel's own term and the others of its window are bounded apart; ascents find k^-β only"),
    ),
    "scattering2d": dict.fromkeys(
        ("norm", "lipschitz", "cotangent"),
        Loose(
            0.65, "every entry counts as the one that padding repeats most, and no border of the output is cut off"
        ),
    ),
}


_CONTRAST = "how far weights can differ: counts only between even and certain weights, where no witness is near"
_PULL = "how strongly queries pull together when weights are nearly even: values outweigh keys there"
_NORM_ONLY = "what the norm of the logits says of the slope: exact for even probabilities, where it counts least"

# Op, rule -> functions and arguments whose steps count only between the regimes where it is attained, and why.
UNSEEN: Mapping[str, Mapping[str, Mapping[str, str]]] = {
    "attention": {
        "norm": dict.fromkeys(("contrast", "slope", "deviation", "query", "key"), _CONTRAST),
        "lipschitz": {"contrast": _CONTRAST, "pull": _PULL, "total": _CONTRAST, "x0.R": _PULL},
        "kappa:value": dict.fromkeys(("contrast", "slope", "deviation", "query", "key"), _CONTRAST),
        "kappa:output": dict.fromkeys(("contrast", "slope", "deviation", "query", "key"), _CONTRAST),
    },
    "dot_product_attention": {
        "norm": dict.fromkeys(("contrast", "factor", "magnitude", "deviation"), _CONTRAST),
        "lipschitz": {"contrast": _CONTRAST},
    },
    "softmax": {"lipschitz": dict.fromkeys(("gap", "softmax_entry", "x0.X", "x0.R"), _NORM_ONLY)},
}

UNSEEN_OF_LOSSES: Mapping[str, Mapping[str, str]] = {}


def share(op: str, rule: str, tight: float) -> float:
    """What a witness of this rule must attain."""
    found = LOOSE.get(op, {}).get(rule)
    return tight if found is None else found.share
