"""Attacks of reductions over axes of the example, and of global pools."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from lipcompile.ops.reduce.rules import GlobalPool, Reduce

from ..draw import Draw, Drawn
from ..family import Attack, Witness, unary
from ..witness import at, constant

Function = Callable[..., Tensor]


def _reduce(draw: Draw) -> Drawn:
    shape = draw.shape(draw.rng.randint(1, 4))
    axes = draw.rng.sample(range(len(shape)), draw.rng.randint(0, len(shape)))
    signed = tuple(axis - len(shape) if draw.rng.random() < 0.5 else axis for axis in axes)
    return Reduce(signed, draw.rng.random() < 0.5), [shape], {}


def _global(draw: Draw) -> Drawn:
    return GlobalPool(draw.rng.random() < 0.5), [draw.shape(draw.rng.randint(2, 4))], {}


def _over(function: Function) -> Function:
    """A reduction over the axes that the attributes name, without any over all of them."""
    return lambda a, x: function(x, dim=a.axes or tuple(range(x.dim())), keepdim=a.keep)


def _spatial(function: Function) -> Function:
    return lambda a, x: function(x, dim=tuple(range(1, x.dim())), keepdim=a.keep)


def magnitudes(x: Tensor, dim: Sequence[int], keepdim: bool) -> Tensor:
    return x.abs().sum(dim=tuple(dim), keepdim=keepdim)


# Attributes under which a row of the output is made of whole rows, a single number, and all there is.
ROWS, NUMBERS, VECTOR = Reduce((0,)), Reduce((-1,), keep=True), Reduce((1,))
POOLED, KEPT = GlobalPool(), GlobalPool(keep=True)


def single(shape: Sequence[int], value: float = 3.0) -> Tensor:
    """One entry in each row, no two in one column."""
    return value * torch.eye(prod(shape[:-1]), shape[-1], dtype=torch.float64).reshape(tuple(shape))


def _at(op: str, attributes: Sequence[Any], *points: Tensor) -> Callable[[], list[Witness]]:
    return lambda: [at(op, a, x) for a in attributes for x in points]


def _constants(op: str) -> Callable[[], list[Witness]]:
    return _at(op, (ROWS, NUMBERS, VECTOR), constant((3, 4), 3), constant((3, 1), 3))


def _singles(op: str, sign: float = 1) -> Callable[[], list[Witness]]:
    return _at(op, (ROWS, NUMBERS, VECTOR), *(sign * single(shape) for shape in ((3, 4), (2, 4), (4, 2))))


def _logsumexp() -> list[Witness]:
    points = (100 * single((3, 4)), torch.zeros(3, 4, dtype=torch.float64), constant((3, 4), 3))
    return _at("logsumexp", (ROWS, NUMBERS, VECTOR), *points)()


ATTACKS: Mapping[str, Attack] = {
    "reduce_mean": Attack(_reduce, unary(_over(torch.mean)), _constants("reduce_mean")),
    "reduce_sum": Attack(_reduce, unary(_over(torch.sum)), _constants("reduce_sum")),
    "reduce_max": Attack(_reduce, unary(_over(torch.amax)), _singles("reduce_max")),
    "reduce_min": Attack(_reduce, unary(_over(torch.amin)), _singles("reduce_min", -1)),
    "reduce_l2": Attack(
        _reduce,
        unary(_over(torch.linalg.vector_norm)),
        lambda: [*_constants("reduce_l2")(), *_singles("reduce_l2")()],
    ),
    "reduce_l1": Attack(_reduce, unary(_over(magnitudes)), _constants("reduce_l1")),
    "logsumexp": Attack(_reduce, unary(_over(torch.logsumexp)), _logsumexp),
    "global_avg_pool": Attack(
        _global, unary(_spatial(torch.mean)), _at("global_avg_pool", (POOLED, KEPT), constant((2, 3, 4), 3))
    ),
    "global_max_pool": Attack(
        _global, unary(_spatial(torch.amax)), _at("global_max_pool", (POOLED, KEPT), single((2, 1, 4)))
    ),
    "global_l2_pool": Attack(
        _global,
        unary(_spatial(torch.linalg.vector_norm)),
        _at("global_l2_pool", (POOLED, KEPT), constant((2, 3, 4), 3), single((2, 1, 4))),
    ),
}
