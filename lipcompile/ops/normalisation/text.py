"""Centring and norms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lipcompile.core.graph import Node
from lipcompile.emitters.torch.pieces import Expression, above, nearest
from lipcompile.ops.normalisation.rules import axes_of


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
