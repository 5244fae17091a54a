"""How convolutions are written: as Python of torch, and as operators of ONNX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lipcompile.core.graph import Node
from lipcompile.emitters.onnx.writer import Emit, Writer, window_attributes
from lipcompile.emitters.torch.pieces import Layer, Parameters, keywords, weight_and_bias
from lipcompile.ops import counting
from lipcompile.ops.conv.rules import adjoint_windows, conv_windows
from lipcompile.ops.resample.write import padded

# As Python


def _conv(node: Node, parameters: Parameters) -> list[str]:
    own = {"padding_mode": (node.attributes.padding_mode, "zeros")}
    return _kernel(node, parameters, conv_windows(node.site), own)


def _conv_transpose(node: Node, parameters: Parameters) -> list[str]:
    extra = node.attributes.output_padding
    own = {"output_padding": (extra, (0,) * len(extra))}
    return _kernel(node, parameters, adjoint_windows(node.site), own)


def _kernel(
    node: Node, parameters: Parameters, windows: tuple[counting.Window, ...], own: dict[str, tuple[Any, Any]]
) -> list[str]:
    conv = node.attributes
    ones = (1,) * len(conv.kernel)
    optional = {
        "stride": (conv.stride, ones),
        "padding": (conv.padding, ((0, 0),) * len(conv.kernel)),
        "dilation": (conv.dilation, ones),
        "groups": (conv.groups, 1),
        **own,
    }
    return [
        f"{node.site.inputs[0][0]}",
        f"{conv.channels}",
        f"kernel_size={conv.kernel}",
        f"input_size={node.site.inputs[0][1:]}",
        f"reads={counting.reads(windows)}",
        f"taps={counting.taps(windows)}",
        *keywords(optional),
        *weight_and_bias(parameters),
    ]


LAYERS: Mapping[str, Layer] = {
    "conv": Layer(lambda node: f"Conv{len(node.attributes.kernel)}d", _conv),
    "conv_transpose": Layer(lambda node: f"ConvTranspose{len(node.attributes.kernel)}d", _conv_transpose),
}

# As operators of ONNX


def _conv_nodes(writer: Writer, node: Node, x: Sequence[str]) -> str:
    conv, source = node.attributes, x[0]
    padding = conv.padding
    if conv.padding_mode != "zeros":
        source = padded(writer, source, padding, conv.padding_mode, len(node.shape))
        padding = ((0, 0),) * len(padding)
    return writer.op("Conv", source, *_stored(writer, node), **_window(node, padding))


def _conv_transpose_nodes(writer: Writer, node: Node, x: Sequence[str]) -> str:
    given = _window(node, node.attributes.padding)
    extra = list(node.attributes.output_padding)
    return writer.op("ConvTranspose", x[0], *_stored(writer, node), output_padding=extra, **given)


def _stored(writer: Writer, node: Node) -> list[str]:
    return [writer.weight(node, role) for role in ("weight", "bias") if role in node.parameters]


def _window(node: Node, padding: Sequence[tuple[int, int]]) -> dict[str, Any]:
    conv = node.attributes
    return {**window_attributes(node, padding), "dilations": list(conv.dilation), "group": conv.groups}


EMITTERS: Mapping[str, Emit] = {"conv": _conv_nodes, "conv_transpose": _conv_transpose_nodes}
