"""Reductions over axes of the example."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lipcompile.core.graph import Node
from lipcompile.emitters.torch.pieces import Expression


def _axes(node: Node) -> tuple[int, ...]:
    axes: tuple[int, ...] = node.attributes.over(node.site.inputs[0])
    return axes


def _method(name: str) -> Expression:
    """Return the expression `x.name(dim=…)`; it never names dimension 0, the batch."""

    def expression(node: Node, operands: Sequence[str]) -> str:
        dimensions = tuple(axis + 1 for axis in _axes(node))
        return f"{operands[0]}.{name}(dim={dimensions}{', keepdim=True' if node.attributes.keep else ''})"

    return expression


def _euclidean(node: Node, operands: Sequence[str]) -> str:
    return f"functional.l2_norm({operands[0]}, {_axes(node)}{', keep=True' if node.attributes.keep else ''})"


EXPRESSIONS: Mapping[str, Expression] = {
    "reduce_mean": _method("mean"),
    "reduce_sum": _method("sum"),
    "reduce_max": _method("amax"),
    "reduce_min": _method("amin"),
    "reduce_l2": _euclidean,
    "reduce_l1": _method("abs().sum"),
    "logsumexp": _method("logsumexp"),
    "global_avg_pool": _method("mean"),
    "global_max_pool": _method("amax"),
    "global_l2_pool": _euclidean,
}
