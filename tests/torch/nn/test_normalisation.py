"""Norms and centring against torch and against formulas written out; their constants, their edges."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from lipcompile_torch.nn import functional as lf
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

Map = Callable[[Tensor], Tensor]
IMAGE, TOKENS = (4, 3, 5), (3, 6)

# With ε these are torch's own norms.
TORCH: dict[str, tuple[Map, Map, tuple[int, ...]]] = {
    "layer last": (lambda x: lf.layer_norm(x, (-1,), eps=1e-3), lambda x: F.layer_norm(x, (6,), eps=1e-3), TOKENS),
    "layer all": (
        lambda x: lf.layer_norm(x, (0, 1, 2), eps=1e-3),
        lambda x: F.layer_norm(x, IMAGE, eps=1e-3),
        IMAGE,
    ),
    "group": (lambda x: lf.group_norm(x, 2, eps=0.1), lambda x: F.group_norm(x, 2, eps=0.1), IMAGE),
    "instance": (lambda x: lf.instance_norm(x, eps=0.1), lambda x: F.instance_norm(x, eps=0.1), IMAGE),
    "rms": (lambda x: lf.rms_norm(x, (-1,), eps=0.1), lambda x: F.rms_norm(x, (6,), eps=0.1), TOKENS),
    "local response": (
        lambda x: lf.local_response_norm(x, 3, 2.0, 0.75, 1.5),
        lambda x: F.local_response_norm(x, 3, 2.0, 0.75, 1.5),
        IMAGE,
    ),
    "local response, even": (
        lambda x: lf.local_response_norm(x, 2, 2.0, 0.5, 1.5),
        lambda x: F.local_response_norm(x, 2, 2.0, 0.5, 1.5),
        IMAGE,
    ),
}

FLOORED: dict[str, tuple[Map, tuple[int, ...]]] = {
    "layer": (lambda x: lf.layer_norm(x, (-1,), floor=0.5), TOKENS),
    "group": (lambda x: lf.group_norm(x, 2, floor=0.5), IMAGE),
    "instance": (lambda x: lf.instance_norm(x, floor=0.5), IMAGE),
    "rms": (lambda x: lf.rms_norm(x, (0,), floor=0.5), TOKENS),
}
ALL: dict[str, tuple[Map, tuple[int, ...]]] = {
    **{name: (function, shape) for name, (function, _, shape) in TORCH.items()},
    **{f"{name}, floor": entry for name, entry in FLOORED.items()},
    "center": (lambda x: lf.center(x, (0, 2)), IMAGE),
}


def examples(shape: tuple[int, ...], count: int = 4, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(count, *shape, generator=torch.Generator().manual_seed(0), dtype=dtype)


@pytest.mark.parametrize("name", TORCH)
def test_the_ordinary_norms_are_those_of_torch(name: str) -> None:
    ours, theirs, shape = TORCH[name]
    x = examples(shape)
    torch.testing.assert_close(ours(x), theirs(x))


def test_a_floor_divides_by_the_larger_one() -> None:
    x = torch.tensor([[3.0, -3.0], [0.1, -0.1]], dtype=torch.float64)
    expected = torch.tensor([[1.0, -1.0], [0.2, -0.2]], dtype=torch.float64)
    torch.testing.assert_close(lf.layer_norm(x, (0,), floor=0.5), expected)
    torch.testing.assert_close(lf.rms_norm(x + 1, (0,), floor=4.0), (x + 1) / 4)


def test_centring_subtracts_the_mean_of_one_example() -> None:
    x = examples(IMAGE)
    torch.testing.assert_close(lf.center(x, (0, 1, 2)), x - x.flatten(1).mean(dim=1)[:, None, None, None])
    torch.testing.assert_close(lf.center(x, (0,)).sum(dim=1), torch.zeros(4, 3, 5, dtype=torch.float64))


@pytest.mark.parametrize("name", ALL)
def test_examples_are_computed_one_by_one(name: str) -> None:
    function, shape = ALL[name]
    x = examples(shape)
    torch.testing.assert_close(function(x)[2:3], function(x[2:3]))
    assert function(x[:0]).shape == (0, *shape)


@pytest.mark.parametrize("scale", [1e-3, 0.3, 1.0, 1e3])
@pytest.mark.parametrize("name", FLOORED)
def test_the_slope_is_at_most_one_over_the_floor(name: str, scale: float) -> None:
    function, shape = FLOORED[name]
    x = scale * examples(shape, 1)
    found = torch.autograd.functional.jacobian(function, x)  # type: ignore[no-untyped-call]
    matrix = found.reshape(x.numel(), x.numel())
    assert torch.linalg.svdvals(matrix)[0] <= 2 * (1 + 1e-12)
    assert function(x).norm() <= min(2 * float(x.norm()), x.numel() ** 0.5) * (1 + 1e-12)


@pytest.mark.parametrize("name", ALL)
def test_gradients_at_zero_and_of_constants_are_finite(name: str) -> None:
    function, shape = ALL[name]
    for value in (0.0, 1.0):
        x = torch.full((2, *shape), value, dtype=torch.float64, requires_grad=True)
        weights = examples(shape, 2)
        (gradient,) = torch.autograd.grad((function(x) * weights).sum(), x, create_graph=True)
        assert gradient.isfinite().all()
        (again,) = torch.autograd.grad(gradient.square().sum() + 0 * x.sum(), x)
        assert again.isfinite().all()


@pytest.mark.parametrize("name", ALL)
def test_second_derivatives_are_right(name: str) -> None:
    function, shape = ALL[name]
    x = examples(shape, 1).requires_grad_()
    assert torch.autograd.gradgradcheck(function, (x,))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ALL)
def test_every_dtype_is_kept(name: str, dtype: torch.dtype) -> None:
    function, shape = ALL[name]
    x = examples(shape)
    found = function(x.to(dtype))
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), function(x.to(dtype).double()), rtol=1e-2, atol=1e-3)


def test_half_precision_does_not_overflow() -> None:
    x = torch.tensor([[300.0, -300.0]], dtype=torch.float16)
    assert lf.layer_norm(x, (0,), floor=0.5).tolist() == [[1.0, -1.0]]


@pytest.mark.parametrize("axes", [(), (2,), (-3,)])
def test_trap_16_no_axis_reaches_the_batch(axes: tuple[int, ...]) -> None:
    for function in (lf.center, lf.layer_norm, lf.rms_norm):
        with pytest.raises(ValueError, match="invalid for an example"):
            function(torch.ones(4, 2, 3), axes)


@pytest.mark.parametrize("bounds", [{}, {"floor": 1.0, "eps": 1.0}, {"floor": 0.0}, {"eps": -1.0}])
def test_a_norm_needs_one_positive_bound(bounds: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="positive floor"):
        lf.layer_norm(torch.ones(2, 3), (0,), **bounds)


def test_impossible_groups_and_windows_are_refused() -> None:
    with pytest.raises(ValueError, match="do not divide"):
        lf.group_norm(torch.ones(2, 3, 4), 2, floor=1.0)
    with pytest.raises(ValueError, match="invalid for an example"):
        lf.instance_norm(torch.ones(2, 3), floor=1.0)
    with pytest.raises(ValueError, match="local response"):
        lf.local_response_norm(torch.ones(2, 3, 4), 3, 1.0, 2.0, 1.0)
