"""Attacks of ops that bring tensors together."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

import torch
from torch import Tensor

from lipcompile.ops import OP_BY_NAME
from lipcompile.ops.merge import Concat, Sum
from lipcompile.ops.record import Shape, Site

from .. import harness
from ..draw import Draw, Drawn
from ..family import Attack, Tensors, Theta, Witness, feature_axis
from ..harness import Point
from ..witness import (
    constant,
)


def _sum(draw: Draw) -> Drawn:
    shape, count = draw.any_shape(), draw.rng.randint(1, 3)
    tails = [shape[draw.rng.randint(0, len(shape)) :] for _ in range(count - 1)]
    others = [tuple(draw.rng.choice((1, entries)) for entries in tail) for tail in tails]
    weights = tuple(draw.fraction() * draw.rng.choice((-1, 1)) for _ in range(count))
    return Sum(weights), [*others, shape], {}


def _concat(draw: Draw) -> Drawn:
    shape, count = draw.any_shape(), draw.rng.randint(1, 3)
    axis = draw.rng.randrange(len(shape))
    parts = [(*shape[:axis], draw.rng.randint(1, 3), *shape[axis + 1 :]) for _ in range(count)]
    return Concat(axis), parts, {}


def add(site: Site[Sum], xs: Tensors, theta: Theta) -> Tensor:
    terms = [float(weight) * x for weight, x in zip(site.attributes.weights, xs, strict=True)]  # type: ignore[arg-type]
    return sum(terms[1:], start=terms[0])


def concat(site: Site[Concat], xs: Tensors, theta: Theta) -> Tensor:
    return torch.cat(tuple(xs), dim=feature_axis(site.attributes, xs[0]))


def _merges() -> list[Witness]:
    """Operands that all point the way of the first, copies included."""
    add, concat = OP_BY_NAME["add"], OP_BY_NAME["concat"]
    shapes: list[Shape] = [(3,), (2, 1), (2, 3)]
    sums = Sum((Fraction(-2), Fraction(3, 4), Fraction(1)))
    signs = (-1, 1, 1)
    xs = tuple(sign * constant(shape, n) for sign, shape, n in zip(signs, shapes, (1, 2, 3), strict=True))
    parts = tuple(constant((2, n), n) for n in (1, 2, 3))
    joined = harness.case(concat, Concat(1), [tuple(x.shape) for x in parts], [1, 2, 3])
    return [(harness.case(add, sums, shapes, [1, 2, 3]), Point(xs)), (joined, Point(parts))]


ATTACKS: Mapping[str, Attack] = {
    "add": Attack(_sum, add, lambda: _merges()[:1]),
    "concat": Attack(_concat, concat, lambda: _merges()[1:]),
}
