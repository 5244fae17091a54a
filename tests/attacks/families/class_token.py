"""Attacks of trainable entries put beside those of an example."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

import torch
from torch import Tensor

from lipcompile.core.record import Constraint, Shape, Site
from lipcompile.ops.embedding.rules import ClassToken
from lipcompile.ops.table import OP_BY_NAME

from .. import harness
from ..draw import Draw, Drawn
from ..family import Attack, Tensors, Theta, Witness
from ..harness import Bound, Point
from ..witness import one_hot

LENGTH = Fraction(7, 4)


def _class_token(draw: Draw) -> Drawn:
    shape = draw.any_shape()
    axis, last = draw.rng.randrange(len(shape)), draw.rng.random() < 0.5
    attributes = ClassToken(draw.rng.randint(1, 3), axis, last)
    return attributes, [shape], {"tokens": Constraint("ball", draw.fraction())}


def class_token(site: Site[ClassToken], xs: Tensors, theta: Theta) -> Tensor:
    """Entry by entry along the axis."""
    own, given = (part.unbind(site.attributes.axis) for part in (xs[0], theta["tokens"]))
    listed = (*own, *given) if site.attributes.last else (*given, *own)
    return torch.stack(listed, site.attributes.axis)


def use(attributes: ClassToken, x: Tensor, tokens: Shape) -> Witness:
    """Tokens of one entry beside `x`, of which all bounds are known."""
    entry = Fraction(float(x.norm()))
    constraints = {"tokens": Constraint("ball", LENGTH)}
    bounds = [Bound(entry, entry, entry)]
    case = harness.case(OP_BY_NAME["class_token"], attributes, [tuple(x.shape)], bounds, constraints, cotangent=2)
    return case, Point((x,), {"tokens": one_hot(tokens, 1, LENGTH)})


def _witnesses() -> list[Witness]:
    """Tokens shorter and longer than the rows of the example, and rows that get longer."""
    return [
        use(ClassToken(), one_hot((3, 2), 0, 3), (1, 2)),
        use(ClassToken(2, last=True), one_hot((3, 2), 0, 1), (2, 2)),
        use(ClassToken(2, axis=1), one_hot((3, 2), 0, 3), (3, 2)),
    ]


ATTACKS: Mapping[str, Attack] = {"class_token": Attack(_class_token, class_token, _witnesses)}
