"""Ops that bring several tensors together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lipcompile.graph import Node

from .text import Expression, aligned, axis_of, nearest


def _sum(node: Node, operands: Sequence[str]) -> str:
    terms = []
    for operand, shape, weight in zip(operands, node.site.inputs, node.attributes.weights, strict=True):
        term = aligned(operand, shape, len(node.shape))
        terms.append(term if weight == 1 else f"{nearest(weight)} * {term}")
    return " + ".join(terms)


def _concat(node: Node, operands: Sequence[str]) -> str:
    return f"torch.cat([{', '.join(operands)}], dim={axis_of(node) + 1})"


EXPRESSIONS: Mapping[str, Expression] = {"add": _sum, "concat": _concat}
