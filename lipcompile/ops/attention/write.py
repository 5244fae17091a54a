"""How attention is written: as Python of torch, and as operators of ONNX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

import numpy as np

from lipcompile.core.graph import Node
from lipcompile.emitters.onnx.writer import Emit, Writer
from lipcompile.emitters.torch.pieces import (
    Expression,
    Layer,
    Parameters,
    constraint,
    keywords,
    nearest,
    probability,
)
from lipcompile.ops.shape.write import dropped

# As Python


def _attention(node: Node, parameters: Parameters) -> list[str]:
    queries, context = node.site.inputs[0][1], node.site.inputs[-1][1]
    optional = {
        "context_features": (context, queries),
        "causal": (node.attributes.causal, False),
        "dropout": (float(probability(node.attributes.dropout)), 0.0),
    }
    sizes = [f"{queries}", f"{node.attributes.heads}"]
    return [*sizes, *keywords(optional), f"constraint={_constraints(parameters)}"]


def _constraints(parameters: Parameters) -> str:
    """Write the constraint of all four matrices, or of each where they differ."""
    written = {role: constraint(parameter) for role, parameter in parameters.items()}
    if len(set(written.values())) == 1:
        return next(iter(written.values()))
    return "{" + ", ".join(f'"{role}": {text}' for role, text in written.items()) + "}"


def _dot_product(node: Node, operands: Sequence[str]) -> str:
    attributes = node.attributes
    scale = [] if attributes.scale is None else [f"scale={nearest(attributes.scale)}"]
    dropout = float(probability(attributes.dropout))
    optional = keywords({"causal": (attributes.causal, False), "dropout": (dropout, 0.0)})
    training = ["training=self.training"] if dropout else []
    return f"functional.dot_product_attention({', '.join([*operands, *scale, *optional, *training])})"


EXPRESSIONS: Mapping[str, Expression] = {"dot_product_attention": _dot_product}
LAYERS: Mapping[str, Layer] = {"attention": Layer(lambda node: "Attention", _attention)}

# As operators of ONNX


def _projected(writer: Writer, node: Node, x: str, role: str) -> str:
    return writer.op("MatMul", x, writer.op("Transpose", writer.weight(node, role), perm=[1, 0]))


def _heads(writer: Writer, x: str, rows: int, heads: int, width: int) -> str:
    """[n, heads·width] to [heads, n, width]."""
    return writer.op("Transpose", writer.reshape(x, (rows, heads, width)), perm=[0, 2, 1, 3])


def _attention_nodes(writer: Writer, node: Node, x: Sequence[str]) -> str:
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


def _dot_product_nodes(writer: Writer, node: Node, x: Sequence[str]) -> str:
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


EMITTERS: Mapping[str, Emit] = {"attention": _attention_nodes, "dot_product_attention": _dot_product_nodes}
