"""Features of images that are whitened by constants: layers that hold these, without parameters."""

from __future__ import annotations

from collections.abc import Mapping

from lipcompile.core.graph import Node
from lipcompile.emitters.torch.pieces import Layer, Parameters, above, nearest


def _scattering(node: Node, parameters: Parameters) -> list[str]:
    own = node.attributes
    numbers = f"floor={above(own.floor)}", f"power={nearest(own.power)}"
    counts = f"channels={own.channels}", f"images={own.images}"
    return [
        f"{node.site.inputs[0]}",
        f"{own.scales}",
        f"{own.angles}",
        f"source='{own.source}'",
        *numbers,
        *counts,
    ]


def _patches(node: Node, parameters: Parameters) -> list[str]:
    own = node.attributes
    numbers = f"floor={above(own.floor)}", f"power={nearest(own.power)}"
    return [f"{node.site.inputs[0]}", f"{own.size}", f"{own.stride}", *numbers, f"images={own.images}"]


HOLDERS: Mapping[str, Layer] = {
    "whitened_scattering2d": Layer(lambda _: "WhitenedScattering2d", _scattering),
    "whitened_patches": Layer(lambda _: "WhitenedPatches", _patches),
}
