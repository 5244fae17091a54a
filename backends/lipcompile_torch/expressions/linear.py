"""Linear ops."""

from __future__ import annotations

from collections.abc import Mapping

from lipcompile.graph import Node
from lipcompile.ops import counting
from lipcompile.ops.linear import conv_windows

from .layer import Layer, Parameters, weight_and_bias
from .text import below, keywords


def _dense(node: Node, parameters: Parameters) -> list[str]:
    sizes = [f"{node.site.inputs[0][-1]}", f"{node.attributes.features}"]
    return [*sizes, *weight_and_bias(parameters)]


def _conv(node: Node, parameters: Parameters) -> list[str]:
    conv, windows = node.attributes, conv_windows(node.site)
    ones = (1,) * len(conv.kernel)
    optional = {
        "stride": (conv.stride, ones),
        "padding": (conv.padding, ((0, 0),) * len(conv.kernel)),
        "dilation": (conv.dilation, ones),
        "groups": (conv.groups, 1),
        "padding_mode": (conv.padding_mode, "zeros"),
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


def _bias(node: Node, parameters: Parameters) -> list[str]:
    return [f"{node.attributes.size}", f"bound={below(parameters['bias'].constraint.bound)}"]


LAYERS: Mapping[str, Layer] = {
    "dense": Layer(lambda node: "Dense", _dense),
    "conv": Layer(lambda node: f"Conv{len(node.attributes.kernel)}d", _conv),
    "bias": Layer(lambda node: "Bias", _bias),
}
