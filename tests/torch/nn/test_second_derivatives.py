"""The audit climbs norms of gradients: own backward passes have derivatives, finite ones even at 0."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from lipcompile_torch import functional
from torch import Tensor

Map = Callable[[Tensor], Tensor]

MAPS: dict[str, Map] = {
    "group_sort": lambda x: functional.group_sort(x, 2) ** 2,
    "max_min": lambda x: functional.max_min(x) ** 2,
    "l2_pool": lambda x: functional.l2_pool(x, (2, 2)),
    "clip_norm": lambda x: functional.clip_norm(x, 0.5),
    "clip_norm, inside": lambda x: functional.clip_norm(x, 50.0) ** 2,
    "clip_gradient": lambda x: functional.clip_gradient(x**3, 0.25),
}


@pytest.mark.parametrize("name", MAPS)
def test_second_derivatives_are_those_of_the_gradient(name: str) -> None:
    """Against differences of the gradient itself, which for `clip_gradient` is not that of a function."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, 4, 2, 2, generator=generator, dtype=torch.float64)
    cotangent, direction, probe = torch.randn(3, *x.shape, generator=generator, dtype=torch.float64)

    def gradient(at: Tensor, *, curved: bool = False) -> Tensor:
        output = MAPS[name](at)
        return torch.autograd.grad(
            output, at, cotangent[..., : output.shape[2], : output.shape[3]], create_graph=curved
        )[0]

    at = x.clone().requires_grad_()
    (second,) = torch.autograd.grad((gradient(at, curved=True) * probe).sum(), at)
    ahead, behind = (gradient((x + step * direction).requires_grad_()) for step in (1e-6, -1e-6))
    difference = ((ahead - behind) / 2e-6 * probe).sum()
    assert float((second * direction).sum()) == pytest.approx(float(difference), rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("name", MAPS)
def test_second_derivatives_at_zero_are_finite(name: str) -> None:
    x = torch.zeros(1, 4, 2, 2, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(MAPS[name](x).sum(), x, create_graph=True)
    if gradient.requires_grad:
        (second,) = torch.autograd.grad(gradient.sum(), x, allow_unused=True, materialize_grads=True)
        assert second.isfinite().all()
