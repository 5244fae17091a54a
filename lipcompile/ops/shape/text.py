"""Ops that move entries about, cut some off, or clip the whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lipcompile.core.graph import Node
from lipcompile.emitters.torch.pieces import Expression, below, nearest
from lipcompile.ops.shape.rules import permutation


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
        f"functional.grouped_dropout({x[0]}, {nearest(node.attributes.probability)}, {node.attributes.axes}, "
        "self.training)"
    ),
    "dropout": lambda node, x: f"F.dropout({x[0]}, {nearest(node.attributes.probability)}, self.training)",
}
