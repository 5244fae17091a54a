"""Dense layers, biases, convolutions, embeddings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lipcompile.core.graph import Node
from lipcompile.emitters.onnx.writer import Emit, Writer
from lipcompile.ops.resample.onnx_write import padded


def _dense(writer: Writer, node: Node, x: Sequence[str]) -> str:
    """Gemm for vectors; with more axes, a product and a sum."""
    weight = writer.weight(node, "weight")
    bias = [writer.weight(node, "bias")] if "bias" in node.parameters else []
    if len(node.shape) == 1:
        return writer.op("Gemm", x[0], weight, *bias, transB=1)
    made = writer.op("MatMul", x[0], writer.op("Transpose", weight, perm=[1, 0]))
    return writer.op("Add", made, *bias) if bias else made


def _bias(writer: Writer, node: Node, x: Sequence[str]) -> str:
    return writer.op("Add", x[0], writer.weight(node, "bias"))


def _conv(writer: Writer, node: Node, x: Sequence[str]) -> str:
    conv, source = node.attributes, x[0]
    padding = conv.padding
    if conv.padding_mode != "zeros":
        source = padded(writer, source, padding, conv.padding_mode, len(node.shape))
        padding = ((0, 0),) * len(padding)
    return writer.op("Conv", source, *_stored(writer, node), **_window(node, padding))


def _conv_transpose(writer: Writer, node: Node, x: Sequence[str]) -> str:
    window = _window(node, node.attributes.padding)
    extra = list(node.attributes.output_padding)
    return writer.op("ConvTranspose", x[0], *_stored(writer, node), output_padding=extra, **window)


def _stored(writer: Writer, node: Node) -> list[str]:
    return [writer.weight(node, role) for role in ("weight", "bias") if role in node.parameters]


def _window(node: Node, padding: Sequence[tuple[int, int]]) -> dict[str, Any]:
    conv = node.attributes
    return {
        "kernel_shape": list(conv.kernel),
        "strides": list(conv.stride),
        "pads": [low for low, _ in padding] + [high for _, high in padding],
        "dilations": list(conv.dilation),
        "group": conv.groups,
    }


def _embedding(writer: Writer, node: Node, x: Sequence[str]) -> str:
    return writer.op("Gather", writer.weight(node, "table"), x[0], axis=0)


def _class_token(writer: Writer, node: Node, x: Sequence[str]) -> str:
    """Stored entries, once for each example, joined with those of the example."""
    token, axis = node.attributes, node.attributes.axis + 1
    shape = list(node.shape)
    shape[token.axis] = token.count
    sizes = writer.op("Shape", x[0], start=0, end=1)
    copies = writer.op("Concat", sizes, writer.integers(*shape), axis=0)
    tokens = writer.op("Expand", writer.weight(node, "tokens"), copies)
    return writer.op("Concat", *((x[0], tokens) if token.last else (tokens, x[0])), axis=axis)


EMITTERS: Mapping[str, Emit] = {
    "dense": _dense,
    "bias": _bias,
    "conv": _conv,
    "conv_transpose": _conv_transpose,
    "embedding": _embedding,
    "class_token": _class_token,
}
