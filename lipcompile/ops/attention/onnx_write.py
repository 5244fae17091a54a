"""Attention, as exporters write it: products, a softmax, and axes that move."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

import numpy as np

from lipcompile.core.graph import Node
from lipcompile.emitters.onnx.writer import Emit, Writer
from lipcompile.ops.shape.onnx_write import dropped


def _projected(writer: Writer, node: Node, x: str, role: str) -> str:
    return writer.op("MatMul", x, writer.op("Transpose", writer.weight(node, role), perm=[1, 0]))


def _heads(writer: Writer, x: str, rows: int, heads: int, width: int) -> str:
    """[n, heads·width] to [heads, n, width]."""
    return writer.op("Transpose", writer.reshape(x, (rows, heads, width)), perm=[0, 2, 1, 3])


def _attention(writer: Writer, node: Node, x: Sequence[str]) -> str:
    """Heads of projected tokens, attended to, joined and projected."""
    (rows, features), (keys, _) = node.site.inputs[0], node.site.inputs[-1]
    heads = node.attributes.heads
    width = features // heads
    q, k, v = (
        _heads(writer, _projected(writer, node, operand, role), count, heads, width)
        for operand, role, count in ((x[0], "query", rows), (x[-1], "key", keys), (x[-1], "value", keys))
    )
    mixed = _mixed(writer, node, (q, k, v), (rows, keys), width, 4)
    joined = writer.reshape(writer.op("Transpose", mixed, perm=[0, 2, 1, 3]), (rows, features))
    return _projected(writer, node, joined, "output")


def _dot_product(writer: Writer, node: Node, x: Sequence[str]) -> str:
    queries, keys, _ = node.site.inputs
    q, k, v = x
    return _mixed(writer, node, (q, k, v), (queries[-2], keys[-2]), queries[-1], len(queries) + 1)


def _mixed(
    writer: Writer, node: Node, operands: tuple[str, str, str], sizes: tuple[int, int], width: int, rank: int
) -> str:
    """softmax(scale·q·kᵀ)·v."""
    q, k, v = operands
    order = [*range(rank - 2), rank - 1, rank - 2]
    scores = writer.op("MatMul", q, writer.op("Transpose", k, perm=order))
    scale: Fraction | None = getattr(node.attributes, "scale", None)
    scores = writer.times(scores, Fraction(1 / width**0.5) if scale is None else scale)
    if node.attributes.causal:
        later = np.triu(np.ones(sizes, dtype=np.bool_), 1)
        scores = writer.op("Add", scores, writer.constant(np.where(later, -np.inf, 0).astype(np.float32)))
    weights = writer.op("Softmax", scores, axis=-1)
    if node.attributes.dropout:
        weights = dropped(writer, weights, node.attributes.dropout)
    return writer.op("MatMul", weights, v)


EMITTERS: Mapping[str, Emit] = {"attention": _attention, "dot_product_attention": _dot_product}
