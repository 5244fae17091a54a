"""Layers of sequences of tokens: an embedding, trainable tokens, and attention. A sequence is [B, n, features]."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  (its name everywhere in this field)

from ..certify.constraints import Ball, Constraint, RowBalls, Spectral
from ..certify.operators import Dense, Rows, Translation
from .constrained import ConstrainedLayer
from .functional import dot_product_attention
from .reading import linear, select, spread

Constraints = Constraint | Mapping[str, Constraint] | None
"""One constraint for all matrices, or one for each by its name."""


class Embedding(ConstrainedLayer):
    """Each token selects a row of a table.

    Plain rows: nothing is renormalised in place or scaled by frequencies of a batch, which would couple examples.

    Args:
        entries, width: sizes; ``table`` is [entries, width].
        bound: no row is longer. Rows start in random directions, at the bound.
    """

    table: Tensor

    def __init__(self, entries: int, width: int, bound: float | Constraint) -> None:
        super().__init__()
        constraint = bound if isinstance(bound, Constraint) else RowBalls(bound)
        start = F.normalize(torch.randn(entries, width))
        self._constrain("table", constraint.fill(start, Rows()), constraint, Rows())

    def forward(self, x: Tensor) -> Tensor:
        """Map whole numbers [B, …] to [B, …, width].

        Raises:
            ValueError: not whole numbers, or one that selects no row.
        """
        if x.is_floating_point() or x.is_complex() or x.dtype == torch.bool:
            raise ValueError(f"expected tokens of an integer dtype, got {x.dtype}")
        if self.gate is None or not self.gate.aside:  # else the batch has been here already
            self._check_rows(x)
        return select(self.table, x.long())

    def _check_rows(self, x: Tensor) -> None:
        entries = len(self.table)
        low, high = (int(end) for end in x.aminmax()) if x.numel() else (0, 0)
        if low < 0 or high >= entries:
            raise ValueError(f"tokens from {low} to {high}: the embedding has rows 0 to {entries - 1}")

    def extra_repr(self) -> str:
        """Return the sizes."""
        return ", ".join(map(str, self.table.shape))


class ClassToken(ConstrainedLayer):
    """Trainable entries before those of an example along an axis, or behind them.

    Args:
        shape: of ``tokens``: that of an example, but for the axis.
        bound: ‖tokens‖ ≤ this, over all entries. They start at 0, as biases do.
        axis: of an example, from 0.
        last: behind the example's own entries.
    """

    tokens: Tensor

    def __init__(
        self, shape: tuple[int, ...], bound: float | Constraint, axis: int = 0, last: bool = False
    ) -> None:
        super().__init__()
        self.axis, self.last = axis, last
        constraint = bound if isinstance(bound, Constraint) else Ball(bound)
        self._constrain("tokens", torch.zeros(shape), constraint, Translation())

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, …] to [B, …], longer along the axis.

        Raises:
            ValueError: another shape than that of the tokens, outside of the axis.
        """
        own, along = list(self.tokens.shape), self.axis + 1
        fits = list(x.shape[1:along]) == own[: self.axis] and list(x.shape[along + 1 :]) == own[along:]
        if x.dim() != len(own) + 1 or not fits:
            raise ValueError(
                f"tokens of shape {tuple(own)} cannot be joined to {tuple(x.shape)} along axis {self.axis}"
            )
        tokens = spread(self.tokens, torch.Size((len(x), *own)))
        return torch.cat([x, tokens] if self.last else [tokens, x], dim=along)

    def extra_repr(self) -> str:
        """Return the shape and the place."""
        return f"{tuple(self.tokens.shape)}, axis={self.axis}, last={self.last}"


class Attention(ConstrainedLayer):
    """Multi-head dot-product attention (Vaswani et al., 2017), scores divided by √(features / heads), no biases.

    Args:
        features: of the queries and of the output; ``query`` and ``output`` are [features, features].
        heads: divides ``features``.
        context_features: of the context; ``key`` and ``value`` are [features, context_features].
        causal: row i sees the rows up to i.
        dropout: probability that a weight becomes 0 in training; the others are divided by 1 - dropout.
        constraint: of the four matrices, which start semi-orthogonal, scaled to their bounds.

    Raises:
        ValueError: the heads do not divide the features, or the probability is none.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor

    def __init__(
        self,
        features: int,
        heads: int,
        context_features: int | None = None,
        causal: bool = False,
        dropout: float = 0.0,
        constraint: Constraints = None,
    ) -> None:
        super().__init__()
        if features % heads or not 0 <= dropout < 1:
            raise ValueError(f"{heads} heads for {features} features, dropout {dropout}")
        self.heads, self.causal, self.dropout = heads, causal, dropout
        width = features if context_features is None else context_features
        for name, columns in (("query", features), ("key", width), ("value", width), ("output", features)):
            own = constraint[name] if isinstance(constraint, Mapping) else constraint or Spectral()
            start = nn.init.orthogonal_(torch.empty(features, columns))
            self._constrain(name, own.fill(start, Dense()), own, Dense())

    def _split(self, x: Tensor) -> Tensor:
        """[B, n, features] to [B, heads, n, features / heads]."""
        return x.reshape(*x.shape[:2], self.heads, x.shape[2] // self.heads).transpose(1, 2)

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        """Map [B, n, features] to [B, n, features]; with a context [B, k, context_features], look at that.

        Raises:
            ValueError: other shapes.
        """
        context = x if context is None else context
        for part, matrix in ((x, self.query), (context, self.key)):
            if part.dim() != 3 or part.shape[2] != matrix.shape[1]:
                raise ValueError(f"expected sequences [B, n, {matrix.shape[1]}], got {tuple(part.shape)}")
        if self.causal and context is not x:
            raise ValueError("causal attention needs the same sequence for queries, keys and values")
        parts = (linear(x, self.query), linear(context, self.key), linear(context, self.value))
        queries, keys, values = (self._split(part) for part in parts)
        gathered = dot_product_attention(
            queries, keys, values, causal=self.causal, dropout=self.dropout, training=self.training
        )
        return linear(gathered.transpose(1, 2).flatten(2), self.output)

    def extra_repr(self) -> str:
        """Return the sizes."""
        return f"{self.query.shape[0]}, heads={self.heads}, causal={self.causal}"
