"""Linear ops."""

from __future__ import annotations

from collections.abc import Mapping

from lipcompile.core.graph import Node
from lipcompile.emitters.torch.pieces import Layer, Parameters, radius, weight_and_bias


def _dense(node: Node, parameters: Parameters) -> list[str]:
    sizes = [f"{node.site.inputs[0][-1]}", f"{node.attributes.features}"]
    return [*sizes, *weight_and_bias(parameters)]


def _bias(node: Node, parameters: Parameters) -> list[str]:
    return [f"{node.attributes.size}", f"bound={radius(parameters['bias'])}"]


LAYERS: Mapping[str, Layer] = {
    "dense": Layer(lambda node: "Dense", _dense),
    "bias": Layer(lambda node: "Bias", _bias),
}
