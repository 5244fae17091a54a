"""Every claim of every op and loss: one that is smaller by 2e-9 is refused, some that are larger are loose."""

from __future__ import annotations

from math import inf
from random import Random

import pytest
from lipcompile_verify import verify

from lipcompile.diagnostics import InputError
from lipcompile.ops.table import LOSSES, OPS

from .models import document, drawn, one_op
from .mutations import LOSS_CLAIM, Json, Place, at, is_bound, places, put

pytestmark = pytest.mark.slow

# The compiler counts causal rows as seeing fewer keys than they do, and rounds the loss of logits without a bound.
ROUGH = {"attention", "dot_product_attention", "own_network"}


def claims(certificate: Json) -> list[Place]:
    """Return the way to every bound."""
    found = [place for place in places(certificate) if place[0] in ("steps", "totals")]
    return [place for place in found if is_bound(at(certificate, place))]


def check_all(certificate: Json, most: int = 100) -> None:
    """Change each claim, or `most` of them: each to less, and some of them to more."""
    verdict = verify(certificate)
    assert not verdict.problems
    assert not verdict.loose  # so that no claim is 1e-9 above what is derived
    found = claims(certificate)
    for number, place in enumerate(Random(0).sample(found, min(most, len(found)))):
        bound = float.fromhex(at(certificate, place))
        if bound == 0:
            continue
        smaller = bound * (1 - 2e-9) if bound < inf else 1e300
        assert verify(put(certificate, place, smaller.hex())).problems, place
        if bound < inf and number % 4 == 0:
            verdict = verify(put(certificate, place, (bound * 1.001).hex()))
            # The one constant that others are divided by: see `test_a_larger_l_needs_...`.
            assert place == LOSS_CLAIM or not verdict.problems, place
            assert verdict.loose


@pytest.mark.parametrize("op", [op.name for op in OPS if op.name not in ROUGH])
def test_no_claim_of_an_op_can_be_smaller(op: str) -> None:
    for seed in range(4):
        graph = one_op(op, seed)
        assert graph is not None
        try:
            certificate = document(graph)
        except InputError:
            continue
        check_all(certificate)
        return


@pytest.mark.parametrize("loss", [loss.name for loss in LOSSES if loss.name != "own"])
def test_no_claim_of_a_loss_can_be_smaller(loss: str) -> None:
    graph = one_op("dense", 0, loss)
    assert graph is not None
    check_all(document(graph))


@pytest.mark.parametrize("seed", range(3))
def test_no_claim_of_a_graph_can_be_smaller(seed: int) -> None:
    check_all(drawn(seed), most=40)


def test_a_larger_l_needs_larger_bounds_without_clips() -> None:
    """A clip of the loss to C < L leaves C/L of K without clips: with twice the L and the same K, half of that.

    So both may be claimed to be twice as large, and K alone, but not L alone.
    """
    certificate = drawn(0)
    places = [("steps", "parameters", i, "unclipped") for i in range(len(certificate["steps"]["parameters"]))]

    def doubled(found: Json, changed: list[Place]) -> Json:
        for place in changed:
            found = put(found, place, (2 * float.fromhex(at(found, place))).hex())
        return found

    assert not verify(doubled(certificate, [LOSS_CLAIM, *places])).problems
    assert not verify(doubled(certificate, places)).problems
    (problem, *_) = verify(doubled(certificate, [LOSS_CLAIM])).problems
    assert "the gradient without clips, at L = " in str(problem)
    for place in places:  # each of them
        assert verify(doubled(certificate, [LOSS_CLAIM, *(p for p in places if p != place)])).problems
    assert verify(put(certificate, LOSS_CLAIM, "inf")).problems
