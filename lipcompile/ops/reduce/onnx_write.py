"""Reductions over axes of the example."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lipcompile.core.graph import Node
from lipcompile.emitters.onnx.writer import Emit, Writer


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
