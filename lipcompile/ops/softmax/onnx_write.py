"""Softmax and its logarithm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lipcompile.core.graph import Node
from lipcompile.emitters.onnx.writer import Emit, Writer, axis_of


def _softmax(writer: Writer, node: Node, x: Sequence[str]) -> str:
    return writer.op("Softmax", writer.times(x[0], node.attributes.temperature, "below"), axis=axis_of(node))


EMITTERS: Mapping[str, Emit] = {
    "softmax": _softmax,
    "log_softmax": lambda writer, node, x: writer.op("LogSoftmax", x[0], axis=axis_of(node)),
}
