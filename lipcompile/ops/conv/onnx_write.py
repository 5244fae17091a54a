"""Convolutions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lipcompile.core.graph import Node
from lipcompile.emitters.onnx.writer import Emit, Writer
from lipcompile.ops.resample.onnx_write import padded


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


EMITTERS: Mapping[str, Emit] = {"conv": _conv, "conv_transpose": _conv_transpose}
