"""How embeddings and class tokens are written: as Python of torch, and as operators of ONNX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lipcompile.core.graph import Node
from lipcompile.emitters.onnx.writer import Emit, Writer
from lipcompile.emitters.torch.pieces import Layer, Parameters, keywords, radius

# As Python


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

# As operators of ONNX


def _class_token_nodes(writer: Writer, node: Node, x: Sequence[str]) -> str:
    """Stored entries, once for each example, joined with those of the example."""
    token, axis = node.attributes, node.attributes.axis + 1
    shape = list(node.shape)
    shape[token.axis] = token.count
    sizes = writer.op("Shape", x[0], start=0, end=1)
    copies = writer.op("Concat", sizes, writer.integers(*shape), axis=0)
    tokens = writer.op("Expand", writer.weight(node, "tokens"), copies)
    return writer.op("Concat", *((x[0], tokens) if token.last else (tokens, x[0])), axis=axis)


EMITTERS: Mapping[str, Emit] = {
    "embedding": lambda writer, node, x: writer.op("Gather", writer.weight(node, "table"), x[0], axis=0),
    "class_token": _class_token_nodes,
}
