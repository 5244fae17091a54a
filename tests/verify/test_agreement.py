"""Certificates of the compiler verify: of examples, of every op in random uses, of random graphs."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest
from lipcompile_verify import verify
from lipcompile_verify.losses import LOSSES
from lipcompile_verify.rules import OPS as RULES

import lipcompile
from lipcompile.certificates import certificate
from lipcompile.core.record import NoAttributes
from lipcompile.diagnostics import InputError
from lipcompile.ops.table import OP_BY_NAME, OPS

from ..networks import Network
from ..nights import by_day
from .models import document, drawn, one_op

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
OPEN = {"deep.lip"}  # its depth has no value


def test_every_op_and_every_loss_has_a_rule() -> None:
    from lipcompile.ops.table import LOSSES as COMPILED

    assert set(RULES) == {op.name for op in OPS}
    assert set(LOSSES) == {loss.name for loss in COMPILED}


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.lip")), ids=lambda path: path.name)
def test_examples_verify(path: Path) -> None:
    if path.name in OPEN:
        pytest.skip("its depth is open")
    verdict = verify(certificate(lipcompile.check(str(path))))
    assert not verdict.problems


@pytest.mark.parametrize("most", by_day([2], [2, 5]))
@pytest.mark.parametrize("op", [op.name for op in OPS])
def test_random_uses_of_every_op_verify(op: str, most: int) -> None:
    found = 0
    for seed in range(5):
        if found == most:
            break
        graph = one_op(op, seed)
        assert graph is not None
        try:
            made = document(graph)
        except InputError:  # a parameter is trained before an op that jumps
            continue
        assert not verify(made).problems
        found += 1
    assert found


@pytest.mark.parametrize("seed", range(20))
def test_random_graphs_verify(seed: int) -> None:
    assert not verify(drawn(seed)).problems


@pytest.mark.parametrize("size", ["1e-17", "1e-60", "1e-300"])
@pytest.mark.parametrize("op", ["selu", "gelu"])
def test_differences_near_0_verify(op: str, size: str) -> None:
    """1 - e^-x is below 200 bits of 1 there, and at most x."""
    net = Network((1,), norm=Fraction(size))
    net.add(op, OP_BY_NAME[op].attributes())
    net.dense(1)
    assert not verify(document(net.finish("kr", NoAttributes()))).problems
