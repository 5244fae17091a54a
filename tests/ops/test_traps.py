"""Traps that published libraries and papers fell into, numbered as in docs/theory.md.

The ones that concern the rules of the compiler: a true gradient or norm is set against the claim, and against
the wrong claim that the trap would lead to.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction
from pathlib import Path

import pytest
import torch

from lipcompile.analysis.canonical import canonical
from lipcompile.core.record import Constraint, Extent, NoAttributes, Shape
from lipcompile.numbers.certified import Certified
from lipcompile.ops.conv.rules import Conv
from lipcompile.ops.counting import Mode
from lipcompile.ops.loss.rules import Cosine, CrossEntropy
from lipcompile.ops.pool.rules import Pool
from lipcompile.ops.shape.rules import ClipGradient, Transpose
from lipcompile.ops.softmax.rules import LogSoftmax
from lipcompile.ops.table import LOSS_BY_NAME, OP_BY_NAME
from tests.attacks import harness, points
from tests.attacks.catalogue import ATTACKS
from tests.attacks.harness import Case, Point
from tests.attacks.witness import worst_direction
from tests.networks import ONE, UNIT, Network, certified


def claims(case: Case) -> dict[str, float]:
    return {name: bound.upper for name, bound in harness.claims(case, Certified()).items()}


def convolution(shape: Shape, mode: Mode, *, size: int = 3, bias: Constraint | None = None) -> tuple[Case, Point]:
    """A kernel of ones, scaled to norm 1, on the image that it stretches most; the size is kept."""
    half = size // 2
    conv = Conv(1, (size, size), (1, 1), ((half, half), (half, half)), (1, 1), padding_mode=mode)
    constraints = {"weight": UNIT} | ({"bias": bias} if bias else {})
    case = harness.case(OP_BY_NAME["conv"], conv, [shape], [1], constraints)
    weight = points.into(case, "weight", torch.ones(1, 1, size, size, dtype=torch.float64))
    theta = {"weight": weight} | ({"bias": torch.ones(1, dtype=torch.float64)} if bias else {})
    start = Point((torch.ones(shape, dtype=torch.float64),), theta)
    return case, Point((worst_direction(case, start),), theta)


def test_trap_01_a_bias_on_an_image_counts_every_pixel() -> None:
    """On 12×12, √P = 12: the forgotten factor of the bias gradient; the output norm grows by 12·B."""
    case, point = convolution((1, 12, 12), "circular", bias=Constraint("ball", ONE))
    found, claimed = harness.attained(case, point), claims(case)
    assert found["kappa:bias"] == pytest.approx(12, rel=1e-9)
    assert claimed["kappa:bias"] == 12
    assert found["norm"] == pytest.approx(1 + 12, rel=1e-9)
    assert claimed["norm"] == 13


@pytest.mark.parametrize("size", [3, 5, 7])
def test_trap_02_the_factor_of_a_kernel_is_counted_once(size: int) -> None:
    """The gradient of a size×size kernel of norm 1 reaches size·X: dividing by about `size` again is unsound."""
    case, point = convolution((1, 9, 9), "circular", size=size)
    found, claimed = harness.attained(case, point)["kappa:weight"], claims(case)["kappa:weight"]
    assert found == pytest.approx(size, rel=1e-9)
    assert found <= claimed * (1 + 1e-9)
    assert found > claimed / size * (size - 1)


def test_trap_05_a_convolution_bounded_by_its_kernel_norm_needs_the_overlap() -> None:
    """‖conv(x)‖ <= ‖K‖·‖x‖ is false for the Frobenius norm of K: the truth is 3 times that for 3×3."""
    case, point = convolution((1, 9, 9), "circular")
    entries = point.theta["weight"] / point.theta["weight"].norm()
    bounded = harness.case(
        case.op, case.site.attributes, case.site.inputs, [1], {"weight": Constraint("frobenius", ONE)}
    )
    output = harness.run(bounded, Point(point.xs, {"weight": entries}))
    assert float(output.norm()) == pytest.approx(3, rel=1e-9)
    assert claims(bounded)["norm"] == 3


@pytest.mark.parametrize("op", ["sigmoid", "softplus"])
def test_trap_08_activations_that_do_not_keep_zero(op: str) -> None:
    """At x = 0 the output norm is √n·φ(0), where s·X is 0."""
    x = torch.zeros(16, dtype=torch.float64)
    case = harness.case(OP_BY_NAME[op], NoAttributes(), [(16,)], [Fraction(1, 1000)])
    at_zero = {"sigmoid": 1 / 2, "softplus": math.log(2)}[op]
    assert float(harness.run(case, Point((x,))).norm()) == pytest.approx(4 * at_zero, rel=1e-12)
    assert 4 * at_zero <= claims(case)["norm"] <= 4 * at_zero + 1.001e-3


def test_trap_10_the_cosine_loss_has_constant_one_over_its_floor() -> None:
    """Also for a floor above 1, where 1/m² would be too small by the factor m."""
    num = Certified()
    for floor in (Fraction(1, 10), Fraction(5)):
        found = LOSS_BY_NAME["cosine"].lipschitz(num, Cosine(floor), (5,), Extent(*[num.of(10)] * 3)).upper
        assert found == pytest.approx(1 / float(floor), rel=1e-15)


def test_trap_11_a_weight_used_twice_has_the_sum_of_its_bounds() -> None:
    """-w·(w·x) at w = x = 1 has gradient -2; each use alone has bound 1, and the root of their squares is √2."""
    net = Network((1,))
    net.dense(1, shared="tied")
    net.dense(1, shared="tied")
    weight = torch.ones((), dtype=torch.float64, requires_grad=True)
    (truth,) = torch.autograd.grad(-weight * (weight * 1), weight)
    assert certified(net.finish("kr", NoAttributes())).gradient["tied"].upper == 2 == abs(float(truth))


def test_trap_12_a_gradient_clip_bounds_each_example_before_the_mean() -> None:
    """G = min(L, C): with C = 1/4 below and C = 100 above the constant of the loss, whatever the batch size."""
    found = []
    for bound in (Fraction(1, 4), Fraction(100)):
        net = Network((4,))
        net.dense(10)
        net.add("clip_gradient", ClipGradient(bound))
        found.append(certified(net.finish()).gradient["dense.weight"].upper)
    assert found == pytest.approx([0.25, 1.0147964], abs=1e-7)


def test_trap_13_cross_entropy_is_fused_with_its_softmax() -> None:
    """log-softmax alone stretches by √K when one logit leads; the fused loss never exceeds √2."""
    logits = torch.tensor([60.0, *[0.0] * 99], dtype=torch.float64)
    alone = harness.jacobian(lambda z: torch.log_softmax(z, dim=0), logits)
    assert harness.spectral(alone) == pytest.approx(math.sqrt(100), rel=1e-2)
    net = Network((4,))
    net.dense(100)
    net.add("log_softmax", LogSoftmax())
    graph, _ = canonical(net.finish("nll", NoAttributes()))
    assert certified(graph).loss_lipschitz.upper <= math.sqrt(2) * (1 + 1e-15)
    num = Certified()
    fused = LOSS_BY_NAME["cross_entropy"].lipschitz(num, CrossEntropy(), (100,), Extent(*[num.of(60)] * 3))
    assert fused.upper <= math.sqrt(2) * (1 + 1e-15)


def test_trap_16_axes_are_those_of_one_example() -> None:
    """There is no way to write the batch axis: a permutation names each axis of the example once."""
    net = Network((3, 4))
    net.add("transpose", Transpose((0, 2, 1)))
    assert net.end.shape is None
    assert [d.code for d in net.builder.diagnostics] == ["LIP102"]


def test_trap_19_overlapping_and_dilated_windows_are_counted() -> None:
    """Windows of 2 taps share entries at stride 1, and also at stride 2 if the taps are 2 apart."""
    overlapping = Pool((2,), (1,), ((0, 0),), (1,))
    dilated = Pool((2,), (2,), ((0, 0),), (2,))
    for pool, length, reads in ((overlapping, 5, 2), (dilated, 7, 2)):
        case = harness.case(OP_BY_NAME["max_pool"], pool, [(1, length)], [1])
        x = torch.zeros(1, length, dtype=torch.float64)
        x[0, 2] = 1
        assert float(harness.run(case, Point((x,))).norm()) == pytest.approx(math.sqrt(reads), rel=1e-12)
        assert claims(case)["norm"] == pytest.approx(math.sqrt(reads), rel=1e-12)


def test_trap_20_a_contracting_activation_between_expanding_layers() -> None:
    """S = 1/4 (sigmoid's slope), U = 4, no bias: S·U = 1, but the next layer's input may reach X, not S·X.

    The recurrence is evaluated, not the closed form of the paper: X after W is 4, after sigmoid 4/4 + √n/2.
    """
    net = Network((4,), weight=Constraint("spectral", Fraction(4)))
    net.dense(4)
    net.add("sigmoid", NoAttributes())
    net.dense(4)
    norms = [bound.upper for bound in certified(net.finish()).norm.values()]
    assert norms == pytest.approx([1, 4, 2, 8], rel=1e-15)


def test_trap_21_the_projection_on_the_ball_is_defined_at_zero() -> None:
    """Its Jacobian at 0 is the identity, within the claim l = 1."""
    case = ATTACKS["clip_norm"].witnesses()[0][0]
    zero = Point((torch.zeros(case.site.inputs[0], dtype=torch.float64),))
    assert harness.spectral(harness.input_jacobian(case, zero, 0)) == 1


def test_every_trap_of_the_theory_has_a_test_by_its_number() -> None:
    files = Path(__file__).parents[1].rglob("test_*.py")
    found = {
        int(n) for file in files for n in re.findall(r"def test_trap_(\d\d)_", file.read_text(encoding="utf-8"))
    }
    assert found == set(range(1, 27))


def test_every_trap_of_the_documentation_has_a_test() -> None:
    """Trap 3 has a test of projection, 26 one of the documentation; the list has no gap."""
    root = Path(__file__).parents[1]
    listed = (root.parent / "docs/theory.md").read_text(encoding="utf-8").split("## Traps")[1].split("\n## ")[0]
    numbers = [int(number) for number in re.findall(r"^(\d+)\. ", listed, re.MULTILINE)]
    assert numbers == list(range(1, len(numbers) + 1))
    tests = "".join(path.read_text(encoding="utf-8") for path in root.rglob("test_*.py"))
    assert {int(number) for number in re.findall(r"def test_trap_(\d+)_", tests)} == set(numbers)
