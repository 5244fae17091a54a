"""How softmax and its logarithm is written: as Python of torch, and as operators of ONNX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lipcompile.core.graph import Node
from lipcompile.emitters.onnx.writer import Emit
from lipcompile.emitters.torch.pieces import Expression, axis_of, below

# As Python


def _softmax(node: Node, operands: Sequence[str]) -> str:
    temperature = node.attributes.temperature
    scaled = operands[0] if temperature == 1 else f"{below(temperature)} * {operands[0]}"
    return f"torch.softmax({scaled}, dim={axis_of(node) + 1})"


EXPRESSIONS: Mapping[str, Expression] = {
    "softmax": _softmax,
    "log_softmax": lambda node, x: f"torch.log_softmax({x[0]}, dim={axis_of(node) + 1})",
}

# As operators of ONNX

EMITTERS: Mapping[str, Emit] = {
    "softmax": lambda writer, node, x: writer.op(
        "Softmax", writer.times(x[0], node.attributes.temperature, "below"), axis=axis_of(node) + 1
    ),
    "log_softmax": lambda writer, node, x: writer.op("LogSoftmax", x[0], axis=axis_of(node) + 1),
}
