"""Attacks of the embedding."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

import torch
from torch import Tensor

from lipcompile.core.record import Constraint, Site
from lipcompile.ops.embedding.rules import Embedding
from lipcompile.ops.table import OP_BY_NAME

from .. import harness
from ..draw import Draw, Drawn
from ..family import Attack, Tensors, Theta, Witness
from ..harness import Point
from ..witness import one_hot


def _embedding(draw: Draw) -> Drawn:
    attributes = Embedding(draw.rng.randint(1, 5), draw.rng.randint(1, 4))
    return attributes, [draw.shape(draw.rng.randint(1, 2))], {"table": Constraint("rows", draw.fraction())}


def embedding(site: Site[Embedding], xs: Tensors, theta: Theta) -> Tensor:
    """A row of the table for each token."""
    rows = [theta["table"][int(token)] for token in xs[0].flatten()]
    return torch.stack(rows).reshape(*xs[0].shape, -1)


def _witnesses() -> list[Witness]:
    """All tokens are the third one, whose row is the longest."""
    constraints = {"table": Constraint("rows", Fraction(7, 4))}
    tokens = torch.full((2, 3), 2)
    case = harness.case(OP_BY_NAME["embedding"], Embedding(4, 3), [(2, 3)], [1], constraints)
    return [(case, Point((tokens,), {"table": one_hot((4, 3), 7, Fraction(7, 4))}))]


ATTACKS: Mapping[str, Attack] = {"embedding": Attack(_embedding, embedding, _witnesses)}
