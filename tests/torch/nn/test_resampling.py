"""Copies, interpolation, padded and transposed convolutions against torch's own and against their matrices."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from lipcompile_torch.certify.constraints import Constraint, Frobenius, Orthogonal, Spectral
from lipcompile_torch.nn import functional as lf
from lipcompile_torch.nn.layers import (
    ConstrainedLayer,
    Conv1d,
    Conv2d,
    ConvTranspose1d,
    ConvTranspose2d,
    ConvTranspose3d,
)
from lipcompile_torch.nn.resampling import Mode
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

Map = Callable[[Tensor], Tensor]
MODES: tuple[Mode, ...] = ("circular", "reflect", "replicate")


def norm_of(function: Map, shape: tuple[int, ...]) -> float:
    """Largest singular value of the linear part, from the dense matrix in float64."""
    basis = torch.eye(math.prod(shape), dtype=torch.float64).reshape(-1, *shape)
    with torch.no_grad():
        matrix = function(basis) - function(torch.zeros(1, *shape, dtype=torch.float64))
    return float(torch.linalg.svdvals(matrix.flatten(1))[0])


FUNCTIONS: list[tuple[Map, tuple[int, ...]]] = [
    *((lambda x, m=mode: lf.pad(x, ((1, 0), (2, 3)), m), (2, 4, 4)) for mode in ("zeros", *MODES)),
    (lambda x: lf.upsample(x, (2, 3), "nearest"), (2, 3, 4)),
    (lambda x: lf.upsample(x, (2, 3), "bilinear"), (2, 3, 4)),
    (lambda x: lf.upsample(x, (2, 1, 2), "bilinear", True), (2, 3, 1, 2)),
    (lambda x: lf.upsample(x, (3,), "bicubic"), (2, 5)),
    (lambda x: lf.gather(x, (2, 0, 2), axis=1), (2, 3)),
    (lambda x: lf.expand(x, (2, 3, 4)), (3, 1)),
]


@pytest.mark.parametrize(("function", "shape"), FUNCTIONS)
def test_a_batch_is_its_examples_in_every_dtype(function: Map, shape: tuple[int, ...]) -> None:
    x = torch.randn(3, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert torch.equal(function(x)[1], function(x[1:2])[0])
    assert function(x[:0]).shape == (0, *function(x).shape[1:])
    for dtype, tolerance in ((torch.float32, 1e-6), (torch.bfloat16, 2e-2)):
        found = function(x.to(dtype))
        assert found.dtype == dtype
        torch.testing.assert_close(found.double(), function(x.to(dtype).double()), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("function", "shape"), FUNCTIONS)
def test_gradients_are_those_of_a_linear_map(function: Map, shape: tuple[int, ...]) -> None:
    x = torch.zeros(2, *shape, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(function, (x,))
    assert torch.autograd.gradgradcheck(function, (x,))


@pytest.mark.parametrize("mode", MODES)
def test_padding_agrees_with_torch_on_every_rank(mode: Mode) -> None:
    x = torch.randn(2, 2, 3, 4, 3)
    assert torch.equal(lf.pad(x, ((1, 2), (3, 0), (0, 1)), mode), F.pad(x, (0, 1, 3, 0, 1, 2), mode))
    assert torch.equal(lf.pad(x[..., 0, 0], ((2, 1),), mode), F.pad(x[..., 0, 0], (2, 1), mode))


def test_padding_beyond_the_axis() -> None:
    assert lf.pad(torch.ones(1, 1, 2), ((5, 7),), "replicate").shape == (1, 1, 14)
    for mode, most in (("circular", 3), ("reflect", 2)):
        with pytest.raises(ValueError, match="does not fit"):
            lf.pad(torch.ones(1, 1, 3), ((0, most + 1),), mode)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("mode", "corners"), [("bilinear", False), ("bilinear", True), ("bicubic", False), ("bicubic", True)]
)
@pytest.mark.parametrize("factor", [(2, 2), (3, 1), (4, 5)])
def test_interpolation_agrees_with_torch(mode: str, corners: bool, factor: tuple[int, int]) -> None:
    x = torch.randn(2, 3, 4, 1, dtype=torch.float64)
    for image in (x, torch.randn(2, 1, 5, 7, dtype=torch.float64)):
        expected = F.interpolate(image, scale_factor=factor, mode=mode, align_corners=corners)
        torch.testing.assert_close(lf.upsample(image, factor, mode, corners), expected)  # type: ignore[arg-type]


def test_long_axes_keep_their_weights_in_single_precision() -> None:
    """Torch computes coordinates in float32, which are off by 1e-4 at the end of this axis."""
    x = torch.randn(1, 1, 3000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    exact = lf.upsample(x, (3,), "bilinear")
    assert float((lf.upsample(x.float(), (3,), "bilinear") - exact).abs().max()) < 1e-6


def test_tensors_of_inference_mode_are_not_kept() -> None:
    x = torch.randn(2, 1, 6)
    with torch.inference_mode():
        lf.upsample(x, (2,), "bicubic")
    x.requires_grad_()
    lf.upsample(x, (2,), "bicubic").sum().backward()  # type: ignore[no-untyped-call]


def test_what_is_not_there_is_not_gathered() -> None:
    with pytest.raises(ValueError, match="outside an example"):
        lf.gather(torch.ones(2, 3), (0,), axis=1)
    with pytest.raises((IndexError, RuntimeError)):
        lf.gather(torch.ones(2, 3), (3,), axis=0)
    with pytest.raises(RuntimeError):
        lf.expand(torch.ones(2, 3), (4,))


# Layers


def count(size: int, kernel: int, padding: int, mode: Mode) -> tuple[int, int]:
    """m and r·v of a line with stride 1, from what torch's padding puts where."""
    line = F.pad(torch.arange(float(size))[None, None], (padding, padding), mode)[0, 0].long()
    read = line.unfold(0, kernel, 1)
    one_tap = max(int((column == entry).sum()) for column in read.T for entry in range(size))
    return int(torch.bincount(read.flatten()).max()), one_tap * kernel


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("rank", [1, 2])
def test_convolutions_of_every_padding_agree_with_torch_and_stay_below_their_norm(mode: Mode, rank: int) -> None:
    torch.manual_seed(0)
    m, rv = count(5, 3, 2, mode)
    size, sides = (5,) * rank, ((2, 2),) * rank
    kind = Conv1d if rank == 1 else Conv2d
    layer = kind(2, 3, (3,) * rank, size, m**rank, rv**rank, padding=sides, padding_mode=mode, bias=1.0).double()
    with torch.no_grad():
        layer.get_parameter("weight").add_(torch.randn_like(layer.weight))
        layer.get_parameter("bias").add_(1)
    x = torch.randn(3, 2, *size, dtype=torch.float64)
    convolve = F.conv1d if rank == 1 else F.conv2d
    expected = convolve(F.pad(x, (2, 2) * rank, mode), layer.weight, layer.bias)
    torch.testing.assert_close(layer(x), expected)
    layer.project_()
    assert norm_of(layer, (2, *size)) <= layer.certified_norms()["weight"] <= 1


