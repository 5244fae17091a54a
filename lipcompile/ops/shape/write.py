"""How ops that move, cut or clip entries are written: as Python of torch, and as operators of ONNX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lipcompile.core.graph import Node
from lipcompile.emitters.onnx.writer import Emit, Writer
from lipcompile.emitters.torch.pieces import Expression, below, probability
from lipcompile.ops.shape.rules import permutation

# As Python


def _reshape(node: Node, operands: Sequence[str]) -> str:
    sizes = ", ".join(map(str, node.shape))
    return f"{operands[0]}.reshape({operands[0]}.shape[0], {sizes})"


def _transpose(node: Node, operands: Sequence[str]) -> str:
    axes = ", ".join(str(axis + 1) for axis in permutation(node.attributes, node.site.inputs[0]))
    return f"{operands[0]}.permute(0, {axes})"


def _slice(node: Node, operands: Sequence[str]) -> str:
    part = node.attributes
    return f"{operands[0]}.narrow({part.axis + 1}, {part.start}, {part.stop - part.start})"


def _block(function: str) -> Expression:
    return lambda node, operands: f"functional.{function}({operands[0]}, {node.attributes.size})"


EXPRESSIONS: Mapping[str, Expression] = {
    "identity": lambda node, x: x[0],
    "flatten": lambda node, x: f"{x[0]}.flatten(1)" if node.site.inputs[0] else f"{x[0]}[:, None]",
    "reshape": _reshape,
    "transpose": _transpose,
    "space_to_depth": _block("space_to_depth"),
    "depth_to_space": _block("depth_to_space"),
    "patches": _block("patches"),
    "slice": _slice,
    "clip_norm": lambda node, x: f"functional.clip_norm({x[0]}, {below(node.attributes.radius)})",
    "clip_gradient": lambda node, x: f"self.clip_gradient({x[0]}, {below(node.attributes.bound)})",
    "grouped_dropout": lambda node, x: (
        f"functional.grouped_dropout({x[0]}, {probability(node.attributes.probability)}, {node.attributes.axes}, "
        "self.training)"
    ),
    "dropout": lambda node, x: f"F.dropout({x[0]}, {probability(node.attributes.probability)}, self.training)",
}

# As operators of ONNX


def _identity(writer: Writer, node: Node, x: Sequence[str]) -> str:
    return writer.op("Identity", x[0])


def _transpose_nodes(writer: Writer, node: Node, x: Sequence[str]) -> str:
    axes = permutation(node.attributes, node.site.inputs[0])
    return writer.op("Transpose", x[0], perm=[0, *(axis + 1 for axis in axes)])


def _slice_nodes(writer: Writer, node: Node, x: Sequence[str]) -> str:
    part = node.attributes
    return writer.part(x[0], part.axis, part.start, part.stop)


def _blocks(writer: Writer, node: Node, x: str, order: Sequence[int]) -> str:
    """Split an image into blocks; ONNX's SpaceToDepth has another order of channels than torch."""
    (channels, height, width), r = node.site.inputs[0], node.attributes.size
    apart = writer.reshape(x, (channels, height // r, r, width // r, r))
    return writer.op("Transpose", apart, perm=list(order))


def _clip_norm(writer: Writer, node: Node, x: Sequence[str]) -> str:
    """x·r/max(r, ‖x‖)."""
    axes = range(len(node.shape))
    norm = writer.reduce("ReduceL2", x[0], axes, keep=True)
    longest = writer.op("Max", norm, writer.number(node.attributes.radius, "below"))
    return writer.op("Mul", writer.op("Div", x[0], longest), writer.number(node.attributes.radius, "below"))


def _dropout(writer: Writer, node: Node, x: Sequence[str]) -> str:
    return dropped(writer, x[0], node.attributes.probability)


def dropped(writer: Writer, x: str, probability: object) -> str:
    """Dropout, which acts in a file for training alone."""
    import numpy as np

    ratio = writer.number(probability)  # type: ignore[arg-type]
    active = [writer.constant(np.array(True))] if writer.training else []
    return writer.op("Dropout", x, ratio, *active)


def _grouped_dropout(writer: Writer, node: Node, x: Sequence[str]) -> str:
    """Times ones [batch, the axes with fates of their own, 1, …] of which some are dropped."""
    from onnx import helper

    axes = node.attributes.axes
    if not writer.training or axes == len(node.shape):
        return _dropout(writer, node, x)
    own = writer.op("Shape", x[0], start=0, end=1 + axes)
    sizes = writer.op("Concat", own, writer.integers(*(1,) * (len(node.shape) - axes)), axis=0)
    ones = writer.op("ConstantOfShape", sizes, value=helper.make_tensor("", 1, [1], [1.0]))
    return writer.op("Mul", x[0], dropped(writer, ones, node.attributes.probability))


EMITTERS: Mapping[str, Emit] = {
    "identity": _identity,
    "flatten": lambda writer, node, x: (
        writer.op("Flatten", x[0], axis=1) if node.site.inputs[0] else writer.reshape(x[0], (1,))
    ),
    "reshape": lambda writer, node, x: writer.reshape(x[0], node.shape),
    "transpose": _transpose_nodes,
    "space_to_depth": lambda writer, node, x: writer.reshape(
        _blocks(writer, node, x[0], (0, 1, 3, 5, 2, 4)), node.shape
    ),
    "depth_to_space": lambda writer, node, x: writer.op(
        "DepthToSpace", x[0], blocksize=node.attributes.size, mode="CRD"
    ),
    "patches": lambda writer, node, x: writer.reshape(_blocks(writer, node, x[0], (0, 2, 4, 1, 3, 5)), node.shape),
    "slice": _slice_nodes,
    "clip_norm": _clip_norm,
    "clip_gradient": _identity,
    "dropout": _dropout,
    "grouped_dropout": _grouped_dropout,
}
