"""Attention, with and without projections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lipcompile.core.graph import Node
from lipcompile.emitters.torch.pieces import Expression, Layer, Parameters, constraint, keywords, nearest


def _attention(node: Node, parameters: Parameters) -> list[str]:
    queries, context = node.site.inputs[0][1], node.site.inputs[-1][1]
    optional = {
        "context_features": (context, queries),
        "causal": (node.attributes.causal, False),
        "dropout": (float(nearest(node.attributes.dropout)), 0.0),
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
    dropout = float(nearest(attributes.dropout))
    optional = keywords({"causal": (attributes.causal, False), "dropout": (dropout, 0.0)})
    training = ["training=self.training"] if dropout else []
    return f"functional.dot_product_attention({', '.join([*operands, *scale, *optional, *training])})"


EXPRESSIONS: Mapping[str, Expression] = {"dot_product_attention": _dot_product}
LAYERS: Mapping[str, Layer] = {"attention": Layer(lambda node: "Attention", _attention)}
