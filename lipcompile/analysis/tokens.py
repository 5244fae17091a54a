"""Which whole numbers an example may hold: one of tokens, and one of real numbers that select rows of tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import TYPE_CHECKING, Any

from lipcompile.core.graph import Graph, Node
from lipcompile.core.record import Vocabulary
from lipcompile.ops.merge.rules import Sum
from lipcompile.ops.own.rules import OwnNetwork
from lipcompile.ops.pointwise.rules import Pointwise
from lipcompile.ops.shape.rules import Slice

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]


def vocabulary(graph: Graph) -> Vocabulary | None:
    """Return how many different tokens every embedding that reads an entry has a row for; None for real numbers.

    It is one number if all entries may hold the same tokens.
    """
    tables = [(node.inputs[0], node.attributes.entries) for node in graph.nodes if node.op.takes == "tokens"]
    tables += _of_networks(graph) if graph.input.tokens else ()
    if not tables:
        return None
    found = [max(rows for _, rows in tables)] * prod(graph.input.shape)
    read = _moved(graph)
    for value, rows in tables:
        for entry in read[value].reshape(-1).tolist():
            found[entry] = min(found[entry], rows)
    return found[0] if len(set(found)) == 1 else tuple(found)


def _of_networks(graph: Graph) -> list[tuple[str, int]]:
    """Return the whole numbers that networks of Python are given, and how many different ones each takes."""
    return [
        (value, rows)
        for node in graph.nodes
        if isinstance(node.attributes, OwnNetwork)
        for value, rows in zip(node.inputs, node.attributes.tokens, strict=False)
        if rows
    ]


def _moved(graph: Graph) -> dict[str, Array]:
    """Return which entries of the input each value holds that is made of them alone, whole numbers as they are."""
    import numpy as np

    arrays = {graph.input.name: np.arange(prod(graph.input.shape)).reshape(graph.input.shape)}
    for node in graph.nodes:
        part = node.attributes
        whole = isinstance(part, Pointwise) and part.function == "truncated"
        if (node.op.takes == "any" or whole) and node.inputs[0] in arrays:
            array = arrays[node.inputs[0]]
            if isinstance(part, Slice):
                array = array.take(range(part.start, part.stop), axis=part.axis)
            arrays[node.name] = array.reshape(node.shape)
    return arrays


def places(graph: Graph) -> tuple[range, ...]:
    """Return which whole numbers an entry of real numbers may be; none of what is no whole number, or any.

    It is a place in the rows of a table: one hot, that which equals the entry, up to a constant that is added
    before. Or it is compared with the numbers of n places, as the length of a text: 1 to n.
    """
    import numpy as np

    moved, nodes = _moved(graph), {node.name: node for node in graph.nodes}
    found = np.zeros(prod(graph.input.shape), int)
    for node in graph.nodes:
        if isinstance(node.attributes, Pointwise) and node.attributes.function == "equal":
            value, rows, below = node.inputs[0], node.shape[-1:], 0
            while value not in moved and value in nodes and nodes[value].op.name in ("bias", *_SPREADS):
                below = max(below, _largest(graph, nodes[value]))
                value = nodes[value].inputs[0]
            if value in moved and value != graph.input.name and rows and rows[0] > below:
                entries = moved[value].reshape(-1)
                known = np.where(found[entries] > 0, found[entries], rows[0] - below)
                found[entries] = np.minimum(known, rows[0] - below)
    for value, count in _of_networks(graph):
        found[moved[value].reshape(-1)] = count
    found_ranges = [range(int(rows)) for rows in found]
    for compared, count in _lengths(nodes, moved, graph.input.name):
        for entry in compared:
            found_ranges[entry] = found_ranges[entry] or range(1, count + 1)
    return tuple(found_ranges)


def _lengths(
    nodes: Mapping[str, Node], moved: Mapping[str, Array], source: str
) -> Iterator[tuple[list[int], int]]:
    """Yield the entries of the input that are compared with the numbers of places, and how many these are."""
    for node in nodes.values():
        compares = isinstance(node.attributes, Pointwise) and node.attributes.function in ("greater", "at_least")
        difference = nodes.get(node.inputs[0]) if compares else None
        if difference is None or not isinstance(difference.attributes, Sum) or not node.shape:
            continue
        for value in difference.inputs:
            while value not in moved and value in nodes and nodes[value].op.name in _SPREADS:
                value = nodes[value].inputs[0]
            if value in moved and value != source:
                yield moved[value].reshape(-1).tolist(), node.shape[-1]


_SPREADS = ("expand", "flatten", "reshape")


def _largest(graph: Graph, node: Node) -> int:
    """Return the largest whole number that a constant adds to places, 0 if there is none."""
    name = node.parameters.get("bias")
    values = None if name is None else graph.parameters[name].initial
    return 0 if values is None else max(int(values.max()), 0)
