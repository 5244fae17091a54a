"""Constrained layers: geometry, start, projection."""

from __future__ import annotations

import math

import pytest
import torch
from lipcompile_torch import layers
from lipcompile_torch.certify.constraints import Ball, Fixed, Frobenius, Orthogonal, Spectral
from lipcompile_torch.nn.layers import Bias, ConstrainedLayer, Conv1d, Conv2d, Conv3d, Dense
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812


def norm_of(layer: ConstrainedLayer, shape: tuple[int, ...]) -> float:
    """Largest singular value of the layer's linear part, from its dense Jacobian in float64."""
    layer = layer.double()
    basis = torch.eye(math.prod(shape), dtype=torch.float64).reshape(-1, *shape)
    with torch.no_grad():
        matrix = layer(basis) - layer(torch.zeros(1, *shape, dtype=torch.float64))
    return float(torch.linalg.svdvals(matrix.flatten(1))[0])


def convolutions() -> list[tuple[ConstrainedLayer, tuple[int, ...]]]:
    torch.manual_seed(0)
    same = ((1, 1), (1, 1))
    return [
        (Conv1d(2, 3, (3,), (7,), 3, 3, padding=((1, 1),)), (2, 7)),
        (Conv1d(2, 3, (4,), (7,), 4, 4, padding=((1, 2),), constraint=Orthogonal()), (2, 7)),
        (Conv2d(2, 4, (3, 3), (6, 5), 9, 9, padding=same), (2, 6, 5)),
        (Conv2d(4, 4, (3, 3), (6, 5), 9, 9, padding=same, groups=2, constraint=Spectral(2.5)), (4, 6, 5)),
        (Conv2d(2, 4, (3, 3), (6, 6), 4, 9, stride=(2, 2), padding=((0, 1), (0, 1))), (2, 6, 6)),
        (Conv2d(2, 4, (3, 3), (6, 5), 9, 9, padding=same, padding_mode="circular"), (2, 6, 5)),
        (Conv2d(2, 4, (3, 2), (6, 5), 6, 6, padding=((2, 1), (0, 1)), padding_mode="circular"), (2, 6, 5)),
        (Conv2d(2, 4, (2, 2), (6, 5), 4, 4, dilation=(2, 1), constraint=Frobenius(0.4)), (2, 6, 5)),
        (Conv3d(1, 2, (2, 2, 2), (3, 3, 3), 8, 8), (1, 3, 3, 3)),
    ]


@pytest.mark.parametrize("index", range(9))
def test_convolutions_start_at_their_bound_and_stay_below(index: int) -> None:
    layer, shape = convolutions()[index]
    constraint, operator = layer.constraints["weight"]
    weight = layer.get_parameter("weight")
    assert constraint.bound * (1 - 1e-4) < constraint.norm(weight, operator).bound <= constraint.bound
    with torch.no_grad():
        weight.add_(torch.randn_like(weight))
    layer.project_()
    before = weight.detach().clone()
    certified = layer.certified_norms()["weight"]
    layer.project_()
    assert torch.equal(before, weight)
    assert norm_of(layer, shape) <= certified
    if not isinstance(constraint, Frobenius):
        assert certified <= constraint.bound


def test_zero_padding_agrees_with_torch() -> None:
    torch.manual_seed(0)
    layer = Conv2d(2, 4, (3, 3), (6, 5), 9, 9, padding=((1, 1), (2, 2)), stride=(1, 2), bias=1.0)
    with torch.no_grad():
        layer.get_parameter("bias").copy_(torch.randn(4))
    x = torch.randn(3, 2, 6, 5)
    assert torch.allclose(layer(x), F.conv2d(x, layer.weight, layer.bias, (1, 2), (1, 2)))
    skewed = Conv2d(2, 4, (3, 3), (6, 5), 9, 9, padding=((1, 0), (0, 2)))
    assert torch.allclose(skewed(x), F.conv2d(F.pad(x, (0, 2, 1, 0)), skewed.weight))


