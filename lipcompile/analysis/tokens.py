"""Which whole numbers an example of tokens may hold."""

from __future__ import annotations

from math import prod

from lipcompile.core.graph import Graph
from lipcompile.core.record import Vocabulary
from lipcompile.ops.shape.rules import Slice


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
    import numpy as np

    arrays = {graph.input.name: np.arange(prod(graph.input.shape)).reshape(graph.input.shape)}
    for node in graph.nodes:
        if node.op.takes == "any" and node.inputs[0] in arrays:
            array, part = arrays[node.inputs[0]], node.attributes
            if isinstance(part, Slice):
                array = array.take(range(part.start, part.stop), axis=part.axis)
            arrays[node.name] = array.reshape(node.shape)
    return {name: array.reshape(-1).tolist() for name, array in arrays.items()}
