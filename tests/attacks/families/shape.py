"""Attacks of ops that move, cut and clip."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from lipcompile.core.record import Site
from lipcompile.ops.shape.rules import (
    Block,
    ClipGradient,
    ClipNorm,
    Dropout,
    GroupedDropout,
    Reshape,
    Slice,
    Transpose,
)
from lipcompile.ops.table import OP_BY_NAME

from .. import harness
from ..draw import NO, Draw, Drawn, Instance, no_attributes, plain
from ..family import Attack, Tensors, Theta, Witness, unary
from ..harness import Point, unit
from ..points import number
from ..witness import HALF, THREE, at, constant, one_hot, spread


def _reshape(draw: Draw) -> Drawn:
    shape = draw.any_shape()
    last = draw.rng.choice([size for size in range(1, prod(shape) + 1) if prod(shape) % size == 0])
    return Reshape((-1, last)), [shape], {}


def _transpose(draw: Draw) -> Drawn:
    shape = draw.shape(draw.rng.randint(2, 4))
    axes = list(range(len(shape)))
    draw.rng.shuffle(axes)
    return Transpose(tuple(axes) if draw.rng.random() < 0.8 else ()), [shape], {}


def _blocks(channels: int) -> Instance:
    def draw_blocks(draw: Draw) -> Drawn:
        c, h, w = draw.shape(3, 2)
        size = draw.rng.randint(1, 2)
        shape = (c * size * size, h, w) if channels else (c, h * size, w * size)
        return Block(size), [shape], {}

    return draw_blocks


def _slice(draw: Draw) -> Drawn:
    shape = draw.any_shape()
    axis = draw.rng.randrange(len(shape))
    start = draw.rng.randrange(shape[axis])
    return Slice(axis, start, draw.rng.randint(start + 1, shape[axis])), [shape], {}


def transpose(attributes: Any, x: Tensor) -> Tensor:
    return x.permute(attributes.axes) if attributes.axes else x.transpose(-1, -2)


def patches(attributes: Any, x: Tensor) -> Tensor:
    return F.pixel_unshuffle(x, attributes.size).flatten(1).T


def clip_norm(attributes: Any, x: Tensor) -> Tensor:
    return x / torch.clamp(x.norm() / float(attributes.radius), min=1)


class _ClipGradient(torch.autograd.Function):
    """Identity forward; the cotangent of this example is projected on a ball."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bound: float) -> Tensor:
        ctx.bound = bound
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor, None]:
        return cotangents[0] / torch.clamp(cotangents[0].norm() / ctx.bound, min=1), None


def clip_gradient(attributes: Any, x: Tensor) -> Tensor:
    clipped: Any = _ClipGradient.apply(x, float(attributes.bound))  # type: ignore[no-untyped-call]
    return clipped  # type: ignore[no-any-return]


def cut(attributes: Any, x: Tensor) -> Tensor:
    return x.narrow(attributes.axis, attributes.start, attributes.stop - attributes.start)


def dropout(site: Site[Dropout], xs: Tensors, theta: Theta) -> Tensor:
    """What is kept stands in `theta` as a mask (nothing dropped if absent)."""
    kept = theta["kept"] if "kept" in theta else torch.ones_like(xs[0])
    return xs[0] * kept / (1 - number(site.attributes.probability))


def _clip_gradient(cotangent: Fraction) -> Witness:
    x = spread()
    case = harness.case(
        OP_BY_NAME["clip_gradient"],
        ClipGradient(THREE),
        [tuple(x.shape)],
        [Fraction(float(x.norm()))],
        {},
        cotangent,
    )
    return case, Point((x,))


def first_pairs() -> Tensor:
    """Nothing in the second half of each row, which a reshape may cut off."""
    x = constant((2, 4, 4), 3)
    x[..., 2:] = 0
    return x


def one_run() -> Tensor:
    """The first three entries of [3, 2], which lie in two rows, and become one."""
    return torch.tensor([[1, 1], [1, 0], [0, 0]], dtype=torch.float64)


def first_rows() -> Tensor:
    """Nothing outside the first two rows: they become one row of twice the length, or one column."""
    x = torch.zeros(2, 4, 4, dtype=torch.float64)
    x[0, :2] = 1
    return 3 * unit(x)


ATTACKS: Mapping[str, Attack] = {
    "identity": Attack(no_attributes, unary(lambda _, x: x.clone()), lambda: [at("identity", NO, spread())]),
    "flatten": Attack(no_attributes, unary(lambda _, x: x.flatten()), lambda: [at("flatten", NO, spread())]),
    "reshape": Attack(
        _reshape,
        unary(lambda a, x: x.reshape(a.shape)),
        lambda: [
            at("reshape", Reshape((8, 4)), spread()),
            at("reshape", Reshape((2, 2, 2, 4)), spread()),
            at("reshape", Reshape((16, 2)), first_pairs()),
            at("reshape", Reshape((4, 8)), first_rows()),
            at("reshape", Reshape((2, 3)), one_hot((3, 2), 0, 3)),
            at("reshape", Reshape((2, 3)), constant((3, 2), 3) * one_run()),
        ],
    ),
    "transpose": Attack(
        _transpose,
        unary(transpose),
        lambda: [
            at("transpose", Transpose((1, 0, 2)), spread()),
            at("transpose", Transpose(), constant((2, 4, 1), 3).expand(2, 4, 1) * 1),
            at("transpose", Transpose((0, 2, 1)), constant((1, 4, 1), 3)),
        ],
    ),
    "space_to_depth": Attack(
        _blocks(channels=0),
        unary(lambda a, x: F.pixel_unshuffle(x, a.size)),
        lambda: [at("space_to_depth", Block(2), spread())],
    ),
    "depth_to_space": Attack(
        _blocks(channels=1),
        unary(lambda a, x: F.pixel_shuffle(x, a.size)),
        lambda: [at("depth_to_space", Block(2), spread((4, 2, 2)))],
    ),
    "patches": Attack(_blocks(channels=0), unary(patches), lambda: [at("patches", Block(2), spread())]),
    "slice": Attack(_slice, unary(cut), lambda: [at("slice", Slice(1, 1, 3), one_hot((2, 4, 4), 5, 3))]),
    "clip_norm": Attack(
        plain(lambda draw: ClipNorm(draw.fraction())),
        unary(clip_norm),
        lambda: [
            *(at("clip_norm", ClipNorm(THREE), spread() * scale) for scale in (0.5, 1.01)),
            at("clip_norm", ClipNorm(THREE), constant((4,), 6)),
        ],
    ),
    "clip_gradient": Attack(
        plain(lambda draw: ClipGradient(draw.fraction())),
        unary(clip_gradient),
        lambda: [_clip_gradient(HALF), _clip_gradient(Fraction(5))],
    ),
    "dropout": Attack(
        plain(lambda draw: Dropout(Fraction(draw.rng.randint(0, 15), 16))),
        dropout,
        lambda: [at("dropout", Dropout(Fraction(3, 10)), spread())],
    ),
    "grouped_dropout": Attack(
        plain(lambda draw: GroupedDropout(Fraction(draw.rng.randint(0, 15), 16), draw.rng.randint(0, 1))),
        dropout,
        lambda: [at("grouped_dropout", GroupedDropout(Fraction(3, 10), axes), spread()) for axes in (0, 1)],
    ),
}
