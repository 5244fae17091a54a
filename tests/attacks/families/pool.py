"""Attacks of pooling."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod

import torch
from torch import Tensor

from lipcompile.ops.pool import GlobalPool, Pool
from lipcompile.ops.record import Shape

from .. import harness
from ..draw import Draw, Drawn, Instance
from ..family import Attack, Witness, unary, windows
from ..witness import (
    at,
    best_direction,
    constant,
    one_hot,
)


def _pool(*, dilated: bool) -> Instance:
    def draw_pool(draw: Draw) -> Drawn:
        rank, image = draw.image()
        return Pool(**draw.window(rank, dilated=dilated)), [image], {}

    return draw_pool


def _global(draw: Draw) -> Drawn:
    return GlobalPool(draw.rng.random() < 0.5), [draw.shape(draw.rng.randint(2, 4))], {}


def best_entry(op: str, pool: Pool, shape: Shape) -> Witness:
    """The single entry that most windows see."""
    found = [at(op, pool, one_hot(shape, index, 3)) for index in range(prod(shape))]
    return max(found, key=lambda witness: float(harness.run(*witness).norm()))


OVERLAPPING = Pool((3, 2), (1, 2), ((1, 1), (0, 1)), (1, 1))
DILATED = Pool((2, 2), (1, 1), ((1, 0), (0, 0)), (2, 1))


def gathered(x: Tensor, a: Pool, fill: float = 0.0) -> Tensor:
    """The entries of each window, on the last axis."""
    return windows(x, a, fill).flatten(1 + len(a.kernel))


def _entries(op: str) -> Callable[[], list[Witness]]:
    return lambda: [best_entry(op, pool, (2, 5, 5)) for pool in (OVERLAPPING, DILATED)]


ATTACKS: Mapping[str, Attack] = {
    "max_pool": Attack(
        _pool(dilated=True), unary(lambda a, x: gathered(x, a, -torch.inf).amax(-1)), _entries("max_pool")
    ),
    "l2_pool": Attack(
        _pool(dilated=True),
        unary(lambda a, x: torch.linalg.vector_norm(gathered(x, a), dim=-1)),
        _entries("l2_pool"),
    ),
    "avg_pool": Attack(
        _pool(dilated=False),
        unary(lambda a, x: gathered(x, a).mean(-1)),
        lambda: [
            best_direction("avg_pool", OVERLAPPING, (2, 5, 5)),
            at("avg_pool", OVERLAPPING, constant((2, 5, 5), 3)),
        ],
    ),
    "scaled_avg_pool": Attack(
        _pool(dilated=False),
        unary(lambda a, x: gathered(x, a).sum(-1)),
        lambda: [best_direction("scaled_avg_pool", OVERLAPPING, (2, 5, 5))],
    ),
    "global_avg_pool": Attack(
        _global,
        unary(lambda a, x: x.mean(dim=tuple(range(1, x.dim())), keepdim=a.keep)),
        lambda: [at("global_avg_pool", GlobalPool(), one_hot((2, 1, 1), 0, 3).expand(2, 3, 4) * 1)],
    ),
}
