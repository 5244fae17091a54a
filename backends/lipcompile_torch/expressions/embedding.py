"""The embedding of tokens."""

from __future__ import annotations

from collections.abc import Mapping

from lipcompile.graph import Node

from .layer import Layer, Parameters
from .text import below


def _embedding(node: Node, parameters: Parameters) -> list[str]:
    sizes = [f"{node.attributes.entries}", f"{node.attributes.width}"]
    return [*sizes, f"bound={below(parameters['table'].constraint.bound)}"]


LAYERS: Mapping[str, Layer] = {"embedding": Layer(lambda node: "Embedding", _embedding)}
