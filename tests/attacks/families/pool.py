"""Attacks of pooling."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import ceil, floor, prod
from typing import Any

import torch
from torch import Tensor

from lipcompile.core.record import Shape
from lipcompile.ops.pool.rules import AdaptivePool, AveragePool, LpPool, Pool

from .. import harness
from ..draw import Draw, Drawn, Instance
from ..family import Attack, Witness, split_axis, unary
from ..witness import at, best_direction, constant, one_hot


def _pool(record: type[Any], *, dilated: bool = True, **more: Callable[[Draw], Any]) -> Instance:
    def draw_pool(draw: Draw) -> Drawn:
        rank, image = draw.image()
        window = draw.window(rank, dilated=dilated) | {name: choose(draw) for name, choose in more.items()}
        return record(**window, ceil_mode=_coin(draw)), [image], {}

    return draw_pool


def _coin(draw: Draw) -> bool:
    return draw.rng.random() < 0.5


def _adaptive(draw: Draw) -> Drawn:
    rank, image = draw.image()
    return AdaptivePool(draw.shape(rank, 5 if rank < 3 else 3)), [image], {}


def gathered(x: Tensor, a: Any, padding: float = 0.0, beyond: float | None = None) -> Tensor:
    """The entries of each window, on the last axis; `padding` stands in the padding, `beyond` behind it."""
    axes = zip(a.kernel, a.stride, a.dilation, a.padding, strict=True)
    for axis, (kernel, stride, dilation, (low, high)) in enumerate(axes, start=1):
        size, span = x.shape[axis], dilation * (kernel - 1) + 1
        steps = (size + low + high - span) / stride
        last = ceil(steps) if a.ceil_mode else floor(steps)
        if a.ceil_mode and last * stride >= size + low:
            last -= 1
        x = _filled(_filled(x, axis, low, high, padding), axis, 0, span, padding if beyond is None else beyond)
        taps = torch.tensor([o * stride + t * dilation for o in range(last + 1) for t in range(kernel)])
        x = split_axis(x.index_select(axis, taps), axis, (last + 1, kernel)).movedim(axis + 1, -1)
    return x.flatten(1 + len(a.kernel))


def _filled(x: Tensor, axis: int, low: int, high: int, value: float) -> Tensor:
    sides = []
    for count in (low, high):
        shape = [*x.shape]
        shape[axis] = count
        sides.append(x.new_full(shape, value))
    return torch.cat((sides[0], x, sides[1]), dim=axis)


def average(a: Any, x: Tensor) -> Tensor:
    taps = gathered(torch.ones_like(x), a, 1.0 if a.count_include_pad else 0.0, beyond=0.0)
    return gathered(x, a).sum(-1) / taps.sum(-1)


def adaptive(a: Any, x: Tensor) -> Tensor:
    for axis, outputs in enumerate(a.size, start=1):
        n = x.shape[axis]
        runs = [range(floor(i * n / outputs), ceil((i + 1) * n / outputs)) for i in range(outputs)]
        means = [x.index_select(axis, torch.tensor(run)).mean(axis) for run in runs]
        x = torch.stack(means, axis)
    return x


def best_entry(op: str, pool: Any, shape: Shape) -> Witness:
    """The single entry that most windows see."""
    found = [at(op, pool, one_hot(shape, index, 3)) for index in range(prod(shape))]
    return max(found, key=lambda witness: float(harness.run(*witness).norm()))


IMAGE = (2, 5, 5)
OVERLAPPING = Pool((3, 2), (1, 2), ((1, 1), (0, 1)), (1, 1))
DILATED = Pool((2, 2), (1, 1), ((1, 0), (0, 0)), (2, 1))
CEILING = Pool((3, 3), (2, 2), ((1, 1), (0, 0)), (1, 1), ceil_mode=True)
POOLS = (OVERLAPPING, DILATED, CEILING)


def _entries(op: str, pools: Sequence[Any] = POOLS) -> list[Witness]:
    return [best_entry(op, pool, IMAGE) for pool in pools]


def _norm(p: int, pool: Pool) -> LpPool:
    return LpPool(p, pool.kernel, pool.stride, pool.padding, pool.dilation, pool.ceil_mode)


def _averages() -> list[Witness]:
    """Divisors of every kind; constants attain the bound of entries."""
    partial = AveragePool((3, 3), (2, 2), ((1, 1), (0, 1)), (1, 1), ceil_mode=True)
    whole = AveragePool((3, 2), (1, 2), ((1, 1), (0, 1)), (1, 1), count_include_pad=False)
    both = AveragePool((2, 3), (1, 2), ((1, 0), (1, 0)), (1, 1), ceil_mode=True, count_include_pad=False)
    plain = AveragePool((3, 2), (1, 2), ((1, 1), (0, 1)), (1, 1))
    directions = [best_direction("avg_pool", pool, IMAGE) for pool in (partial, whole, both, plain)]
    return [*directions, at("avg_pool", plain, constant(IMAGE, 3))]


def one_window(dilation: int) -> Tensor:
    """Nothing but the four entries of a window."""
    x = torch.zeros(IMAGE, dtype=torch.float64)
    x[0, 0 : 2 * dilation : dilation, 0:2] = 1.5
    return x


ATTACKS: Mapping[str, Attack] = {
    "max_pool": Attack(
        _pool(Pool), unary(lambda a, x: gathered(x, a, -torch.inf).amax(-1)), lambda: _entries("max_pool")
    ),
    "l2_pool": Attack(
        _pool(Pool),
        unary(lambda a, x: torch.linalg.vector_norm(gathered(x, a), dim=-1)),
        lambda: [*_entries("l2_pool"), at("l2_pool", OVERLAPPING, constant(IMAGE, 3))],
    ),
    "lp_pool": Attack(
        _pool(LpPool, p=lambda draw: draw.rng.randint(1, 4)),
        unary(lambda a, x: torch.linalg.vector_norm(gathered(x, a), ord=a.p, dim=-1)),
        lambda: [
            *_entries("lp_pool", [_norm(p, pool) for p, pool in zip((2, 3, 5), POOLS, strict=True)]),
            at("lp_pool", _norm(3, OVERLAPPING), constant(IMAGE, 3)),
            *(best_direction("lp_pool", _norm(1, pool), IMAGE) for pool in POOLS),
            at("lp_pool", _norm(1, DILATED), constant(IMAGE, 3)),
            at("lp_pool", _norm(1, DILATED), one_window(2)),
        ],
    ),
    "avg_pool": Attack(
        _pool(AveragePool, dilated=False, count_include_pad=_coin),
        unary(average),
        _averages,
    ),
    "scaled_avg_pool": Attack(
        _pool(Pool, dilated=False),
        unary(lambda a, x: gathered(x, a).sum(-1)),
        lambda: [
            *(best_direction("scaled_avg_pool", pool, IMAGE) for pool in (OVERLAPPING, CEILING)),
            at("scaled_avg_pool", OVERLAPPING, constant(IMAGE, 3)),
            at("scaled_avg_pool", Pool((2, 2), (2, 2), ((0, 0), (0, 0)), (1, 1)), one_window(1)),
        ],
    ),
    "adaptive_avg_pool": Attack(
        _adaptive,
        unary(adaptive),
        lambda: [
            *(best_direction("adaptive_avg_pool", AdaptivePool(size), IMAGE) for size in ((2, 3), (4, 7))),
            at("adaptive_avg_pool", AdaptivePool((2, 3)), constant(IMAGE, 3)),
        ],
    ),
}
