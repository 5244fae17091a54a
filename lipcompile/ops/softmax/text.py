"""Softmax and its logarithm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lipcompile.core.graph import Node
from lipcompile.emitters.torch.pieces import Expression, axis_of, below


def _softmax(node: Node, operands: Sequence[str]) -> str:
    temperature = node.attributes.temperature
    scaled = operands[0] if temperature == 1 else f"{below(temperature)} * {operands[0]}"
    return f"torch.softmax({scaled}, dim={axis_of(node) + 1})"


EXPRESSIONS: Mapping[str, Expression] = {
    "softmax": _softmax,
    "log_softmax": lambda node, x: f"torch.log_softmax({x[0]}, dim={axis_of(node) + 1})",
}
