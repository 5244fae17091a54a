"""Attacks of functions of entries: the oracles are those of Python, entry by entry."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from fractions import Fraction

import torch
from torch import Tensor

from lipcompile.core.record import NoAttributes, Site
from lipcompile.ops.pointwise.rules import BOUNDED, OPERANDS, Name, Pointwise
from lipcompile.ops.table import OP_BY_NAME

from .. import harness
from ..draw import Draw, Drawn
from ..family import Attack, Tensors, Theta, Witness
from ..harness import Point
from ..witness import constant, one_hot

_ORACLES: Mapping[str, Callable[..., float]] = {
    "equal": lambda x, c: float(x == c),
    "greater": lambda x, c: float(x > c),
    "at_least": lambda x, c: float(x >= c),
    "is_nan": lambda x, c: float(math.isnan(x)),
    "is_infinite": lambda x, c: float(math.isinf(x)),
    "constant": lambda x, c: c,
    "truncated": lambda x, c: float(int(x)),
    "select": lambda mask, x, y, c: x if mask else y,
}


def pointwise(site: Site[Pointwise], xs: Tensors, theta: Theta) -> Tensor:
    oracle, number = _ORACLES[site.attributes.function], float(site.attributes.number)  # type: ignore[arg-type]
    entries = zip(*(x.flatten().tolist() for x in xs), strict=True)
    return torch.tensor([oracle(*entry, number) for entry in entries], dtype=torch.float64).reshape(site.output)


def _drawn(draw: Draw) -> Drawn:
    function: Name = draw.rng.choice(BOUNDED)
    number = draw.fraction() * draw.rng.choice((-1, 1)) if function in ("constant", "greater", "at_least") else 0
    shape = draw.any_shape()
    return Pointwise(function, Fraction(number)), [shape] * OPERANDS.get(function, 1), {}


def _at(function: Name, *xs: Tensor, number: Fraction = Fraction(0)) -> Witness:
    norms = [Fraction(float(x.norm())) for x in xs]
    shapes = [tuple(x.shape) for x in xs]
    case = harness.case(OP_BY_NAME["pointwise"], Pointwise(function, number), shapes, norms, cotangent=2)
    return case, Point(tuple(xs))


def _attained() -> list[Witness]:
    """Truths that are all 1; a constant; whole numbers; a choice of disjoint entries, in one row and alone."""
    ones, first = constant((2, 3), 2), one_hot((2, 2), 0)
    return [
        _at("greater", ones),
        _at("constant", ones, number=Fraction(-3, 2)),
        _at("truncated", one_hot((2, 3), 1, 5)),
        _at("select", first, one_hot((2, 2), 0, 3), one_hot((2, 2), 1, 4)),
        _at("select", first, one_hot((2, 2), 0, 3), one_hot((2, 2), 2, 4)),
    ]


def noise(site: Site[NoAttributes], xs: Tensors, theta: Theta) -> Tensor:
    generator = torch.Generator().manual_seed(site.entries)
    return torch.randn(site.output, dtype=torch.float64, generator=generator)


ATTACKS: Mapping[str, Attack] = {
    "pointwise": Attack(_drawn, pointwise, _attained),
    "noise": Attack(lambda draw: (NoAttributes(), [draw.any_shape()], {}), noise, list),
}
