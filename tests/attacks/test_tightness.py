"""Every constant of every rule is attained, up to 3%, so that a smaller one would be wrong."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from lipcompile.numbers.certified import Certified
from lipcompile.ops import LOSS_BY_NAME, OP_BY_NAME

from . import harness
from .catalogue import ATTACKS, LOSS_ATTACKS

TIGHT = 0.97


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
    named = {name if name.split(":")[1:] in (["weight"], ["bias"]) else name.split(":")[0] for name in found}
    assert named == set(harness.rules_of(OP_BY_NAME[op]))
    assert min(found.values()) >= TIGHT, found


@pytest.mark.parametrize("name", LOSS_BY_NAME)
def test_the_constant_of_a_loss_is_attained(name: str) -> None:
    for case, logits, target in LOSS_ATTACKS[name].witnesses():
        num = Certified()
        claimed = case.claim(num).upper
        ratio = harness.loss_slope(case, logits, target) / claimed
        assert TIGHT <= ratio <= 1 + harness.SLACK, (case, ratio)
