"""Pools and norms along axes against torch's own and against their definitions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import pytest
import torch
from lipcompile_torch.nn import functional as lf
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

Map = Callable[[Tensor], Tensor]
UNEVEN = ((1, 0), (0, 2))


def at(x: Tensor, place: Sequence[int]) -> Tensor:
    """One position of [B, C, *spatial], [B, C]."""
    for index in place:
        x = x.select(2, index)
    return x


def gradient(function: Map, x: Tensor) -> Tensor:
    inputs = x.clone().requires_grad_()
    (found,) = torch.autograd.grad(function(inputs).sum(), inputs)
    return found


@pytest.mark.parametrize(("kernel", "stride", "padding"), [(2, 2, 0), (3, 2, 1), (3, 1, 1), (4, 3, 2)])
def test_averages_that_leave_the_padding_out(kernel: int, stride: int, padding: int) -> None:
    x = torch.randn(2, 3, 7, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    sides, none = ((padding, padding),) * 2, ((0, 0),) * 2
    found = lf.avg_pool(x, (kernel,) * 2, (stride,) * 2, sides, counted=none)
    expected = F.avg_pool2d(x, kernel, stride, padding, count_include_pad=False)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(
        lf.avg_pool(x, (kernel,) * 2, (stride,) * 2, sides), F.avg_pool2d(x, kernel, stride, padding)
    )


@pytest.mark.parametrize("p", [1, 2, 3, 7])
@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "dilation"),
    [((2, 3), (2, 1), UNEVEN, (1, 1)), ((2, 2), (1, 2), UNEVEN, (2, 1)), ((3,), (2,), ((1, 1),), (1,))],
)
def test_p_norms_of_windows(
    p: int,
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[tuple[int, int], ...],
    dilation: tuple[int, ...],
) -> None:
    """Each output, tap by tap."""
    sizes = (5, 4)[: len(kernel)]
    x = torch.randn(2, 3, *sizes, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = lf.lp_pool(x, p, kernel, stride, padding, dilation)
    for output in itertools.product(*map(range, found.shape[2:])):
        total = torch.zeros(2, 3, dtype=torch.float64)
        for tap in itertools.product(*map(range, kernel)):
            axes = zip(output, stride, tap, dilation, padding, strict=True)
            place = [o * s + t * d - low for o, s, t, d, (low, _) in axes]
            if all(0 <= i < n for i, n in zip(place, sizes, strict=True)):
                total += at(x, place).abs() ** p
        torch.testing.assert_close(at(found, output), total ** (1 / p))


NORMS: dict[str, Map] = {
    "l2_norm": lambda x: lf.l2_norm(x, (0, -1)),
    "lp_pool 1": lambda x: lf.lp_pool(x, 1, (3,)) / math.sqrt(3),
    "lp_pool 2": lambda x: lf.lp_pool(x, 2, (3,)),
    "lp_pool 5": lambda x: lf.lp_pool(x, 5, (3,)),
}


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_gradients_are_finite_and_short_at_every_scale(name: str, dtype: torch.dtype) -> None:
    """At 0 the gradient is 0; near 0 and far from it no power leaves the range of the dtype."""
    function, generator = NORMS[name], torch.Generator().manual_seed(0)
    assert not gradient(function, torch.zeros(2, 2, 3, dtype=dtype)).any()
    for exponent in (-44, -38, -30, -20, -10, 0, 10, 17):
        x = (torch.randn(16, 1, 3, dtype=torch.float64, generator=generator) * 10.0**exponent).to(dtype)
        slopes = gradient(function, x).double().flatten(1).norm(dim=1)
        assert (slopes <= 1 + 8 * torch.finfo(dtype).eps).all()
        if exponent >= -10:
            assert (slopes > 0.5).all()


def test_large_powers_do_not_overflow() -> None:
    x = torch.tensor([[[3e30, -4e30, 1e-30]]])
    assert lf.lp_pool(x, 8, (3,)).item() == pytest.approx(4e30 * (1 + 0.75**8) ** 0.125, rel=1e-5)
    assert lf.l2_norm(x, (0, 1)).item() == pytest.approx(5e30, rel=1e-5)


def test_second_derivatives() -> None:
    x = torch.randn(2, 2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda y: lf.l2_norm(y, (0, 1)), x)
    assert torch.autograd.gradgradcheck(lambda y: lf.lp_pool(y, 3, (2,), (1,)), x)


@pytest.mark.parametrize("name", NORMS)
def test_an_empty_batch(name: str) -> None:
    x = torch.zeros(0, 2, 3, requires_grad=True)
    y = NORMS[name](x)
    assert y.shape[0] == 0
    assert torch.autograd.grad(y.sum(), x)[0].shape == x.shape


def test_an_empty_batch_of_averages() -> None:
    assert lf.avg_pool(torch.zeros(0, 2, 5), (3,), (2,), ((1, 1),), counted=((0, 0),)).shape == (0, 2, 3)


def test_l2_norm_is_that_of_its_axes() -> None:
    x = torch.randn(2, 3, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(lf.l2_norm(x, (0, 2)), x.square().sum((1, 3)).sqrt())
    assert torch.allclose(lf.l2_norm(x, (-2,), keep=True), x.square().sum(2, keepdim=True).sqrt())
    assert lf.l2_norm(x.to(torch.bfloat16), (1,)).dtype == torch.bfloat16


@pytest.mark.parametrize("axes", [(), (3,), (-4,)])
def test_no_axis_reaches_the_batch(axes: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="axes"):
        lf.l2_norm(torch.ones(2, 3, 4, 5), axes)
