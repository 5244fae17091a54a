"""L2 pooling against autograd's derivative of the definition, in every layout, backwards twice, by vmap."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from lipcompile_torch.nn import functional as lf
from torch import Tensor
from torch.func import grad, vmap
from torch.nn import functional as F  # noqa: N812

from tests.nights import by_day

Map = Callable[[Tensor], Tensor]
Sizes = tuple[int, ...]


def by_definition(x: Tensor, kernel: Sizes, stride: Sizes, dilation: Sizes) -> Tensor:
    """√Σx² of each window, windows cut out by `unfold`."""
    for axis, (taps, step, gap) in enumerate(zip(kernel, stride, dilation, strict=True), 2):
        x = x.unfold(axis, gap * (taps - 1) + 1, step)[..., ::gap]
    return x.square().sum(tuple(range(-len(kernel), 0))).sqrt()


WINDOWS: dict[str, tuple[Sizes, Sizes, Sizes, Sizes]] = {  # size, kernel, stride, dilation
    "tiles": ((6, 8), (2, 2), (2, 2), (1, 1)),
    "tiles, rest": ((7, 9), (2, 2), (2, 2), (1, 1)),
    "tiles, rest on one axis": ((7, 8), (2, 4), (2, 4), (1, 1)),
    "tiles of three": ((6, 9), (3, 3), (3, 3), (1, 1)),
    "one row": ((6, 8), (1, 2), (1, 2), (1, 1)),
    "overlapping": ((7, 6), (3, 2), (2, 1), (1, 1)),
    "gaps": ((7, 8), (2, 1), (3, 3), (1, 1)),
    "dilated": ((7, 8), (2, 3), (1, 2), (3, 2)),
    "line": ((8,), (2,), (2,), (1,)),
    "overlapping line": ((9,), (3,), (2,), (2,)),
    "volume": ((4, 6, 2), (2, 2, 2), (2, 2, 2), (1, 1, 1)),
    "overlapping volume": ((4, 5, 3), (2, 3, 1), (1, 2, 1), (1, 1, 2)),
}
LAYOUTS: dict[str, Map] = {
    "contiguous": lambda x: x.contiguous(),
    "channels last": lambda x: x.movedim(1, -1).contiguous().movedim(-1, 1),
    "reversed": lambda x: x.movedim(0, -1).contiguous().movedim(-1, 0),
    "expanded": lambda x: x[:1].expand_as(x),
}


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", WINDOWS)
def test_values_and_gradients_are_those_of_the_definition(name: str, layout: str) -> None:
    size, kernel, stride, dilation = WINDOWS[name]
    x = LAYOUTS[layout](drawn(3, 4, *size)).requires_grad_()
    found = lf.l2_pool(x, kernel, stride, None, dilation)
    expected = by_definition(x, kernel, stride, dilation)
    torch.testing.assert_close(found, expected)
    for cotangent in (LAYOUTS[layout](drawn(*found.shape)), torch.ones(()).expand_as(found)):
        gradients = [torch.autograd.grad(y, x, cotangent, retain_graph=True)[0] for y in (found, expected)]
        torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_precisions_against_float64(dtype: torch.dtype) -> None:
    exact = drawn(3, 4, 6, 8).to(dtype).double().requires_grad_()
    x = exact.detach().to(dtype).requires_grad_()
    outputs = lf.l2_pool(x, (2, 2)), lf.l2_pool(exact, (2, 2))
    assert outputs[0].dtype == dtype
    torch.testing.assert_close(outputs[0], outputs[1].to(dtype))
    cotangent = outputs[0].detach()
    gradients = (
        torch.autograd.grad(outputs[0], x, cotangent)[0],
        torch.autograd.grad(outputs[1], exact, cotangent.double())[0],
    )
    torch.testing.assert_close(gradients[0], gradients[1].to(dtype))


@pytest.mark.parametrize("layout", ["contiguous", "channels last"])
@pytest.mark.parametrize("name", ["tiles", "tiles, rest", "overlapping", "volume"])
def test_memory_formats_stay(name: str, layout: str) -> None:
    size, kernel, stride, dilation = WINDOWS[name]
    x = LAYOUTS[layout](drawn(3, 4, *size)).requires_grad_()
    y = lf.l2_pool(x, kernel, stride, None, dilation)
    assert y.stride() == LAYOUTS[layout](y.detach()).stride()
    assert torch.autograd.grad(y, x, y.detach())[0].stride() == x.stride()


@pytest.mark.parametrize("name", WINDOWS)
def test_second_derivatives(name: str) -> None:
    size, kernel, stride, dilation = WINDOWS[name]
    x = drawn(1, 2, *size).requires_grad_()
    assert torch.autograd.gradgradcheck(lambda y: lf.l2_pool(y, kernel, stride, None, dilation), x, fast_mode=True)


def test_windows_of_zeros_have_no_derivative_of_any_order() -> None:
    x = drawn(1, 1, 4, 4)
    x[..., :2] = 0
    x.requires_grad_()
    (first,) = torch.autograd.grad(lf.l2_pool(x, (2, 2)).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad((first**2).sum(), x)
    assert not first[..., :2].any()
    assert not second[..., :2].any()
    assert second.isfinite().all()
    assert first[..., 2:].all()


@pytest.mark.parametrize("name", ["tiles", "overlapping", "dilated", "line"])
def test_gradients_of_one_example_at_a_time(name: str) -> None:
    size, kernel, stride, dilation = WINDOWS[name]
    x = drawn(5, 2, 3, *size)

    def loss(pool: Callable[..., Tensor], *window: Sizes | None) -> Map:
        return lambda example: (pool(example, *window) ** 3).sum()

    def slope(function: Map) -> Map:
        return lambda example: (grad(function)(example) ** 2).sum()

    found = loss(lf.l2_pool, kernel, stride, None, dilation)
    expected = loss(by_definition, kernel, stride, dilation)
    for mine, theirs in ((found, expected), (slope(found), slope(expected))):
        alone = torch.stack([grad(theirs)(example) for example in x])
        for place in (0, 2):
            torch.testing.assert_close(vmap(grad(mine), in_dims=place)(x.movedim(0, place)), alone)


def test_a_window_must_fit() -> None:
    with pytest.raises(ValueError, match="a window of 3 taps with dilation 2 is longer than an axis of 4"):
        lf.l2_pool(torch.ones(1, 1, 4), (3,), None, None, (2,))


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch does, tracing
@pytest.mark.parametrize("layout", by_day({"contiguous"}, ["contiguous", "channels last"]))
def test_kernels_do_not_break_graphs(layout: str) -> None:
    """Forwards and backwards, in one graph each."""

    def network(x: Tensor) -> Tensor:
        x = lf.l2_pool(lf.group_sort(lf.clip_norm(x, 3.0), 2), (2, 2))
        return lf.l2_pool(F.relu(lf.max_min(x)), (3, 2), (2, 1), ((1, 1), (0, 1)))

    x = LAYOUTS[layout](drawn(3, 4, 6, 8)).requires_grad_()
    outputs = [f(x) for f in (network, torch.compile(network, backend="aot_eager", fullgraph=True))]
    torch.testing.assert_close(*outputs, check_stride=True)
    gradients = [torch.autograd.grad(output, x, outputs[0].detach())[0] for output in outputs]
    torch.testing.assert_close(*gradients, check_stride=True)
