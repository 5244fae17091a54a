"""Linear ops."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lipcompile.core.graph import Node
from lipcompile.emitters.torch.expression import keywords
from lipcompile.emitters.torch.layer import Layer, Parameters, radius, weight_and_bias
from lipcompile.ops import counting
from lipcompile.ops.conv.transpose import adjoint_windows
from lipcompile.ops.linear.rules import conv_windows


def _dense(node: Node, parameters: Parameters) -> list[str]:
    sizes = [f"{node.site.inputs[0][-1]}", f"{node.attributes.features}"]
    return [*sizes, *weight_and_bias(parameters)]


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


def _bias(node: Node, parameters: Parameters) -> list[str]:
    return [f"{node.attributes.size}", f"bound={radius(parameters['bias'])}"]


LAYERS: Mapping[str, Layer] = {
    "dense": Layer(lambda node: "Dense", _dense),
    "conv": Layer(lambda node: f"Conv{len(node.attributes.kernel)}d", _conv),
    "conv_transpose": Layer(lambda node: f"ConvTranspose{len(node.attributes.kernel)}d", _conv_transpose),
    "bias": Layer(lambda node: "Bias", _bias),
}
