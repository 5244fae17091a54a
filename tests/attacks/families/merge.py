"""Attacks of ops that bring tensors together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import reduce
from math import prod
from typing import Any

import torch
from torch import Tensor

from lipcompile.core.record import Shape, Site
from lipcompile.ops.merge.rules import Concat, Sum, Where
from lipcompile.ops.table import OP_BY_NAME

from .. import harness
from ..draw import NO, Draw, Drawn
from ..family import Attack, Oracle, Tensors, Theta, Witness, feature_axis
from ..harness import Point
from ..witness import constant, one_hot


def _narrowed(draw: Draw, shape: Shape) -> Shape:
    """A shape that broadcasts to `shape`."""
    tail = shape[draw.rng.randint(0, len(shape)) :]
    return tuple(draw.rng.choice((1, entries)) for entries in tail)


def _sum(draw: Draw) -> Drawn:
    shape, count = draw.any_shape(), draw.rng.randint(1, 3)
    others = [_narrowed(draw, shape) for _ in range(count - 1)]
    weights = tuple(draw.fraction() * draw.rng.choice((-1, 1)) for _ in range(count))
    return Sum(weights), [*others, shape], {}


def _product(draw: Draw) -> Drawn:
    shape = draw.any_shape()
    shapes = [shape, _narrowed(draw, shape)]
    draw.rng.shuffle(shapes)
    return NO, shapes, {}


def _concat(draw: Draw) -> Drawn:
    shape, count = draw.any_shape(), draw.rng.randint(1, 3)
    axis = draw.rng.randrange(len(shape))
    parts = [(*shape[:axis], draw.rng.randint(1, 3), *shape[axis + 1 :]) for _ in range(count)]
    return Concat(axis), parts, {}


def _same(draw: Draw) -> Drawn:
    return NO, [draw.any_shape()] * draw.rng.randint(2, 3), {}


def _where(draw: Draw) -> Drawn:
    shape = draw.any_shape()
    return Where(tuple(draw.rng.random() < 0.5 for _ in range(prod(shape)))), [shape] * 2, {}


def add(site: Site[Sum], xs: Tensors, theta: Theta) -> Tensor:
    terms = [float(weight) * x for weight, x in zip(site.attributes.weights, xs, strict=True)]  # type: ignore[arg-type]
    return sum(terms[1:], start=terms[0])


def concat(site: Site[Concat], xs: Tensors, theta: Theta) -> Tensor:
    return torch.cat(tuple(xs), dim=feature_axis(site.attributes, xs[0]))


def where(site: Site[Where], xs: Tensors, theta: Theta) -> Tensor:
    chosen = torch.tensor(site.attributes.mask, dtype=torch.float64).reshape(site.output)
    return chosen * xs[0] + (1 - chosen) * xs[1]


def _reduced(function: Callable[[Tensor, Tensor], Tensor]) -> Oracle:
    return lambda site, xs, _: reduce(function, xs)


def _at(op: str, attributes: Any, xs: Sequence[Tensor]) -> Witness:
    """The op at these operands, on balls that reach just to them."""
    norms = [Fraction(float(x.norm())) for x in xs]
    return harness.case(OP_BY_NAME[op], attributes, [tuple(x.shape) for x in xs], norms, cotangent=2), Point(
        tuple(xs)
    )


def _sums() -> list[Witness]:
    """Operands that all point the way of the first, copies included."""
    weights = Sum((Fraction(-2), Fraction(3, 4), Fraction(1)))
    xs = (-constant((3,), 1), constant((2, 1), 2), constant((2, 3), 3))
    return [_at("add", weights, xs)]


def _products() -> list[Witness]:
    """Where each of norm, rows and entries decides what one entry of the gate meets, in either order."""
    flat, image = constant((2, 3), 3), constant((3, 2, 2), 3)
    one_channel = torch.zeros(3, 2, 2, dtype=torch.float64)
    one_channel[1] = torch.tensor([[3.0, 0.0], [0.0, 1.0]])
    one_row = torch.tensor([[3.0, 0.0, 1.0], [0.0, 0.0, 1.0]], dtype=torch.float64)
    rows = torch.tensor([[[3.0, 1.0], [1.0, 3.0]], [[0.0, 0.0], [2.0, 0.0]]], dtype=torch.float64)
    pairs = [
        (flat, constant((1, 1), 2)),
        (image, one_hot((3, 1, 1), 1, 2)),
        (image, constant((3, 1, 1), 2)),
        (one_channel, one_hot((3, 1, 1), 1, 2)),
        (rows, one_hot((2, 1, 1), 0, 2)),
        (one_row, one_hot((2, 1), 0, 2)),
        (flat, constant((3,), 2)),
        (flat, one_hot((2, 3), 2, 2)),
        (one_row, one_hot((2, 3), 0, 2)),
    ]
    return [_at("multiply", NO, order) for pair in pairs for order in (pair, pair[::-1])]


def _matrices(draw: Draw) -> Drawn:
    heads: list[tuple[int, ...]] = [(), (1,), (2,)]
    n, d, m = (draw.rng.randint(1, 3) for _ in range(3))
    of = draw.rng.choice(heads)
    return NO, [(*of, n, d), (*of, d, m)], {}


def _rank_one() -> list[Witness]:
    """Matrices of rank one; in two heads, of which one operand uses one, the rows of the other decide."""
    left = torch.tensor([[3.0, 0.0, 4.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    right = torch.tensor([[3.0, 0.0], [0.0, 0.0], [4.0, 0.0]], dtype=torch.float64)
    rows = torch.tensor([1.0, 0.0], dtype=torch.float64).expand(2, 2, 2)
    one_row, one_column = torch.zeros(2, 1, 2, dtype=torch.float64), torch.zeros(2, 2, 1, dtype=torch.float64)
    one_row[0], one_column[0, 0] = 3, 3
    return [_at("matmul", NO, pair) for pair in ((left, right), (one_row, rows), (rows, one_column))]


def _concats() -> list[Witness]:
    return [_at("concat", Concat(axis), [constant((2, 3), n) for n in (1, 2, 3)]) for axis in (0, 1)]


def _selections(op: str, sign: int) -> list[Witness]:
    """Operands on disjoint entries, each selected on its own."""
    return [_at(op, NO, [sign * one_hot((2, 4), index, index + 1) for index in range(count)]) for count in (2, 3)]


def _masked() -> list[Witness]:
    xs = (one_hot((2, 2), 0, 3), one_hot((2, 2), 1, 4))
    return [_at("where", Where((True, False, True, False)), xs)]


ATTACKS: Mapping[str, Attack] = {
    "add": Attack(_sum, add, _sums),
    "multiply": Attack(_product, _reduced(torch.mul), _products),
    "matmul": Attack(_matrices, _reduced(torch.matmul), _rank_one),
    "concat": Attack(_concat, concat, _concats),
    "maximum": Attack(_same, _reduced(lambda a, b: torch.where(a >= b, a, b)), lambda: _selections("maximum", 1)),
    "minimum": Attack(_same, _reduced(lambda a, b: torch.where(a <= b, a, b)), lambda: _selections("minimum", -1)),
    "where": Attack(_where, where, _masked),
}
