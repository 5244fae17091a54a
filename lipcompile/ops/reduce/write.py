"""How reductions over axes of the example are written: as Python of torch, and as operators of ONNX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lipcompile.core.graph import Node
from lipcompile.emitters.onnx.writer import Emit, Writer
from lipcompile.emitters.torch.pieces import Expression

# As Python


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

# As operators of ONNX


def _reduced(op_type: str) -> Emit:
    def emit(writer: Writer, node: Node, x: Sequence[str]) -> str:
        axes = node.attributes.over(node.site.inputs[0])
        return writer.reduce(op_type, x[0], axes, keep=node.attributes.keep)

    return emit


EMITTERS: Mapping[str, Emit] = {
    "reduce_mean": _reduced("ReduceMean"),
    "reduce_sum": _reduced("ReduceSum"),
    "reduce_max": _reduced("ReduceMax"),
    "reduce_min": _reduced("ReduceMin"),
    "reduce_l2": _reduced("ReduceL2"),
    "reduce_l1": _reduced("ReduceL1"),
    "logsumexp": _reduced("ReduceLogSumExp"),
    "global_avg_pool": _reduced("ReduceMean"),
    "global_max_pool": _reduced("ReduceMax"),
    "global_l2_pool": _reduced("ReduceL2"),
}
