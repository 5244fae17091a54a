"""How activations with trained numbers and reflections are written: as Python of torch, as operators of ONNX."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from lipcompile.core.graph import Node
from lipcompile.emitters.onnx.writer import Emit, Writer
from lipcompile.emitters.torch.pieces import Expression, Layer, Parameters, axis_of, nearest, radius
from lipcompile.ops.activation.write import grouped

# As Python


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

# As operators of ONNX

HALF = Fraction(1, 2)


def _reflected(writer: Writer, node: Node, x: str, angle: str) -> str:
    """z + 2·max(0, -⟨v, z⟩)·v for pairs z, with v = (sin(angle/2), -cos(angle/2))."""
    axis, pair = axis_of(node) + 1, axis_of(node) + 2
    pairs = grouped(node.shape, axis, 2)
    half = writer.times(angle, HALF)
    sine, cosine = writer.op("Sin", half), writer.op("Cos", half)
    apart = writer.reshape(x, pairs)
    first, second = (
        writer.reshape(writer.part(apart, axis, i, i + 1), (*pairs[:axis], *pairs[pair:])) for i in (0, 1)
    )
    behind = writer.op("Sub", writer.op("Mul", second, cosine), writer.op("Mul", first, sine))
    depth = writer.times(writer.op("Relu", behind), Fraction(2))
    moved = (
        writer.op("Add", first, writer.op("Mul", depth, sine)),
        writer.op("Sub", second, writer.op("Mul", depth, cosine)),
    )
    one = (*pairs[:axis], 1, *pairs[pair:])
    return writer.reshape(writer.op("Concat", *(writer.reshape(z, one) for z in moved), axis=pair), node.shape)


EMITTERS: Mapping[str, Emit] = {
    "prelu": lambda writer, node, x: writer.op("PRelu", x[0], writer.weight(node, "slope")),
    "scale": lambda writer, node, x: writer.op("Mul", x[0], writer.weight(node, "gain")),
    "householder": lambda writer, node, x: _reflected(writer, node, x[0], writer.weight(node, "angle")),
    "fixed_householder": lambda writer, node, x: _reflected(
        writer, node, x[0], writer.number(node.attributes.angle)
    ),
}
