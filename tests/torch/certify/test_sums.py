"""Sums of gradients: what they lose to rounding, and that they are the sums."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from lipcompile_torch import native
from lipcompile_torch.certify import sums
from lipcompile_torch.nn import reading
from lipcompile_torch.nn.reading import Geometry, convolve
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

UNIT = 2.0**-24


def worst(found: Tensor, exact: Tensor, lengths: Tensor) -> float:
    """Return the largest error of an entry in units of u·Σ|v_t|."""
    return float(((found.double() - exact).abs() / lengths / UNIT).max())


ALIKE = [1 / 3, 0.1, 0.7, 1.1]
"""Terms whose sums drift: each addition in float32 rounds to the same side until the sum doubles."""


@pytest.mark.parametrize("value", ALIKE)
@pytest.mark.parametrize(
    "shape", [(1, 1, 448, 448), (7, 3, 50, 9), (700, 2), (3, 5000, 4), (64, 64), (65, 3), (0, 4)]
)
def test_sums_of_entries_stay_within_their_depth(shape: tuple[int, ...], value: float) -> None:
    x = torch.full(shape, value)
    x += 1e-3 * torch.rand(shape, generator=torch.Generator().manual_seed(0))
    kept = (shape[1], 1, 1) if len(shape) == 4 else shape[-1:]
    axes = (0, 2, 3) if len(shape) == 4 else tuple(range(len(shape) - 1))
    exact = x.double().sum(axes).reshape(kept)
    found = sums.sum_to(x, kept)
    assert found.shape == kept
    assert worst(found, exact, exact.clamp_min(1e-30)) <= sums.DEPTH


@pytest.mark.parametrize("way", [sums._run_by_run, sums._all_runs])
@pytest.mark.parametrize("value", ALIKE)
@pytest.mark.parametrize("rows", [65, 128, 512, 513, 5000, 200_000])
def test_sums_of_products_stay_within_their_depth(
    rows: int, value: float, way: Callable[[Tensor, Tensor], Tensor]
) -> None:
    left, right = torch.full((rows, 2), value), torch.full((rows, 3), 1 + 2.0**-12)
    exact = left.double().T @ right.double()
    assert worst(way(left, right), exact, exact) <= sums.DEPTH


@pytest.mark.parametrize("way", [sums._run_by_run, sums._all_runs])
def test_no_product_is_added_to_a_sum_by_a_library(way: Callable[[Tensor, Tensor], Tensor]) -> None:
    """MKL adds the terms of `addmm` to the sum one by one where there is AVX-512: it lost up to 87 u, not 74."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        way(torch.ones(700, 2), torch.ones(700, 3))
    called = {event.name for event in profile.events() or []}
    assert called & {"aten::mm", "aten::bmm"}
    assert not called & {"aten::addmm", "aten::addmm_", "aten::baddbmm", "aten::baddbmm_"}


def test_torchs_own_convolution_is_off_by_more() -> None:
    """So that the tests above have something to find."""
    kernel = torch.ones(1, 1, 1, 1, requires_grad=True)
    convolved = F.conv2d(torch.full((1, 1, 448, 448), 1 / 3), kernel)
    torch.autograd.backward(convolved, torch.ones_like(convolved))
    assert kernel.grad is not None
    exact = torch.tensor(448**2 / 3, dtype=torch.float64)
    assert worst(kernel.grad, exact, exact) > 5 * sums.DEPTH


