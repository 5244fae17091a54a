"""Every constant of every rule is attained, up to 3%, so that a smaller one would be wrong."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from lipcompile.numbers.certified import Certified
from lipcompile.ops.table import OP_BY_NAME

from . import harness
from .catalogue import ATTACKS, LOSS_ATTACKS
from .loose import LOOSE, share

TIGHT = 0.97


def rule_of(claim: str) -> str:
    """The rule that makes a claim: a rule with a number per input makes one claim per input."""
    kind, _, index = claim.partition(":")
    return kind if index.isdigit() else claim


def ratios(op: str) -> Mapping[str, float]:
    """Return attained over claimed, the largest over the witnesses, by rule."""
    best: dict[str, float] = {}
    for drawn, point in ATTACKS[op].witnesses():
        case = harness.fitted(drawn, point)
        claimed, found = harness.claims(case, Certified()), harness.attained(case, point)
        bounds = {name: bound.upper for name, bound in claimed.items()}
        faults = list(harness.broken(found, bounds))
        assert not faults, f"{case}: {faults}"
        for name, value in found.items():
            best[name] = max(best.get(name, 0.0), value / bounds[name])
    return best


@pytest.mark.parametrize("op", OP_BY_NAME)
def test_each_constant_of_an_op_is_attained(op: str) -> None:
    found = ratios(op)
    named = {rule_of(name) for name in found}
    assert named == set(harness.rules_of(OP_BY_NAME[op]))
    for name, ratio in found.items():
        assert ratio >= share(op, rule_of(name), TIGHT), (name, ratio)


def test_what_is_called_loose_is_loose() -> None:
    for op, rules in LOOSE.items():
        found = ratios(op)
        for rule, loose in rules.items():
            best = min(ratio for name, ratio in found.items() if rule_of(name) == rule)
            assert loose.share <= best < TIGHT, (op, rule, best)
            assert loose.reason


@pytest.mark.parametrize("name", LOSS_ATTACKS)
def test_the_constant_of_a_loss_is_attained(name: str) -> None:
    for case, logits, target in LOSS_ATTACKS[name].witnesses():
        num = Certified()
        claimed = case.claim(num).upper
        ratio = harness.loss_slope(case, logits, target) / claimed
        assert TIGHT <= ratio <= 1 + harness.SLACK, (case, ratio)
