"""Convolutions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lipcompile.core.graph import Node
from lipcompile.emitters.torch.pieces import Layer, Parameters, keywords, weight_and_bias
from lipcompile.ops import counting
from lipcompile.ops.conv.rules import adjoint_windows, conv_windows


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
