"""Attacks of dot-product attention without projections."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from itertools import product

import torch
from torch import Tensor

from lipcompile.core.record import Site
from lipcompile.ops.attention.dot_product import DotProduct
from lipcompile.ops.table import OP_BY_NAME

from .. import harness
from ..draw import Draw, Drawn
from ..family import Attack, Tensors, Theta, Witness
from ..harness import Bound, Point, largest_entry, largest_row

OP = "dot_product_attention"
TINY, LARGE = Fraction(1, 10**6), Fraction(10**4)


def _dot_product(draw: Draw) -> Drawn:
    pick = draw.rng.randint
    heads = draw.rng.choice(((), (1,), (2,), (3,), (2, 2)))
    width, keys = pick(1, 3), pick(1, 4)
    scale = draw.rng.choice((None, draw.fraction(), -draw.fraction(), Fraction(0)))
    dropped = draw.rng.choice((Fraction(0), Fraction(0), Fraction(1, 4)))
    attributes = DotProduct(scale, draw.rng.random() < 0.4, dropped)
    return attributes, [(*heads, pick(1, 4), width), (*heads, keys, width), (*heads, keys, pick(1, 3))], {}


def dot_product(site: Site[DotProduct], xs: Tensors, theta: Theta) -> Tensor:
    """One head, one query at a time, as it is defined; `kept` says which weights a dropout leaves."""
    queries, keys, values = xs
    places = list(product(*(range(size) for size in queries.shape[:-1])))
    rows = [_row(site.attributes, place, queries[place], keys, values, theta) for place in places]
    return torch.stack(rows).reshape(site.output)


def _row(
    attributes: DotProduct, place: tuple[int, ...], query: Tensor, keys: Tensor, values: Tensor, theta: Theta
) -> Tensor:
    *head, i = place
    stop = min(i + 1, keys.shape[-2]) if attributes.causal else keys.shape[-2]
    scale = 1 / math.sqrt(len(query)) if attributes.scale is None else float(attributes.scale)  # type: ignore[arg-type]
    scores = [scale * torch.dot(query, key) for key in keys[tuple(head)][:stop]]
    largest = max(float(score.detach()) for score in scores)
    parts = torch.stack([torch.exp(score - largest) for score in scores])
    weights = parts / parts.sum() / (1 - float(attributes.dropout))  # type: ignore[arg-type]
    if "kept" in theta:
        weights = weights * theta["kept"][place][:stop]
    row: Tensor = (weights[:, None] * values[tuple(head)][:stop]).sum(0)
    return row


def use(attributes: DotProduct, *xs: Tensor) -> Witness:
    """The use of these tensors: every bound reaches just to them."""
    bounds = [Bound(Fraction(float(x.norm())), Fraction(largest_row(x)), Fraction(largest_entry(x))) for x in xs]
    shapes = [tuple(x.shape) for x in xs]
    return harness.case(OP_BY_NAME[OP], attributes, shapes, bounds, cotangent=2), Point(xs)


def table(*rows: tuple[float, ...]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def heads(*parts: Tensor) -> Tensor:
    return torch.stack(parts)


KEYS = table((2, 0), (0, 2))
FIRST = table((3, 0), (3, 0), (3, 0))  # every query looks at the first key


def certain(attributes: DotProduct) -> list[Witness]:
    """All look at one token: rows count where others are long as well, the norm where other heads are empty."""
    long, alone = table((3, 0), (1, 3)), table((3, 0), (0, 0))
    return [
        use(attributes, heads(FIRST, FIRST), heads(KEYS, KEYS), heads(long, long)),
        use(attributes, heads(FIRST, FIRST), heads(KEYS, KEYS), heads(alone, 0 * alone)),
    ]


def even(scale: Fraction, queries: int, tokens: int) -> Witness:
    """No token is preferred, and all are alike."""
    same = [(3.0, 0.0)] * tokens
    return use(DotProduct(scale), table(*[(2.0, 0.0)] * queries), table(*same), table(*same))


def doubtful(attributes: DotProduct, queries: int, pairs: int = 1) -> Witness:
    """Opposite keys with opposite values; the queries are orthogonal to both, and any change decides."""
    q, both = [(0.0, 2.0)] * queries, [(3.0, 0.0), (-3.0, 0.0)] * pairs
    return use(attributes, table(*q), table(*both), table(*[(2 * x, y) for x, y in both]))


def early() -> Witness:
    """Causal rows beyond the keys, all of them certain of the first: none counts a key that it does not see."""
    return use(DotProduct(LARGE, causal=True), FIRST, KEYS, table((3, 0), (0, 0)))


def _witnesses() -> list[Witness]:
    """Each regime: certain rows, rows that do not care, doubt."""
    dropped = Fraction(1, 4)
    return [
        *certain(DotProduct(LARGE, dropout=dropped)),
        *certain(DotProduct(-LARGE)),
        early(),
        even(TINY, 3, 2),
        even(TINY, 2, 5),
        doubtful(DotProduct(dropout=dropped), 1),
        doubtful(DotProduct(Fraction(5)), 2),
        doubtful(DotProduct(TINY), 1),
        doubtful(DotProduct(TINY), 3, pairs=2),
    ]


ATTACKS: Mapping[str, Attack] = {OP: Attack(_dot_product, dot_product, _witnesses)}
