"""Which whole numbers an example may hold: one of tokens, and one of real numbers that select rows of tables."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from lipcompile.core.graph import Graph, Node
from lipcompile.core.record import Vocabulary
from lipcompile.ops.pointwise.rules import Pointwise
from lipcompile.ops.shape.rules import Slice

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]


def vocabulary(graph: Graph) -> Vocabulary | None:
    """Return how many different tokens every embedding that reads an entry has a row for; None for real numbers.

    It is one number if all entries may hold the same tokens.
    """
    tables = [node for node in graph.nodes if node.op.takes == "tokens"]
    if not tables:
        return None
    found = [max(node.attributes.entries for node in tables)] * prod(graph.input.shape)
    read = _entries_of_values(graph)
    for node in tables:
        for entry in read[node.inputs[0]]:
            found[entry] = min(found[entry], node.attributes.entries)
    return found[0] if len(set(found)) == 1 else tuple(found)


def _entries_of_values(graph: Graph) -> dict[str, list[int]]:
    """Return which entries of the input each value that has tokens holds."""
    return {name: array.reshape(-1).tolist() for name, array in _moved(graph).items()}


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


def places(graph: Graph) -> tuple[int, ...]:
    """Return how many rows the tables have in which an entry of real numbers is a place; 0 for any other entry.

    A place, one hot, is the one that equals the entry, up to a constant that is added to it before.
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
    return tuple(map(int, found))


_SPREADS = ("expand", "flatten", "reshape")


def _largest(graph: Graph, node: Node) -> int:
    """Return the largest whole number that a constant adds to places, 0 if there is none."""
    name = node.parameters.get("bias")
    values = None if name is None else graph.parameters[name].initial
    return 0 if values is None else max(int(values.max()), 0)
