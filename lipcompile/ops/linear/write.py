"""How dense layers and biases are written: as Python of torch, and as operators of ONNX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lipcompile.core.graph import Node
from lipcompile.emitters.onnx.writer import Emit, Writer
from lipcompile.emitters.torch.pieces import Layer, Parameters, radius, weight_and_bias

# As Python


def _dense(node: Node, parameters: Parameters) -> list[str]:
    sizes = [f"{node.site.inputs[0][-1]}", f"{node.attributes.features}"]
    return [*sizes, *weight_and_bias(parameters)]


def _bias(node: Node, parameters: Parameters) -> list[str]:
    return [f"{node.attributes.size}", f"bound={radius(parameters['bias'])}"]


LAYERS: Mapping[str, Layer] = {
    "dense": Layer(lambda node: "Dense", _dense),
    "bias": Layer(lambda node: "Bias", _bias),
}

# As operators of ONNX


def _dense_nodes(writer: Writer, node: Node, x: Sequence[str]) -> str:
    """Gemm for vectors; with more axes, a product and a sum."""
    weight = writer.weight(node, "weight")
    bias = [writer.weight(node, "bias")] if "bias" in node.parameters else []
    if len(node.shape) == 1:
        return writer.op("Gemm", x[0], weight, *bias, transB=1)
    made = writer.op("MatMul", x[0], writer.op("Transpose", weight, perm=[1, 0]))
    return writer.op("Add", made, *bias) if bias else made


EMITTERS: Mapping[str, Emit] = {
    "dense": _dense_nodes,
    "bias": lambda writer, node, x: writer.op("Add", x[0], writer.weight(node, "bias")),
}
