"""Sorting of pairs against torch's own sort, in every layout, backwards twice, by vmap and compiled."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from lipcompile_torch.nn import functional as lf
from torch import Tensor
from torch.func import grad, vmap

Map = Callable[[Tensor], Tensor]


def sorted_pairs(x: Tensor, dimension: int) -> Tensor:
    """Pairs of neighbours by torch's sort."""
    pairs = torch.unflatten(x, dimension, (-1, 2))
    return torch.sort(pairs, dim=dimension + 1).values.reshape(x.shape)


def sorted_halves(x: Tensor, dimension: int) -> Tensor:
    """Maxima, then minima, of an entry and the one half an axis further, by torch's sort."""
    halves = torch.unflatten(x, dimension, (2, -1))
    return torch.sort(halves, dim=dimension, descending=True).values.reshape(x.shape)


SORTS: dict[str, tuple[Callable[[Tensor, int], Tensor], Callable[[Tensor, int], Tensor]]] = {
    "group_sort": (lambda x, axis: lf.group_sort(x, 2, axis), sorted_pairs),
    "max_min": (lf.max_min, sorted_halves),
}
LAYOUTS: dict[str, Map] = {
    "contiguous": lambda x: x.contiguous(),
    "channels last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "transposed": lambda x: x.transpose(0, 3).contiguous().transpose(0, 3),
    "every other": lambda x: x.repeat_interleave(2, 3)[..., ::2],
    "expanded": lambda x: x[:1].expand_as(x),
}


def drawn(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("name", SORTS)
def test_values_and_gradients_are_those_of_a_sort(name: str, axis: int, layout: str) -> None:
    found, expected = SORTS[name]
    x = LAYOUTS[layout](drawn(3, 4, 6, 10)).requires_grad_()
    for cotangent in (LAYOUTS[layout](drawn(3, 4, 6, 10) + 1), torch.ones(()).expand(3, 4, 6, 10)):
        outputs = found(x, axis), expected(x, axis + 1)
        assert torch.equal(*outputs)
        gradients = [torch.autograd.grad(output, x, cotangent)[0] for output in outputs]
        assert torch.equal(*gradients)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", SORTS)
def test_every_precision_keeps_its_bits(name: str, dtype: torch.dtype) -> None:
    """Cotangents over the whole range of the dtype come back as they were, in other places."""
    found, expected = SORTS[name]
    x = drawn(64, 32, dtype=dtype).requires_grad_()
    exponents = torch.linspace(
        math.log2(torch.finfo(dtype).tiny), math.log2(torch.finfo(dtype).max) - 4, 64, dtype=torch.float64
    )
    cotangent = (drawn(64, 32, dtype=torch.float64) * 2.0 ** exponents[:, None]).to(dtype)
    assert cotangent.isfinite().all()
    gradients = [torch.autograd.grad(sort(x, axis), x, cotangent)[0] for sort, axis in ((found, 0), (expected, 1))]
    assert torch.equal(*gradients)


@pytest.mark.parametrize("layout", ["contiguous", "channels last"])
@pytest.mark.parametrize("name", SORTS)
def test_memory_formats_stay(name: str, layout: str) -> None:
    x = LAYOUTS[layout](drawn(3, 4, 6, 10)).requires_grad_()
    y = SORTS[name][0](x, 0)
    assert y.stride() == x.stride()
    assert torch.autograd.grad(y, x, y.detach())[0].stride() == x.stride()


@pytest.mark.parametrize("name", SORTS)
def test_ties_and_what_is_not_a_number(name: str) -> None:
    x = torch.zeros(1, 4, requires_grad=True)
    (gradient,) = torch.autograd.grad(SORTS[name][0](x, 0), x, torch.tensor([[1.0, 2, 3, 4]]))
    assert sorted(gradient[0].tolist()) == [1, 2, 3, 4]
    assert SORTS[name][0](torch.full((1, 4), math.nan), 0).isnan().all()
    assert SORTS[name][0](torch.zeros(2, 0, 3), 0).shape == (2, 0, 3)


@pytest.mark.parametrize("name", SORTS)
def test_derivatives_of_every_order(name: str) -> None:
    x = drawn(2, 4, 3, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda y: SORTS[name][0](y, 0), x)
    assert torch.autograd.gradgradcheck(lambda y: SORTS[name][0](y, 0) ** 3, x)


@pytest.mark.parametrize("name", SORTS)
def test_gradients_of_one_example_at_a_time(name: str) -> None:
    found, expected = SORTS[name]
    x = drawn(5, 2, 4, 6)

    def loss(sort: Callable[[Tensor, int], Tensor], axis: int) -> Map:
        return lambda example: (sort(example, axis) ** 3).sum()

    def slope(function: Map) -> Map:
        return lambda example: (grad(function)(example) ** 2).sum()

    mine, theirs = loss(found, 1), loss(expected, 2)
    for one, other in ((mine, theirs), (slope(mine), slope(theirs))):
        alone = torch.stack([grad(other)(example) for example in x])
        for place in (0, 2):
            torch.testing.assert_close(vmap(grad(one), in_dims=place)(x.movedim(0, place)), alone)
