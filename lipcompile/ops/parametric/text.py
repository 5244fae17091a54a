"""Activations with trainable numbers, and reflections of pairs."""

from __future__ import annotations

from collections.abc import Mapping

from lipcompile.core.graph import Node
from lipcompile.emitters.torch.pieces import Expression, Layer, Parameters, axis_of, nearest, radius


def _shape_and_bound(node: Node, parameters: Parameters) -> list[str]:
    """Write the arguments of a layer with one parameter in a box."""
    (parameter,) = parameters.values()
    return [f"{parameter.shape}", f"bound={radius(parameter)}"]


EXPRESSIONS: Mapping[str, Expression] = {
    "fixed_householder": lambda node, x: (
        f"functional.householder({x[0]}, {nearest(node.attributes.angle)}, axis={axis_of(node)})"
    )
}
LAYERS: Mapping[str, Layer] = {
    "prelu": Layer(lambda node: "PReLU", _shape_and_bound),
    "scale": Layer(lambda node: "Scale", _shape_and_bound),
    "householder": Layer(
        lambda node: "Householder",
        lambda node, parameters: [f"{parameters['angle'].shape}", f"axis={axis_of(node)}"],
    ),
}
