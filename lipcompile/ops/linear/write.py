"""How dense layers and biases are written: as Python of torch, and as operators of ONNX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lipcompile.core.graph import Node
from lipcompile.emitters.onnx.writer import Emit, Writer
from lipcompile.emitters.torch.pieces import Layer, Parameters, radius, weight_and_bias
from lipcompile.ops.linear.rules import DENSE

# As Python


def _dense(node: Node, parameters: Parameters) -> list[str]:
    sizes = [f"{node.site.inputs[0][-1]}", f"{node.attributes.features}"]
    return [*sizes, *weight_and_bias(parameters)]


def _bias(node: Node, parameters: Parameters) -> list[str]:
    return [f"{node.attributes.size}", f"bound={radius(parameters['bias'])}"]


LAYERS: Mapping[str, Layer] = {
    "dense": Layer(lambda node: "Dense", _dense),
    "dense_transpose": Layer(lambda node: "DenseTranspose", _dense),
    "bias": Layer(lambda node: "Bias", _bias),
}

# Uses of the matrix of another layer.
TIED: Mapping[str, str] = {
    "dense": "TiedDense()",
    "dense_transpose": "TiedDense(transposed=True)",
}

# As operators of ONNX


def _dense_nodes(writer: Writer, node: Node, x: Sequence[str]) -> str:
    """Gemm for vectors; with more axes, a product and a sum."""
    weight, is_stored_plain = writer.weight(node, "weight"), node.op is DENSE
    bias = [writer.weight(node, "bias")] if "bias" in node.parameters else []
    if len(node.shape) == 1:
        return writer.op("Gemm", x[0], weight, *bias, transB=int(is_stored_plain))
    weight = writer.op("Transpose", weight, perm=[1, 0]) if is_stored_plain else weight
    made = writer.op("MatMul", x[0], weight)
    return writer.op("Add", made, *bias) if bias else made


EMITTERS: Mapping[str, Emit] = {
    "dense": _dense_nodes,
    "dense_transpose": _dense_nodes,
    "bias": lambda writer, node, x: writer.op("Add", x[0], writer.weight(node, "bias")),
}