@pytest.mark.parametrize(
    ("dtype", "tokens"), [(torch.float16, 3000), (torch.bfloat16, 380), (torch.float32, 16384)]
)
def test_equal_tokens_do_not_drift(dtype: torch.dtype, tokens: int) -> None:
    """Added in the dtype of the table they had 1.245, 1.253 and 1.000235 times the length."""
    table = torch.ones(4, 3, dtype=dtype, requires_grad=True)
    rows = reading.select(table, torch.full((1, tokens), 2))
    cotangent = torch.full_like(rows, 0.0123)
    torch.autograd.backward(rows, cotangent)
    assert table.grad is not None
    exact = cotangent[0, 0].double() * tokens
    assert float(((table.grad[2].double() - exact) / exact).abs().max()) <= torch.finfo(dtype).eps


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_added_in_float32(dtype: torch.dtype) -> None:
    left = torch.full((4096, 2), 0.1, dtype=dtype)
    exact = left.double().T @ left.double()
    assert worst(sums.sum_of_products(left, left), exact, exact) <= sums.DEPTH
    assert worst(sums._sum_along(left, 0).sum(0), left.double().sum(0), left.double().sum(0)) <= sums.DEPTH


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(0, 4, 9), (3, 4, 9), (70, 3, 2**15)])
def test_examples_in_half_precision_have_the_sums_and_norms_of_float64(
    shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    torch.testing.assert_close(sums.sum_of_each(x, (2,)), x.double().sum(2), rtol=0, atol=1e-9)
    torch.testing.assert_close(sums.example_norms(x), x.double().flatten(1).norm(dim=1), rtol=1e-12, atol=0)
    x.requires_grad_()
    (back,) = torch.autograd.grad(sums.example_norms(x).sum(), x)
    expected = (x / x.double().flatten(1).norm(dim=1)[:, None, None]).to(dtype)
    torch.testing.assert_close(back, expected, rtol=2e-2, atol=1e-7)


# --- they are the gradients of the operations they belong to -----------------------------------------------------


def gradients(output: Tensor, wrt: list[Tensor]) -> tuple[Tensor, ...]:
    weights = torch.randn(output.shape, dtype=output.dtype, generator=torch.Generator().manual_seed(1))
    return torch.autograd.grad((output * weights).sum(), wrt, create_graph=True)


def compare(own: Callable[..., Tensor], plain: Callable[..., Tensor], *operands: Tensor) -> None:
    """First and second derivatives of both, in float64."""
    found = []
    for function in (own, plain):
        leaves = [operand.clone().requires_grad_() for operand in operands]
        first = gradients(function(*leaves), leaves)
        total = torch.stack([part.square().sum() for part in first]).sum()
        second = torch.autograd.grad(total, leaves, allow_unused=True, materialize_grads=True)
        found.append([function(*leaves).detach(), *first, *second])
    torch.testing.assert_close(found[0], found[1])


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("lead", [(5,), (5, 7), (70, 2, 3), (0,), (0, 3)])
def test_linear_is_the_linear_map(lead: tuple[int, ...]) -> None:
    compare(reading.linear, F.linear, normal(*lead, 4), normal(3, 4), normal(3))


CONVOLUTIONS: list[dict[str, Any]] = [
    {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1},
    {"stride": (2, 1), "padding": (0, 2), "dilation": (1, 2), "groups": 2},
    {"stride": (3, 2), "padding": (2, 1), "dilation": (2, 1), "groups": 4},
]


@pytest.mark.parametrize("case", CONVOLUTIONS)
@pytest.mark.parametrize("batch", [3, 0])
def test_convolutions_are_torchs(case: dict[str, Any], batch: int) -> None:
    x, bias, kernel = normal(batch, 4, 9, 8), normal(8), normal(8, 4 // case["groups"], 3, 2)
    compare(
        lambda x, k, b: convolve(x, k, b, Geometry(**case)),
        lambda x, k, b: F.conv2d(x, k, b, **case),
        x,
        kernel,
        bias,
    )


@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_transposed_convolutions_are_torchs(case: dict[str, Any]) -> None:
    x, bias, kernel = normal(3, 4, 5, 6), normal(8), normal(4, 8 // case["groups"], 3, 2)
    extra = tuple(stride - 1 for stride in case["stride"])
    compare(
        lambda x, k, b: convolve(x, k, b, Geometry(**case, transposed=True, output_padding=extra)),
        lambda x, k, b: F.conv_transpose2d(x, k, b, output_padding=extra, **case),
        x,
        kernel,
        bias,
    )


@pytest.mark.parametrize("rank", [1, 3])
def test_convolutions_of_other_ranks_are_torchs(rank: int) -> None:
    x, kernel = normal(2, 3, *(5, 4, 6)[:rank]), normal(4, 3, *(3, 2, 2)[:rank])
    plain: Any = {1: F.conv1d, 3: F.conv3d}[rank]
    ones = (1,) * rank
    geometry = Geometry(stride=(2,) * rank, padding=ones, dilation=ones, groups=1)
    compare(
        lambda x, kernel: convolve(x, kernel, None, geometry),
        lambda x, kernel: plain(x, kernel, stride=2, padding=1),
        x,
        kernel,
    )


@pytest.mark.parametrize("value", ALIKE)
def test_kernels_of_large_images_do_not_drift(value: float) -> None:
    """Two numbers: a kernel of one tap and its bias, over 448² equal positions."""
    x = torch.full((1, 1, 448, 448), value)
    kernel, bias = torch.ones(1, 1, 1, 1, requires_grad=True), torch.zeros(1, requires_grad=True)
    convolved = convolve(x, kernel, bias, Geometry((1, 1), (0, 0), (1, 1), 1))
    cotangent = torch.full_like(convolved, 0.1)
    torch.autograd.backward(convolved, cotangent)
    assert kernel.grad is not None
    assert bias.grad is not None
    exact = cotangent.double().sum()
    assert worst(bias.grad, exact, exact) <= sums.DEPTH
    exact = (cotangent.double() * x.double()).sum()
    assert worst(kernel.grad, exact, exact) <= sums.DEPTH


@pytest.mark.skipif(native.kernels is None, reason="the package was installed without a compiler")
def test_one_example_changes_the_gradient_of_a_kernel_by_its_own() -> None:
    """Not by what the others' sums are rounded to: the sum in float64 hides nothing of so few examples."""
    kernel = torch.zeros(4, 3, 3, 3, requires_grad=True)
    x, cotangent = normal(64, 3, 9, 9).float(), normal(64, 4, 7, 7).float()
    geometry = Geometry((1, 1), (0, 0), (1, 1), 1)

    def gradient(some: slice) -> Tensor:
        found = torch.autograd.grad(convolve(x[some], kernel, None, geometry), kernel, cotangent[some])
        return found[0].double()

    own, others, together = gradient(slice(0, 1)), gradient(slice(1, 64)), gradient(slice(0, 64))
    last = 2.0**-24 * (own.abs() + others.abs() + together.abs())
    assert bool(((together - others - own).abs() <= last).all())


def test_the_gradient_of_a_kernel_can_be_differentiated_again() -> None:
    kernel = torch.ones(1, 1, 1, 1, requires_grad=True)
    x = torch.full((2, 1, 3, 3), 2.0, requires_grad=True)
    made = convolve(x, kernel, None, Geometry((1, 1), (0, 0), (1, 1), 1))
    (first,) = torch.autograd.grad(made.square().sum(), kernel, create_graph=True)  # Σ 2·k·x² = 144
    (second,) = torch.autograd.grad(first.sum(), kernel)
    assert float(first.detach()) == 144.0
    assert float(second) == 144.0
