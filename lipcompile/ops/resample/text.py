"""Copies and interpolation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lipcompile.core.graph import Node
from lipcompile.emitters.torch.pieces import Expression, axis_of, keywords


def _pad(node: Node, operands: Sequence[str]) -> str:
    optional = {"mode": (node.attributes.mode, "zeros")}
    return f"functional.pad({', '.join([operands[0], f'{node.attributes.padding}', *keywords(optional)])})"


def _upsample(node: Node, operands: Sequence[str]) -> str:
    up = node.attributes
    optional = {"align_corners": (up.align_corners, False)}
    return f"functional.upsample({', '.join([operands[0], f'{up.factor}', repr(up.mode), *keywords(optional)])})"


EXPRESSIONS: Mapping[str, Expression] = {
    "pad": _pad,
    "upsample": _upsample,
    "gather": lambda node, x: f"functional.gather({x[0]}, {node.attributes.indices}, axis={axis_of(node)})",
    "expand": lambda node, x: f"functional.expand({x[0]}, {node.shape})",
}
