"""Dot-product attention (Vaswani et al., 2017) of given queries, keys and values."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  (its name everywhere in this field)


def dot_product_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    scale: float | None = None,
    causal: bool = False,
    dropout: float = 0.0,
    training: bool = False,
) -> Tensor:
    """Map [B, *heads, n, d], [B, *heads, k, d] and [B, *heads, k, e] to [B, *heads, n, e]: softmax(scale·q·kᵀ)·v.

    No matrix is hidden in a kernel of torch: all sums are those of the plain definition, at any precision.

    Args:
        queries, keys, values: equal in the axes of heads, if there are any.
        scale: factor of the scores; 1/√d by default.
        causal: row i sees the rows up to i.
        dropout: probability that a weight becomes 0 while ``training``; the others are divided by 1 - dropout.

    Raises:
        ValueError: shapes that do not fit each other, which torch might broadcast, even across examples.
    """
    q, k, v = queries.shape, keys.shape, values.shape
    if not (len(q) >= 3 and q[:-2] == k[:-2] == v[:-2] and q[-1] == k[-1] and k[-2] == v[-2]):
        raise ValueError(f"queries {tuple(q)}, keys {tuple(k)} and values {tuple(v)} do not fit each other")
    factor = 1 / math.sqrt(q[-1]) if scale is None else scale
    # Of queries and scores the smaller one is multiplied, which saves passes over memory.
    scores = (queries * factor) @ keys.mT if q[-1] < k[-2] else (queries @ keys.mT) * factor
    if causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(later, -torch.inf)
    return F.dropout(scores.softmax(-1), dropout, training) @ values
