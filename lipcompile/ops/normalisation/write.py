"""How centring and norms are written: as Python of torch, and as operators of ONNX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import prod
from typing import Any

import numpy as np

from lipcompile.core.graph import Node
from lipcompile.core.record import Shape
from lipcompile.emitters.onnx.writer import Emit, Writer, float32
from lipcompile.emitters.torch.pieces import Expression, above, nearest
from lipcompile.ops.normalisation.rules import axes_of

# As Python


def _floor(attributes: Any) -> str:
    if attributes.floor is not None:
        return f"floor={above(attributes.floor)}"
    return f"eps={above(attributes.eps)}"


def _axes(node: Node) -> str:
    return f"{axes_of(node.attributes.axes, node.site.inputs[0])}"


def _over_axes(function: str) -> Expression:
    return lambda node, x: f"functional.{function}({x[0]}, {_axes(node)}, {_floor(node.attributes)})"


def _local_response(node: Node, operands: Sequence[str]) -> str:
    local = node.attributes
    numbers = f"alpha={nearest(local.alpha)}, beta={nearest(local.beta)}, k={above(local.k)}"
    return f"functional.local_response_norm({operands[0]}, {local.size}, {numbers})"


EXPRESSIONS: Mapping[str, Expression] = {
    "center": lambda node, x: f"functional.center({x[0]}, {_axes(node)})",
    "layer_norm": _over_axes("layer_norm"),
    "rms_norm": _over_axes("rms_norm"),
    "group_norm": lambda node, operands: (
        f"functional.group_norm({operands[0]}, {node.attributes.groups}, {_floor(node.attributes)})"
    ),
    "instance_norm": lambda node, x: f"functional.instance_norm({x[0]}, {_floor(node.attributes)})",
    "lrn": _local_response,
}

# As operators of ONNX


def centred(writer: Writer, x: str, axes: Sequence[int]) -> str:
    """x less its mean."""
    return writer.op("Sub", x, writer.reduce("ReduceMean", x, axes, keep=True))


def divided(writer: Writer, x: str, axes: Sequence[int], norm: Any) -> str:
    """x over the larger of its root mean square and a floor, or over √(mean square + eps)."""
    square = writer.reduce("ReduceMean", writer.op("Mul", x, x), axes, keep=True)
    if norm.floor is None:
        root = writer.op("Sqrt", writer.op("Add", square, writer.number(norm.eps, "above")))
    else:
        root = writer.op("Max", writer.op("Sqrt", square), writer.number(norm.floor, "above"))
    return writer.op("Div", x, root)


def _layer_norm(writer: Writer, node: Node, x: Sequence[str]) -> str:
    """LayerNormalization, with factors of 1, where that is what it does."""
    shape, norm = node.site.inputs[0], node.attributes
    axes = axes_of(norm.axes, shape)
    if norm.floor is not None or axes != tuple(range(axes[0], len(shape))):
        return divided(writer, centred(writer, x[0], axes), axes, norm)
    ones = writer.constant(np.ones(shape[axes[0] :], dtype=np.float32))
    epsilon = float(float32(norm.eps, "above"))
    return writer.op("LayerNormalization", x[0], ones, axis=axes[0] + 1, epsilon=epsilon)


def _group_norm(writer: Writer, node: Node, x: Sequence[str]) -> str:
    """The norm of runs of channels, as rows of their own."""
    shape, groups = node.site.inputs[0], node.attributes.groups
    rows: Shape = (groups, prod(shape) // groups)
    apart = writer.reshape(x[0], rows)
    return writer.reshape(divided(writer, centred(writer, apart, (1,)), (1,), node.attributes), shape)


def _instance_norm(writer: Writer, node: Node, x: Sequence[str]) -> str:
    axes = tuple(range(1, len(node.shape)))
    return divided(writer, centred(writer, x[0], axes), axes, node.attributes)


def _local_response_nodes(writer: Writer, node: Node, x: Sequence[str]) -> str:
    """LRN; for even sizes its window is not torch's, and the sum is written out.

    With alpha or beta 0, which runtimes refuse, it is a multiplication.
    """
    local = node.attributes
    if not local.alpha * local.beta:
        return writer.op("Identity", writer.times(x[0], Fraction(float(local.k) ** -float(local.beta))))
    if local.size % 2:
        return _lrn(writer, node, x[0])
    channels, rank = node.shape[0], len(node.shape)
    pads = [0, local.size // 2, *(0,) * rank, (local.size - 1) // 2, *(0,) * (rank - 1)]
    squares = writer.op("Pad", writer.op("Mul", x[0], x[0]), writer.integers(*pads))
    total = writer.op("Sum", *(writer.part(squares, 0, tap, tap + channels) for tap in range(local.size)))
    divisor = writer.op("Add", writer.times(total, local.alpha / local.size), writer.number(local.k))
    return writer.op("Div", x[0], writer.op("Pow", divisor, writer.number(local.beta)))


def _lrn(writer: Writer, node: Node, x: str) -> str:
    """LRN, which runtimes have for images alone."""
    local, shape = node.attributes, node.shape
    numbers = {"alpha": local.alpha, "beta": local.beta, "bias": local.k}
    given = {name: float(float32(value)) for name, value in numbers.items()}
    if len(shape) == 3:
        return writer.op("LRN", x, size=local.size, **given)
    image = writer.reshape(x, (shape[0], prod(shape[1:]), 1))
    return writer.reshape(writer.op("LRN", image, size=local.size, **given), shape)


EMITTERS: Mapping[str, Emit] = {
    "center": lambda writer, node, x: centred(writer, x[0], axes_of(node.attributes.axes, node.site.inputs[0])),
    "layer_norm": _layer_norm,
    "rms_norm": lambda writer, node, x: divided(
        writer, x[0], axes_of(node.attributes.axes, node.site.inputs[0]), node.attributes
    ),
    "group_norm": _group_norm,
    "instance_norm": _instance_norm,
    "lrn": _local_response_nodes,
}
