"""Ops that bring several tensors together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce

from lipcompile.core.graph import Node
from lipcompile.emitters.torch.pieces import Expression, aligned, axis_of, nearest


def _sum(node: Node, operands: Sequence[str]) -> str:
    terms = []
    for operand, shape, weight in zip(operands, node.site.inputs, node.attributes.weights, strict=True):
        term = aligned(operand, shape, len(node.shape))
        terms.append(term if weight == 1 else f"{nearest(weight)} * {term}")
    return " + ".join(terms)


def _product(node: Node, operands: Sequence[str]) -> str:
    pairs = zip(operands, node.site.inputs, strict=True)
    return " * ".join(aligned(operand, shape, len(node.shape)) for operand, shape in pairs)


def _nested(function: str) -> Expression:
    """function(function(a, b), c): of as many operands as there are."""
    return lambda node, operands: reduce(lambda a, b: f"{function}({a}, {b})", operands)


def _where(node: Node, operands: Sequence[str]) -> str:
    bits = "".join("01"[entry] for entry in node.attributes.mask)
    return f'functional.where({", ".join(operands)}, mask="{int(bits, 2):x}")'


EXPRESSIONS: Mapping[str, Expression] = {
    "add": _sum,
    "multiply": _product,
    "matmul": lambda node, operands: " @ ".join(operands),
    "concat": lambda node, operands: f"torch.cat([{', '.join(operands)}], dim={axis_of(node) + 1})",
    "maximum": _nested("torch.maximum"),
    "minimum": _nested("torch.minimum"),
    "where": _where,
}
