"""Softmax and its logarithm."""

from __future__ import annotations

from collections.abc import Mapping

from lipcompile.emitters.onnx.writer import Emit, axis_of

EMITTERS: Mapping[str, Emit] = {
    "softmax": lambda writer, node, x: writer.op(
        "Softmax", writer.times(x[0], node.attributes.temperature, "below"), axis=axis_of(node)
    ),
    "log_softmax": lambda writer, node, x: writer.op("LogSoftmax", x[0], axis=axis_of(node)),
}
