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
LOOSE: Mapping[str, Mapping[str, Loose]] = {}


def share(op: str, rule: str, tight: float) -> float:
    """What a witness of this rule must attain."""
    found = LOOSE.get(op, {}).get(rule)
    return tight if found is None else found.share
