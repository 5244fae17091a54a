"""No instance of any op or loss exceeds what its rules claim.

The small run is part of every test run. The deep one draws 10,000 instances of each op and loss:
`pytest -m nightly tests/attacks/test_rules.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from lipcompile.numbers.certified import Certified
from lipcompile.ops.table import LOSSES, OP_BY_NAME, OPS

from . import harness, instances, points
from .catalogue import ATTACKS, LOSS_ATTACKS
from .harness import Bound, Case, LossCase

SMALL, DEEP = 20, 10_000
SMALL_LOSS, DEEP_LOSS = 20, 10_000


def claimed(case: Case) -> dict[str, float]:
    return {name: bound.upper for name, bound in harness.claims(case, Certified()).items()}


def attack(case: Case, generator: torch.Generator) -> list[str]:
    """Measure at a random point and where the ascents from it end."""
    bounds = claimed(case)
    start = points.random_point(case, generator)
    reached = [start, *points.ascents(case, start, generator)]
    return [fault for point in reached for fault in harness.broken(harness.attained(case, point), bounds)]


def attack_loss(case: LossCase, generator: torch.Generator) -> list[float]:
    """Return the gradient norms, over the claim, at logits in the ball and where ascents from them end."""
    num = Certified()
    bound = case.claim(num).upper
    found = []
    for start in _logits(case, generator):
        target = LOSS_ATTACKS[case.loss.name].target(case, generator)
        risen = list(points.rise(_slope(case, target), start))[-1:]
        found += [harness.loss_slope(case, _admitted(case, z), target) / bound for z in (start, *risen)]
    return found


def _slope(case: LossCase, target: Any) -> Callable[[Tensor], Tensor]:
    return lambda logits: harness.loss_gradient(case, logits, target).norm()


def _admitted(case: LossCase, logits: Tensor) -> Tensor:
    row = case.norm if case.row is None else case.row
    return points.within(logits, Bound(case.norm, row, row))


def _logits(case: LossCase, generator: torch.Generator) -> list[Tensor]:
    on_border = [points.on_sphere(case.shape, case.norm, generator) for _ in range(3)]
    inside = torch.rand((), generator=generator, dtype=torch.float64)
    return [*on_border, on_border[0] * inside, -on_border[0], torch.zeros_like(on_border[0])]


@pytest.mark.parametrize("op", OP_BY_NAME)
def test_no_instance_exceeds_its_claims(op: str) -> None:
    check_op(op, SMALL)


@pytest.mark.parametrize("name", LOSS_ATTACKS)
def test_no_logits_exceed_the_constant_of_the_loss(name: str) -> None:
    check_loss(name, SMALL_LOSS)


@pytest.mark.nightly
@pytest.mark.parametrize("op", OP_BY_NAME)
def test_no_instance_exceeds_its_claims_nightly(op: str) -> None:
    check_op(op, DEEP)


@pytest.mark.nightly
@pytest.mark.parametrize("name", LOSS_ATTACKS)
def test_no_logits_exceed_the_constant_of_the_loss_nightly(name: str) -> None:
    check_loss(name, DEEP_LOSS)


def check_op(op: str, count: int) -> None:
    generator = torch.Generator().manual_seed(count)
    for case in islice(instances.cases(op, seed=count), count):
        faults = attack(case, generator)
        assert not faults, f"{case.site}, bounds {case.bounds}, constraints {case.constraints}: {faults}"


def check_loss(name: str, count: int) -> None:
    generator = torch.Generator().manual_seed(count)
    for case in islice(instances.loss_cases(name, seed=count), count):
        ratios = attack_loss(case, generator)
        assert all(ratio <= 1 + harness.SLACK for ratio in ratios), f"{case}: {ratios}"


def test_every_op_and_loss_is_attacked() -> None:
    assert set(ATTACKS) == {op.name for op in OPS}
    assert {*LOSS_ATTACKS, "own"} == {loss.name for loss in LOSSES}  # nothing is claimed of a function of Python


def test_the_oracle_convolves_as_torch_does() -> None:
    """The oracle's own definition of a convolution, against torch's."""
    generator = torch.Generator().manual_seed(0)
    functions: dict[int, Any] = {1: torch.conv1d, 2: torch.conv2d, 3: torch.conv3d}
    for case in islice(instances.cases("conv", seed=1), 60):
        conv, point = case.site.attributes, points.random_point(case, generator)
        sides = [side for pair in reversed(conv.padding) for side in pair]
        padded = F.pad(point.xs[0][None], sides, "constant" if conv.padding_mode == "zeros" else conv.padding_mode)
        weight, bias = point.theta["weight"], point.theta.get("bias")
        convolve = functions[len(conv.kernel)]
        expected = convolve(padded, weight, bias, conv.stride, 0, conv.dilation, conv.groups)[0]
        torch.testing.assert_close(harness.run(case, point), expected)
