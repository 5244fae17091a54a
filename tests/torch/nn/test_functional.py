"""Operations against dense Jacobians and independent formulas."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
import torch
from lipcompile_torch.nn import functional as lf
from lipcompile_torch.train.loss_clipping import clip_cotangents
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

Map = Callable[[Tensor], Tensor]


def jacobian(function: Map, example: Tensor) -> Tensor:
    """Dense Jacobian of one example, [outputs, inputs]."""
    x = example[None].clone().requires_grad_()
    out = function(x).flatten()
    return torch.stack([torch.autograd.grad(entry, x, retain_graph=True)[0].flatten() for entry in out])


def spectral(matrix: Tensor) -> float:
    return float(torch.linalg.svdvals(matrix)[0])


PERMUTING: dict[str, tuple[Map, tuple[int, ...]]] = {
    "group_sort 2": (lambda x: lf.group_sort(x, 2), (4, 3, 2)),
    "group_sort 2 last": (lambda x: lf.group_sort(x, 2, -1), (3, 6)),
    "group_sort 3": (lambda x: lf.group_sort(x, 3, 1), (2, 6)),
    "max_min": (lambda x: lf.max_min(x), (4, 3)),
    "full_sort": (lambda x: lf.full_sort(x, -1), (7,)),
    "space_to_depth": (lambda x: lf.space_to_depth(x, 2), (3, 4, 6)),
    "depth_to_space": (lambda x: lf.depth_to_space(x, 2), (8, 2, 3)),
    "patches": (lambda x: lf.patches(x, 2), (3, 4, 6)),
}


@pytest.mark.parametrize("name", PERMUTING)
def test_permutations(name: str) -> None:
    torch.manual_seed(0)
    function, shape = PERMUTING[name]
    for example in (torch.randn(shape, dtype=torch.float64), torch.ones(shape, dtype=torch.float64)):
        matrix = jacobian(function, example)
        assert set(matrix.flatten().tolist()) == {0.0, 1.0}
        assert (matrix.sum(0) == 1).all()
        assert (matrix.sum(1) == 1).all()
        assert torch.equal((matrix @ example.flatten()), function(example[None]).flatten())


def test_group_sort_sorts_each_group() -> None:
    x = torch.tensor([[3.0, 1.0, 2.0, 5.0, 4.0, 0.0]])
    assert lf.group_sort(x, 2).tolist() == [[1, 3, 2, 5, 0, 4]]
    assert lf.group_sort(x, 3).tolist() == [[1, 2, 3, 0, 4, 5]]
    assert lf.max_min(x).tolist() == [[5, 4, 2, 3, 1, 0]]
    assert lf.full_sort(x).tolist() == [[0, 1, 2, 3, 4, 5]]


def test_patches_are_whole_blocks() -> None:
    image = torch.arange(16.0).reshape(1, 1, 4, 4)
    assert lf.patches(image, 2)[0, 1].tolist() == [2, 3, 6, 7]
    assert torch.equal(lf.depth_to_space(lf.space_to_depth(image, 2), 2), image)
    deep = torch.randn(2, 3, 4, 6)
    assert torch.equal(lf.space_to_depth(deep, 2), F.pixel_unshuffle(deep, 2))


@pytest.mark.parametrize("axis", [-4, 3])
def test_trap_16_no_axis_reaches_the_batch(axis: int) -> None:
    with pytest.raises(ValueError, match="outside an example"):
        lf.group_sort(torch.ones(4, 4, 4, 4), 2, axis)
    with pytest.raises(ValueError, match="outside an example"):
        lf.full_sort(torch.ones(4, 4, 4, 4), axis)


def test_groups_must_divide() -> None:
    with pytest.raises(ValueError, match="does not divide"):
        lf.group_sort(torch.ones(2, 5), 2)
    with pytest.raises(ValueError, match="two halves"):
        lf.max_min(torch.ones(2, 5))
    with pytest.raises(ValueError, match="do not divide"):
        lf.depth_to_space(torch.ones(1, 6, 5, 4), 2)
    with pytest.raises(ValueError, match="do not tile"):
        lf.patches(torch.ones(1, 1, 5, 4), 2)
    with pytest.raises(ValueError, match="pooling with"):
        lf.avg_pool(torch.ones(1, 4, 4), (2, 2))


POOLS = [
    ((9,), (2,), None, None, None),
    ((9,), (3,), (2,), ((1, 0),), (2,)),
    ((5, 4), (2, 2), None, None, None),
    ((5, 4), (3, 2), (1, 2), ((1, 0), (0, 1)), None),
    ((5, 5), (2, 2), (2, 1), ((1, 1), (0, 0)), (2, 1)),
    ((3, 3, 3), (2, 2, 2), (1, 1, 1), None, None),
]


def windows(
    size: tuple[int, ...],
    kernel: tuple[int, ...],
    stride: tuple[int, ...] | None,
    padding: tuple[tuple[int, int], ...] | None,
    dilation: tuple[int, ...] | None,
) -> list[list[int]]:
    """The flat indices in each window, by definition."""
    rank = len(size)
    stride, padding, dilation = stride or kernel, padding or ((0, 0),) * rank, dilation or (1,) * rank
    counts = [
        (n + low + high - d * (k - 1) - 1) // s + 1
        for n, k, s, (low, high), d in zip(size, kernel, stride, padding, dilation, strict=True)
    ]
    found = []
    for out in itertools.product(*map(range, counts)):
        window = []
        for tap in itertools.product(*map(range, kernel)):
            place = [
                o * s + t * d - low
                for o, s, t, d, (low, _) in zip(out, stride, tap, dilation, padding, strict=True)
            ]
            if all(0 <= p < n for p, n in zip(place, size, strict=True)):
                window.append(sum(p * math.prod(size[i + 1 :]) for i, p in enumerate(place)))
        found.append(window)
    return found


@pytest.mark.parametrize(("size", "kernel", "stride", "padding", "dilation"), POOLS)
def test_pools_are_what_they_say(
    size: tuple[int, ...],
    kernel: tuple[int, ...],
    stride: tuple[int, ...] | None,
    padding: tuple[tuple[int, int], ...] | None,
    dilation: tuple[int, ...] | None,
) -> None:
    """Trap 19: the overlap m is that of the counted windows, dilation and padding included."""
    torch.manual_seed(0)
    x = torch.randn(2, *size, dtype=torch.float64)
    found = windows(size, kernel, stride, padding, dilation)
    overlap = max(sum(i in window for window in found) for i in range(math.prod(size)))
    flat = x.flatten(1)
    l2 = torch.stack([flat[:, w].square().sum(1).sqrt() for w in found], 1)
    top = torch.stack([flat[:, w].max(1).values for w in found], 1)
    assert torch.allclose(lf.l2_pool(x[None], kernel, stride, padding, dilation)[0].flatten(1), l2)
    assert torch.equal(lf.max_pool(x[None], kernel, stride, padding, dilation)[0].flatten(1), top)
    for function in (lf.l2_pool, lf.max_pool):
        norm = spectral(jacobian(lambda y, f=function: f(y, kernel, stride, padding, dilation), x))  # type: ignore[misc]
        assert norm <= math.sqrt(overlap) * (1 + 1e-9)
    if dilation is None:
        total = torch.stack([flat[:, w].sum(1) for w in found], 1)
        assert torch.allclose(lf.scaled_avg_pool(x[None], kernel, stride, padding)[0].flatten(1), total)
        mean = lf.avg_pool(x[None], kernel, stride, padding)[0].flatten(1)
        assert torch.allclose(mean, total / math.prod(kernel))
        matrix = jacobian(lambda y: lf.avg_pool(y, kernel, stride, padding), x)
        assert spectral(matrix) <= math.sqrt(overlap / math.prod(kernel)) * (1 + 1e-9)


def test_global_average() -> None:
    x = torch.randn(2, 3, 4, 5)
    assert torch.allclose(lf.global_avg_pool(x), x.mean((2, 3)))
    assert lf.global_avg_pool(x, keep=True).shape == (2, 3, 1, 1)
    assert spectral(jacobian(lf.global_avg_pool, x[0].double())) == pytest.approx(1 / math.sqrt(20))


def test_trap_09_l2_pool_has_no_epsilon_and_a_gradient_at_zero() -> None:
    x = torch.zeros(1, 1, 4, 4, requires_grad=True)
    y = lf.l2_pool(x, (2, 2))
    assert not y.any()
    torch.autograd.backward(y.sum())
    assert x.grad is not None
    assert not x.grad.any()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_trap_09_l2_pool_gradient_at_any_magnitude(dtype: torch.dtype) -> None:
    """Where squares underflow, x/y may be anything: the gradient of a window must not exceed 1 in norm."""
    torch.manual_seed(0)
    finfo = torch.finfo(dtype)
    low, high = math.log2(finfo.smallest_normal * finfo.eps), math.log2(finfo.max) / 2 - 3
    scales = 2.0 ** torch.linspace(low, high, 2000, dtype=torch.float64)
    x = (torch.randn(2000, 1, 4, dtype=torch.float64) * scales[:, None, None]).to(dtype).requires_grad_()
    torch.autograd.backward(lf.l2_pool(x, (4,)).sum())
    assert x.grad is not None
    norms = x.grad.double().flatten(1).norm(dim=1)
    assert float(norms.max()) <= 1 + 8 * max(finfo.eps, torch.finfo(torch.float64).eps)
    assert float(norms[-500:].min()) > 0.99


def test_l2_pool_gradcheck() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 2, 5, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda y: lf.l2_pool(y, (3, 2), (1, 1), ((1, 0), (0, 1))), (x,))


def exact_norms(x: Tensor) -> list[float]:
    return [math.sqrt(math.fsum(v * v for v in row)) for row in x.double().flatten(1).tolist()]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.usefixtures("passes")
def test_trap_15_clip_norm_ends_inside_the_ball(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    for radius in (1.0, 1 / 3, 7.3):
        scales = torch.logspace(-3, 3, 200, dtype=torch.float64)[:, None, None]
        x = (torch.randn(200, 7, 9, dtype=torch.float64) * scales).to(dtype)
        y = lf.clip_norm(x, radius)
        before, after = exact_norms(x), exact_norms(y)
        assert max(after) <= radius
        for i, norm in enumerate(before):
            if norm <= radius * (1 - 1e-12):
                assert torch.equal(x[i], y[i])
            else:
                assert after[i] >= radius * (1 - 4 * torch.finfo(dtype).eps - 1e-13)
        assert torch.equal(lf.clip_norm(y, radius), y)


@pytest.mark.parametrize(
    ("dtype", "entry", "entries", "radius"),
    [
        (torch.float16, 6e4, 784, 0.0538),  # the factor is 3.2e-8, which rounds to 6.0e-8
        (torch.float16, 255.0, 3072, 0.01),
        (torch.float16, 1e-3, 50_000, 1e-5),  # the factor is 4.5e-5, but entries become subnormal
        (torch.float16, 1e-3, 50_000, 1e-4),
        (torch.float32, 3e38, 10_000, 1e-3),
        (torch.float32, 3e38, 10_000, 2.2e-5),
        (torch.bfloat16, 3e38, 10_000, 2.2e-3),
    ],
)
@pytest.mark.usefixtures("passes")
def test_what_becomes_subnormal_ends_inside_the_ball(
    dtype: torch.dtype, entry: float, entries: int, radius: float
) -> None:
    x = torch.full((3, entries), entry, dtype=dtype) * torch.tensor([[1.0], [0.9], [0.7]], dtype=dtype)
    assert bool((lf.clip_norm(x, radius).double().norm(dim=1) <= radius).all())
    cotangents, _ = clip_cotangents(x, radius)
    assert bool((cotangents.double().norm(dim=1) <= radius).all())


def test_clip_norm_is_the_projection_and_its_gradient_is_right() -> None:
    torch.manual_seed(0)
    x = torch.randn(6, 5, dtype=torch.float64) * torch.tensor([0.1, 0.3, 1, 2, 5, 9.0])[:, None].double()
    x.requires_grad_()
    assert torch.autograd.gradcheck(lambda y: lf.clip_norm(y, 1.3), (x,))
    for example in x.detach():
        assert spectral(jacobian(lambda y: lf.clip_norm(y, 1.3), example)) <= 1 + 1e-12
    reference = x / (x.norm(dim=1, keepdim=True) / 1.3).clamp_min(1)
    assert torch.allclose(lf.clip_norm(x, 1.3), reference)


@pytest.mark.usefixtures("passes")
def test_trap_21_non_finite_examples_become_zero() -> None:
    x = torch.ones(5, 3)
    x[1, 0], x[2, 1], x[3, 2] = math.nan, math.inf, -math.inf
    x[4] = 0
    x.requires_grad_()
    y = lf.clip_norm(x, 1.0)
    assert not y[1:].any()
    torch.autograd.backward(y.sum())
    assert x.grad is not None
    assert x.grad.isfinite().all()
    assert not x.grad[1:4].any()
    assert x.grad[4].tolist() == [1, 1, 1]


def test_trap_21_holds_for_gradients_taken_outside_of_vmap() -> None:
    """There the tensor of one example does not say that it requires a gradient."""
    x = torch.tensor([[3.0, 4.0], [math.nan, 1.0], [math.inf, 1.0], [0.3, 0.4]])

    def total(examples: Tensor) -> Tensor:
        clipped: Tensor = torch.func.vmap(lambda row: lf.clip_norm(row[None], 1.0)[0])(examples)
        return clipped[:, 0].sum()

    # (I - zzᵀ)/5 at z = (3, 4)/5; the identity inside.
    expected = torch.tensor([[16 / 125, -12 / 125], [0, 0], [0, 0], [1, 0]])
    torch.testing.assert_close(torch.func.grad(total)(x), expected)
    torch.autograd.backward(total(x.requires_grad_()))
    torch.testing.assert_close(x.grad, expected)


@pytest.mark.usefixtures("passes")
def test_clip_norm_of_huge_float32_examples() -> None:
    y = lf.clip_norm(torch.full((1, 4), 3e38), 1.0)
    assert y[0].tolist() == pytest.approx([0.5] * 4)


def test_float64_examples_of_infinite_norm_become_zero() -> None:
    x = torch.tensor([[1.7e308, -1.7e308], [3.0, 4.0]], dtype=torch.float64)
    assert lf.clip_norm(x, 6.0).tolist() == [[0, 0], [3, 4]]


@pytest.mark.parametrize("transform", [lambda f: f, torch.func.vmap, lambda f: torch.compile(f, backend="eager")])
def test_norms_of_float64_are_those_of_numbers_whose_squares_are_none(transform: Any) -> None:
    """(3, 4) times powers of two, and times the largest and smallest numbers."""
    powers = [2.0**k for k in (-1074, -1000, -500, -400, 0, 400, 500, 1000, 1021)]
    rows = torch.tensor([[3 * power, -4 * power] for power in powers] + [[0, 0]], dtype=torch.float64)
    norms = transform(lambda x: lf.example_norms(x[None] if x.dim() == 1 else x).reshape(x.shape[:-1]))(rows)
    assert norms.tolist() == [*(5 * power for power in powers), 0]


def squared_norm(row: Tensor) -> Fraction:
    return sum((Fraction(entry) ** 2 for entry in row.double().tolist()), Fraction())


def extreme_examples(chance: random.Random, dtype: torch.dtype) -> Tensor:
    """Examples [B, n] of magnitudes anywhere in the dtype: alike, or not at all."""
    kind = torch.finfo(dtype)
    low, high = math.log2(kind.smallest_normal * kind.eps), math.log2(kind.max)
    rows, entries = chance.choice((0, 1, 3)), chance.choice((1, 1, 2, 5, 40))
    found = torch.empty(rows, entries, dtype=torch.float64)
    for row in found:
        middle = chance.choice((chance.uniform(low, high), low + chance.uniform(0, 9), high))
        spread = chance.choice((0, 1, 300))
        for i in range(entries):
            exponent = min(max(middle + chance.uniform(-spread, spread), low), high)
            row[i] = chance.choice((-1, 1)) * min(2.0 ** (exponent - 1) * chance.uniform(1, 2), kind.max / 2) * 2
    return found.to(dtype)


def extreme_radius(chance: random.Random, x: Tensor) -> float:
    """A radius from anywhere in float64, next to a norm, or of a few of the smallest numbers."""
    norm = math.hypot(*x[0].double().tolist()) if len(x) else 1.0
    near = norm * (1 + chance.randint(-8, 8) * 2.0**-53)
    below = norm * 2.0 ** chance.uniform(-1100, 0)
    drawn = chance.choice((2.0 ** chance.uniform(-1074, 1023.9), near, below, chance.randint(1, 40) * 2.0**-1074))
    return min(max(drawn, 2.0**-1074), 1.7e308)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.usefixtures("passes")
def test_examples_of_any_size_end_inside_a_ball_of_any_radius(dtype: torch.dtype) -> None:
    """Squares and norms in rational numbers, which neither overflow nor vanish."""
    chance = random.Random(11)
    for _ in range(500):
        x = extreme_examples(chance, dtype)
        radius = extreme_radius(chance, x)
        clipped = lf.clip_norm(x, radius), lf.clip_norm(x.clone().requires_grad_(), radius).detach()
        for result in (*clipped, clip_cotangents(x, radius)[0]):
            assert result.shape == x.shape
            for row in result:
                assert squared_norm(row) <= Fraction(radius) ** 2
        for row, result in zip(x, clipped[0], strict=True):
            inside = Fraction(radius) * (1 - Fraction(x.shape[1] + 4, 2**52)) - Fraction(2) ** -1073
            if inside > 0 and squared_norm(row) <= inside**2:
                assert torch.equal(row, result)


def test_what_float64_loses_of_long_examples_is_what_its_factor_does() -> None:
    """The example of 1.8e308 and the radius of 4.7e-16: their quotient is half of the smallest number."""
    largest = torch.finfo(torch.float64).max
    assert lf.clip_norm(torch.tensor([[largest]], dtype=torch.float64), 4.7e-16).tolist() == [[0]]
    (result,) = lf.clip_norm(torch.tensor([[largest]], dtype=torch.float64), 1e-3)[0].tolist()
    assert 1e-3 - 2 * 2.0**-1074 * largest <= result <= 1e-3


def test_the_gradient_of_zero_is_there_where_the_radius_is_nothing_in_the_dtype() -> None:
    x = torch.zeros(1, 3, dtype=torch.float16, requires_grad=True)
    torch.autograd.backward(lf.clip_norm(x, 1e-9).sum())
    assert x.grad is not None
    assert x.grad.tolist() == [[1, 1, 1]]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_norms_of_many_examples_are_exact(dtype: torch.dtype) -> None:
    """More entries than are measured at once, in rows that do not divide them."""
    x = torch.randn(1100, 17, 31, generator=torch.Generator().manual_seed(0)).to(dtype)
    norms = lf.example_norms(x)
    assert norms.dtype == torch.float64
    assert norms.tolist() == pytest.approx(exact_norms(x), rel=1e-13)
    assert lf.example_norms(torch.ones(3, 300_000)).tolist() == pytest.approx([math.sqrt(300_000)] * 3, rel=1e-13)
    assert lf.example_norms(torch.ones(3, 0)).tolist() == [0, 0, 0]
    assert lf.example_norms(torch.ones(4)).tolist() == [1] * 4


def test_trap_12_clip_gradient_acts_on_each_example() -> None:
    x = torch.zeros(4, 3, requires_grad=True)
    weights = torch.tensor([[0.1, 0, 0], [3.0, 4, 0], [math.nan, 0, 0], [0, 0, 0]])
    y = lf.clip_gradient(x, 0.5)
    assert torch.equal(y, x)
    torch.autograd.backward(y, weights)
    assert x.grad is not None
    assert torch.equal(x.grad[0], weights[0])
    assert x.grad[1].tolist() == pytest.approx([0.3, 0.4, 0])
    assert not x.grad[2:].any()
    assert max(exact_norms(x.grad)) <= 0.5


@pytest.mark.parametrize("radius", [0.0, -1.0, math.inf, math.nan])
def test_balls_need_a_radius(radius: float) -> None:
    with pytest.raises(ValueError, match="positive and finite"):
        lf.clip_norm(torch.ones(1, 1), radius)
    with pytest.raises(ValueError, match="positive and finite"):
        lf.clip_gradient(torch.ones(1, 1), radius)


EVERY: list[tuple[Map, tuple[int, ...]]] = [
    *PERMUTING.values(),
    (lambda x: lf.l2_pool(x, (2, 2)), (3, 4, 4)),
    (lambda x: lf.l2_pool(x, (2, 2), None, None, (2, 2)), (3, 4, 4)),
    (lambda x: lf.l2_pool(x, (2,), (1,)), (3, 4)),
    (lambda x: lf.max_pool(x, (2, 2), None, ((1, 0), (0, 0))), (3, 4, 4)),
    (lambda x: lf.avg_pool(x, (2, 2)), (3, 4, 4)),
    (lambda x: lf.avg_pool(x, (2,)), (3, 4)),
    (lambda x: lf.scaled_avg_pool(x, (2, 2, 2)), (3, 4, 4, 4)),
    (lf.global_avg_pool, (3, 4, 4)),
    (lambda x: lf.clip_norm(x, 1.0), (3, 4)),
    (lambda x: lf.clip_gradient(x, 1.0), (3, 4)),
    (lambda x: lf.pad(x, ((1, 0), (2, 3))), (3, 4, 4)),
]


@pytest.mark.parametrize(("function", "shape"), EVERY)
def test_empty_batches_pass_both_ways(function: Map, shape: tuple[int, ...]) -> None:
    x = torch.zeros(0, *shape, requires_grad=True)
    y = function(x)
    assert y.shape == (0, *function(torch.zeros(2, *shape)).shape[1:])
    torch.autograd.backward(y.sum())
    assert x.grad is not None
    assert x.grad.shape == x.shape


@pytest.mark.parametrize(("function", "shape"), EVERY)
def test_examples_do_not_meet(function: Map, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, *shape)
    assert torch.equal(function(x)[1], function(x[1:2])[0])


def test_padding_with_zeros_is_an_embedding() -> None:
    x = torch.randn(2, 3, 4)
    assert torch.equal(lf.pad(x, ((2, 1),)), F.pad(x, (2, 1)))
