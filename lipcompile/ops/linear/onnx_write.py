"""Dense layers and biases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lipcompile.core.graph import Node
from lipcompile.emitters.onnx.writer import Emit, Writer


def _dense(writer: Writer, node: Node, x: Sequence[str]) -> str:
    """Gemm for vectors; with more axes, a product and a sum."""
    weight = writer.weight(node, "weight")
    bias = [writer.weight(node, "bias")] if "bias" in node.parameters else []
    if len(node.shape) == 1:
        return writer.op("Gemm", x[0], weight, *bias, transB=1)
    made = writer.op("MatMul", x[0], writer.op("Transpose", weight, perm=[1, 0]))
    return writer.op("Add", made, *bias) if bias else made


EMITTERS: Mapping[str, Emit] = {
    "dense": _dense,
    "bias": lambda writer, node, x: writer.op("Add", x[0], writer.weight(node, "bias")),
}
