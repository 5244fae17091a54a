"""The embedding of tokens, and tokens beside them."""

from __future__ import annotations

from collections.abc import Mapping

from lipcompile.core.graph import Node
from lipcompile.emitters.torch.pieces import Layer, Parameters, keywords, radius


def _embedding(node: Node, parameters: Parameters) -> list[str]:
    sizes = [f"{node.attributes.entries}", f"{node.attributes.width}"]
    return [*sizes, f"bound={radius(parameters['table'])}"]


def _class_token(node: Node, parameters: Parameters) -> list[str]:
    attributes, tokens = node.attributes, parameters["tokens"]
    optional = keywords({"axis": (attributes.axis, 0), "last": (attributes.last, False)})
    return [f"{tokens.shape}", f"bound={radius(tokens)}", *optional]


LAYERS: Mapping[str, Layer] = {
    "embedding": Layer(lambda node: "Embedding", _embedding),
    "class_token": Layer(lambda node: "ClassToken", _class_token),
}