def test_circular_padding_agrees_with_torch() -> None:
    torch.manual_seed(0)
    layer = Conv2d(2, 4, (3, 3), (6, 5), 9, 9, padding=((1, 0), (0, 2)), padding_mode="circular")
    x = torch.randn(3, 2, 6, 5)
    assert torch.allclose(layer(x), F.conv2d(F.pad(x, (0, 2, 1, 0), mode="circular"), layer.weight))


def test_another_input_size_is_refused() -> None:
    layer = Conv1d(2, 3, (3,), (7,), 3, 3, padding=((1, 1),))
    with pytest.raises(ValueError, match="compiled for inputs of size"):
        layer(torch.ones(1, 2, 8))
    with pytest.raises(ValueError, match="Conv2d: kernel"):
        Conv2d(2, 3, (3,), (7,), 3, 3)
    with pytest.raises(ValueError, match="2→3, 2 groups"):
        Conv1d(2, 3, (3,), (7,), 3, 3, groups=2)


@pytest.mark.parametrize("constraint", [None, Orthogonal(), Spectral(0.5), Frobenius(2.0), Fixed(0.7)])
def test_dense(constraint: Spectral | None) -> None:
    torch.manual_seed(0)
    layer = Dense(6, 4, bias=0.5, constraint=constraint)
    kind, operator = layer.constraints["weight"]
    assert kind.bound * (1 - 1e-5) < kind.norm(layer.weight, operator).bound <= kind.bound
    assert layer.weight.requires_grad == (not isinstance(constraint, Fixed))
    assert layer.bias is not None
    assert not layer.bias.any()
    x = torch.randn(2, 5, 6)
    assert torch.allclose(layer(x), x @ layer.weight.mT)
    with torch.no_grad():
        layer.weight.mul_(7)
        layer.bias.add_(1)
    layer.project_()
    norms = layer.certified_norms()
    assert norms["bias"] <= 0.5
    assert float(torch.linalg.svdvals(layer.weight.detach().double())[0]) <= norms["weight"]


def test_projection_keeps_the_parameter_object_and_its_bits() -> None:
    layer = Dense(6, 4)
    weight, copy = layer.weight, layer.weight.detach().clone()
    version = weight._version
    layer.project_()
    assert layer.weight is weight
    assert torch.equal(weight, copy)
    assert weight._version == version


def test_bias_layer() -> None:
    layer = Bias((3, 1, 1), 0.5)
    with torch.no_grad():
        layer.bias.add_(1)
    layer.project_()
    assert float(layer.bias.detach().double().norm()) <= 0.5
    x = torch.zeros(2, 3, 4, 5)
    assert torch.equal(layer(x), layer.bias.expand(2, 3, 4, 5))
    for wrong in (torch.zeros(3, 1, 1), torch.zeros(2, 1, 4, 5), torch.zeros(2, 4, 5)):
        with pytest.raises(ValueError, match="does not fit"):
            layer(wrong)


def test_trap_15_frozen_biases_are_projected_too() -> None:
    layer = Dense(3, 3, bias=Ball(0.5, trainable=False))
    assert layer.bias is not None
    assert not layer.bias.requires_grad
    with torch.no_grad():
        layer.bias.add_(1)
    layer.project_()
    assert float(layer.bias.detach().double().norm()) <= 0.5


def test_empty_batches() -> None:
    parts: list[tuple[nn.Module, tuple[int, ...]]] = [
        *convolutions(),
        (Dense(4, 3, bias=1.0), (2, 4)),
        (Bias((4,), 1.0), (2, 4)),
    ]
    for layer, shape in parts:
        x = torch.zeros(0, *shape, requires_grad=True)
        torch.autograd.backward(layer(x).sum())
        gradients: list[Tensor | None] = [p.grad for p in layer.parameters() if p.requires_grad]
        assert all(g is not None and not g.any() for g in gradients)


def test_sizes_are_printed() -> None:
    assert "6, 4" in repr(Dense(6, 4))
    assert "kernel_size=(3,)" in repr(layers.Conv1d(1, 1, (3,), (7,), 3, 3))