def transposed() -> list[tuple[ConstrainedLayer, Map, tuple[int, ...]]]:
    """Layers with counts made by hand, and what torch makes of their weights."""
    torch.manual_seed(0)
    line = ConvTranspose1d(2, 3, (3,), (6,), 3, 3, padding=((1, 1),), bias=1.0)
    strided = ConvTranspose1d(2, 4, (3,), (6,), 2, 3, stride=(2,), padding=((1, 1),), output_padding=(1,))
    image = ConvTranspose2d(2, 4, (3, 2), (3, 4), 6, 6, groups=2, constraint=Orthogonal())
    skewed = ConvTranspose2d(2, 3, (2, 2), (3, 3), 4, 4, padding=((1, 0), (0, 1)), dilation=(2, 1), bias=1.0)
    volume = ConvTranspose3d(1, 2, (2, 2, 2), (2, 2, 2), 1, 8, stride=(2, 2, 2), constraint=Frobenius(2.0))
    return [
        (line, lambda x: F.conv_transpose1d(x, line.weight, line.bias, padding=1), (2, 6)),
        (strided, lambda x: F.conv_transpose1d(x, strided.weight, None, 2, 1, 1), (2, 6)),
        (image, lambda x: F.conv_transpose2d(x, image.weight, groups=2), (2, 3, 4)),
        (
            skewed,
            lambda x: F.conv_transpose2d(x, skewed.weight, skewed.bias, dilation=(2, 1))[..., 1:, :-1],
            (2, 3, 3),
        ),
        (volume, lambda x: F.conv_transpose3d(x, volume.weight, stride=2), (1, 2, 2, 2)),
    ]


@pytest.mark.parametrize("index", range(5))
def test_transposed_convolutions_agree_with_torch_and_stay_below_their_norm(index: int) -> None:
    layer, expected, shape = transposed()[index]
    constraint, operator = layer.constraints["weight"]
    start = constraint.norm(layer.get_parameter("weight"), operator).bound
    assert constraint.bound * (1 - 1e-4) < start <= constraint.bound
    layer = layer.double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(torch.randn_like(parameter))
    layer.project_()
    x = torch.randn(3, *shape, dtype=torch.float64)
    torch.testing.assert_close(layer(x), expected(x))
    assert layer(x[:0]).shape == (0, *layer(x).shape[1:])
    assert norm_of(layer, shape) <= layer.certified_norms()["weight"] * (1 + 1e-12)


def test_the_norm_of_a_transposed_convolution_is_near() -> None:
    torch.manual_seed(0)
    for stride, kernel in itertools.product((1, 2, 3), (2, 3)):
        taps = -(-kernel // stride)
        layer = ConvTranspose1d(3, 3, (kernel,), (16,), taps, kernel, stride=(stride,)).double()
        true = norm_of(layer, (3, 16))
        assert true <= layer.certified_norms()["weight"] <= true * 1.03


def test_other_sizes_are_refused() -> None:
    bound: Constraint = Spectral()
    layer = ConvTranspose1d(2, 3, (3,), (6,), 3, 3, constraint=bound)
    with pytest.raises(ValueError, match="compiled for inputs of size"):
        layer(torch.ones(1, 2, 7))
    with pytest.raises(ValueError, match="below the stride"):
        ConvTranspose1d(2, 3, (3,), (6,), 3, 3, output_padding=(1,))
    with pytest.raises(ValueError, match="groups"):
        ConvTranspose1d(3, 2, (3,), (6,), 3, 3, groups=2)
