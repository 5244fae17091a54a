"""Attacks of attention."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction

import torch
from torch import Tensor

from lipcompile.core.record import Constraint, Site
from lipcompile.ops.attention.rules import Attention
from lipcompile.ops.table import OP_BY_NAME

from .. import harness
from ..draw import Draw, Drawn
from ..family import Attack, Tensors, Theta, Witness
from ..harness import Bound, Point, largest_entry, largest_row, spectral
from ..witness import HALF

ROLES = ("query", "key", "value", "output")
LARGE, TINY = Fraction(400), Fraction(1, 10**6)


def _attention(draw: Draw) -> Drawn:
    pick = draw.rng.randint
    heads = pick(1, 3)
    width, rows, causal = heads * pick(1, 2), pick(1, 4), draw.rng.random() < 0.4
    dropped = draw.rng.choice((Fraction(0), Fraction(0), Fraction(1, 4)))
    context = [] if causal or draw.rng.random() < 0.5 else [(pick(1, 4), pick(1, 4))]
    attributes = Attention(heads, causal, dropped)
    return attributes, [(rows, width), *context], {role: draw.weight() for role in ROLES}


def attention(site: Site[Attention], xs: Tensors, theta: Theta) -> Tensor:
    """One query, one head at a time, as it is defined; `kept` says which weights a dropout leaves."""
    queries, context = xs[0], xs[-1]
    width = queries.shape[1] // site.attributes.heads
    scale = 1 / (1 - float(site.attributes.dropout))  # type: ignore[arg-type]
    rows = []
    for i, row in enumerate(queries):
        visible = context[: i + 1] if site.attributes.causal else context
        parts = []
        for head in range(site.attributes.heads):
            own = slice(head * width, (head + 1) * width)
            scores = (visible @ theta["key"][own].T) @ (theta["query"][own] @ row) / math.sqrt(width)
            weights = torch.exp(scores - torch.logsumexp(scores, 0)) * scale
            if "kept" in theta:
                weights = weights * theta["kept"][head, i, : len(visible)]
            parts.append(weights @ (visible @ theta["value"][own].T))
        rows.append(theta["output"] @ torch.cat(parts))
    return torch.stack(rows)


def witness(attributes: Attention, xs: Sequence[Tensor], weights: Sequence[Tensor]) -> Witness:
    """The uses of these tensors: every bound reaches just to them."""
    theta = dict(zip(ROLES, weights, strict=True))
    constraints = {role: Constraint("spectral", Fraction(spectral(value))) for role, value in theta.items()}
    bounds = [Bound(Fraction(float(x.norm())), Fraction(largest_row(x)), Fraction(largest_entry(x))) for x in xs]
    shapes = [tuple(x.shape) for x in xs]
    case = harness.case(OP_BY_NAME["attention"], attributes, shapes, bounds, constraints, cotangent=2)
    return case, Point(tuple(xs), theta)


def table(*rows: Sequence[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def eye(size: int, scale: Fraction | float = 1) -> Tensor:
    return float(scale) * torch.eye(size, dtype=torch.float64)


def gather(second: float, attributes: Attention) -> Witness:
    """Two heads look at one token each, with all their weight; the third token is empty."""
    look = float(LARGE) * table((1, 0), (1, 0))
    xs = table((2, 0), (2, 0)), table((3, 0), (0, second), (0, 0))
    return witness(attributes, xs, (look, eye(2, LARGE), eye(2, 5), eye(2, 7)))


def alike(queries: int, tokens: int, heads: int) -> Witness:
    """No token is preferred, and all are alike."""
    xs = table(*[(2, 0)] * queries), table(*[(3, 0)] * tokens)
    return witness(Attention(heads), xs, (eye(2, TINY), eye(2, TINY), eye(2, 5), eye(2, 7)))


def early() -> Witness:
    """Causal: the first head looks at the first token; the second one at the others, once it sees them."""
    xs = (table((3, 0), (0, 3), (0, 3)),)
    look = float(LARGE) * table((0, 1), (0, 1))
    return witness(Attention(2, causal=True), xs, (look, eye(2, LARGE), eye(2, 5), eye(2, 7)))


def first() -> Witness:
    """Causal, one head: all look at the first token; the others are too short to count, but not to ask."""
    xs = (table((3, 0), (0, 1e-6), (0, 1e-6)),)
    look, show = 1e9 * table((0, 1), (0, 0)), float(LARGE) * table((1, 0), (0, 0))
    return witness(Attention(1, causal=True), xs, (look, show, eye(2, 5), eye(2, 7)))


def balanced(queries: int, attributes: Attention, scale: Fraction) -> Witness:
    """Two opposite tokens, in doubt: the queries are orthogonal to both, and any change decides."""
    xs = table(*[(2, 0)] * queries), table((3, 0), (-3, 0))
    return witness(attributes, xs, (turned(scale), eye(2, scale), eye(2, 5), eye(2, 7)))


def turned(scale: Fraction | float) -> Tensor:
    """Exchange both axes: queries along the first are orthogonal to keys along it."""
    return float(scale) * table((0, 1), (1, 0))


def _witnesses() -> list[Witness]:
    """Each regime: certain heads that look at tokens of one length, or of two; heads that do not care; doubt."""
    dropped = Attention(2, dropout=Fraction(1, 4))
    self_alike = witness(Attention(1), (table(*[(3, 0)] * 3),), (eye(2, TINY), eye(2, TINY), eye(2, 5), eye(2, 7)))
    self_balanced = witness(
        Attention(1), (table((3, 0), (-3, 0)),), (turned(HALF), eye(2, HALF), eye(2, 5), eye(2, 7))
    )
    certain = (eye(2, LARGE), eye(2, LARGE), eye(2), eye(2))
    one_head = witness(Attention(1), (table((2, 0), (2, 0)), table((3, 0), (0, 0))), certain)
    return [
        gather(3, dropped),
        gather(1, dropped),
        early(),
        first(),
        one_head,
        alike(2, 3, 2),
        alike(3, 2, 1),
        self_alike,
        self_balanced,
        balanced(1, Attention(1, dropout=Fraction(1, 4)), LARGE),
        balanced(2, Attention(1), HALF),
    ]


ATTACKS: Mapping[str, Attack] = {"attention": Attack(_attention, attention, _witnesses)}
