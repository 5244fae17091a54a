"""Claims of another library that explicit counter-examples broke: the same counter-examples against ours.

Each test names the claim and the factor by which it failed there (lip-dp, commit ecd2958). Ours must hold, or the
model must be refused.
"""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest
import torch
from lipcompile_torch import layers
from lipcompile_torch.certify.constraints import Orthogonal, Spectral
from lipcompile_torch.nn import functional, losses

import lipcompile
from lipcompile.core.derivation import Derivation
from lipcompile.core.record import Constraint
from lipcompile.emitters.torch.emit import emit
from lipcompile.numbers.certified import Certified
from lipcompile.ops.activation.rules import LeakyReLU
from lipcompile.ops.conv.rules import Conv
from lipcompile.ops.table import OP_BY_NAME
from tests.attacks import harness, points
from tests.attacks.harness import Point
from tests.attacks.witness import worst_direction
from tests.networks import Network, certified


def check(path: Path, body: str, loss: str = "cross_entropy") -> Derivation:
    path.write_text(f"model m {{ input x: tensor[4], norm <= 1\n {body}\n loss {loss} }}")
    return lipcompile.check(str(path))


@pytest.mark.slow
@pytest.mark.parametrize(("size", "factor"), [(3, 2.9), (5, 4.7), (7, 6.3)])
def test_the_kernel_gradient_of_a_spectral_convolution(size: int, factor: float) -> None:
    """Broken by 2.9, 4.7 and 6.3: its claim was about X. Ours is attained from above."""
    half = size // 2
    conv = Conv(1, (size, size), (1, 1), ((half, half), (half, half)), (1, 1))
    case = harness.case(
        OP_BY_NAME["conv"], conv, [(1, 28, 28)], [1], {"weight": Constraint("spectral", Fraction(1))}
    )
    ones = {"weight": points.into(case, "weight", torch.ones(1, 1, size, size, dtype=torch.float64))}
    start = Point((torch.ones(1, 28, 28, dtype=torch.float64),), ones)
    x = worst_direction(case, start)
    attained = harness.spectral(harness.parameter_jacobian(case, Point((x,), ones), "weight"))
    claimed = harness.claims(case, Certified())["kappa:weight"].upper
    assert factor <= attained <= claimed <= attained * 1.1


def test_an_orthogonal_kernel_is_one_lipschitz() -> None:
    """Broken by 1.016 to 1.20 a layer, 1.39 for a stack of four: four of ours in a row."""
    torch.manual_seed(0)
    stack = [
        layers.Conv2d(4, 4, (3, 3), (8, 8), 9, 9, padding=((1, 1), (1, 1)), constraint=Orthogonal())
        for _ in range(4)
    ]
    network = torch.nn.Sequential(*stack).double()
    for layer in stack:
        layer.project_()
    jacobian = harness.jacobian(lambda x: network(x[None])[0], torch.zeros(4, 8, 8, dtype=torch.float64))
    assert harness.spectral(jacobian) <= 1


def test_a_bias_on_an_image() -> None:
    """Broken by 28 (its gradient) and 14 (the next layer) on 28×28."""
    net = Network((1, 28, 28), bias=Fraction(1))
    net.conv(1)
    net.flatten()
    net.dense(2)
    bounds = certified(net.finish())
    assert bounds.gradient["conv.bias"].upper >= 28 * bounds.cotangent["conv"].upper * (1 - 1e-12)
    assert bounds.norm["conv"].upper == 1 + 28


@pytest.mark.parametrize("loss", [losses.multiclass_kr, lambda z, y: losses.multiclass_hkr(z, y, alpha=2.0)])
def test_a_loss_does_not_count_the_classes_of_the_batch(loss: object) -> None:
    """Broken by 14 (batch 100, one rare class) and 141 (batch 1000): theirs normalises by class counts."""
    torch.manual_seed(0)
    z, y = torch.randn(100, 3), torch.cat([torch.zeros(99), torch.ones(1)]).long()
    together, alone = loss(z, y), torch.cat([loss(z[i : i + 1], y[i : i + 1]) for i in range(100)])  # type: ignore[operator]
    assert torch.equal(together, alone)


def test_a_projection_without_orthogonalisation_is_certified() -> None:
    """Broken by 1.06 to 1.12: power iteration alone comes from below."""
    for seed in range(20):
        torch.manual_seed(seed)
        layer = layers.Dense(64, 64, constraint=Spectral(1.0))
        with torch.no_grad():
            layer.weight.copy_(torch.randn(64, 64))
        layer.project_()
        assert float(torch.linalg.matrix_norm(layer.weight.detach().double(), 2)) <= 1


def test_a_function_of_ones_own_is_refused(tmp_path: Path) -> None:
    """A lambda was taken for 1-Lipschitz."""
    derivation = check(tmp_path / "m.lip", "lambda\n dense(2)")
    assert [d.code for d in derivation.diagnostics] == ["LIP011"]


def test_a_negative_slope_of_ten_counts_as_ten() -> None:
    """Broken by 10."""
    net = Network((4,))
    net.dense(4)
    net.add("leaky_relu", LeakyReLU(Fraction(-10)))
    net.dense(1)
    bounds = certified(net.finish(None))
    assert bounds.slope["dense"].upper == 10


def test_an_activation_inside_a_dense_layer_is_refused(tmp_path: Path) -> None:
    """It was ignored, whatever its slope."""
    derivation = check(tmp_path / "m.lip", "dense(2, activation=exp)")
    assert [d.code for d in derivation.diagnostics] == ["LIP012"]


def test_a_sum_reduction_is_what_the_bound_is_of(tmp_path: Path) -> None:
    """Broken by the batch size: here the criterion is a sum over a fixed normaliser, and others are refused."""
    derivation = check(tmp_path / "m.lip", "dense(2)")
    space: dict[str, type[torch.nn.Module]] = {}
    exec(compile(emit(derivation), "emitted.py", "exec"), space)
    module, x, y = space["Model"](), torch.randn(6, 4), torch.tensor([0, 1, 0, 1, 0, 1])
    module.normaliser = 3.0  # type: ignore[assignment]
    total = module.criterion(module(x), y)  # type: ignore[operator]
    torch.testing.assert_close(total, module.per_example_loss(module(x), y).sum() / 3)  # type: ignore[operator]


@pytest.mark.parametrize("target", [torch.tensor([[0.0, 10.0]]), torch.tensor([[0.5, 0.5]]), torch.tensor([1.0])])
def test_labels_that_are_no_classes_are_refused(target: torch.Tensor) -> None:
    """Scaled, soft and real labels were accepted: broken by 5 to 10."""
    with pytest.raises(ValueError, match="class indices"):
        losses.cross_entropy(torch.randn(1, 2), target)


def test_a_declared_batch_size_is_not_believed(tmp_path: Path) -> None:
    """Broken by 256: the bound of one example does not depend on any batch size."""
    analysis = check(tmp_path / "m.lip", "dense(2)").analysis
    assert analysis is not None
    space: dict[str, type[torch.nn.Module]] = {}
    exec(compile(emit(check(tmp_path / "m.lip", "dense(2)")), "emitted.py", "exec"), space)
    module = space["Model"]().double()
    x, y = torch.randn(1, 4, dtype=torch.float64) * 100, torch.tensor([0])
    module.per_example_loss(module(x), y).sum().backward()  # type: ignore[operator]
    bound = analysis.parameters["dense.weight"].value
    gradient = module.get_parameter("dense.weight").grad
    assert bound is not None
    assert gradient is not None
    assert float(gradient.norm()) <= bound


def test_centring_an_example_leaves_the_others_alone() -> None:
    """Broken by 1.6 to 3.2: theirs averages over the batch on two-dimensional input."""
    torch.manual_seed(0)
    x = torch.randn(5, 8)
    centred = functional.center(x, (0,))
    torch.testing.assert_close(centred, x - x.mean(dim=1, keepdim=True))
    assert torch.equal(centred[2:3], functional.center(x[2:3], (0,)))
