"""Attention whose tokens have bounded length: its slope grows with the square of their length.

A row is cut to the length f·√d as x·f/max(f, ρ), ρ its root mean square: a norm with the floor f, whose slope is
1/f, times f. So the two together stretch nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from math import isqrt

from lipcompile.analysis.fix.edit import Changed, Wanted, put_before
from lipcompile.core.graph import Graph, Node
from lipcompile.ops.merge.rules import SUM, Sum
from lipcompile.ops.normalisation.rules import OverAxes
from lipcompile.ops.table import OP_BY_NAME

_ATTENTION = ("attention", "dot_product_attention")
# What may stand between tokens and the layers that make queries, keys and values of them.
_MOVING = ("reshape", "transpose", "slice", "bias", "add", "identity", "flatten", "expand", "scale", "dropout")


def bounded(graph: Graph, wanted: Wanted) -> Changed:
    """Cut tokens to length 1 where attention reads them."""
    found: dict[str, set[str]] = {}
    places = []
    for node in graph.nodes:
        if node.op.name in _ATTENTION:
            reads = [pair for pair in _reads(graph, node) if not _is_cut(graph, pair[0])]
            places += [node.name] if reads else []
            for value, reader in reads:
                found.setdefault(value, set()).add(reader)
    for value, readers in found.items():
        graph = _cut(graph, value, readers)
    return Changed(graph, tuple(places))


def _reads(graph: Graph, node: Node) -> Iterator[tuple[str, str]]:
    """Yield the tokens that attention looks at or from, and who reads them: it, or what projects them."""
    for operand in dict.fromkeys(node.inputs):
        projection = None if node.op.name == "attention" else _projection(graph, operand)
        yield (operand, node.name) if projection is None else (projection.inputs[0], projection.name)


def _projection(graph: Graph, value: str) -> Node | None:
    """Return the dense layer that queries, keys or values come from, None if there is none."""
    while value != graph.input.name:
        node = graph.node(value)
        if node.op.name == "dense":
            return node
        if node.op.name not in _MOVING or len(node.inputs) != 1:
            return None
        value = node.inputs[0]
    return None


def _is_cut(graph: Graph, value: str) -> bool:
    """Whether a value is that of `_cut`."""
    named = {node.name: node for node in graph.nodes}
    node = named.get(value)
    if node is None or node.op is not SUM or len(node.inputs) != 1:
        return False
    before = named.get(node.inputs[0])
    return (
        before is not None
        and before.op.name == "rms_norm"
        and before.attributes.floor == node.attributes.weights[0]
    )


def _cut(graph: Graph, value: str, readers: set[str]) -> Graph:
    width = graph.shape(value)[-1]
    share = Fraction(1, isqrt(width - 1) + 1)  # at most 1/√width
    chain = (
        ("directions", OP_BY_NAME["rms_norm"], OverAxes(share, None, (-1,))),
        ("bounded", SUM, Sum((share,))),
    )
    return put_before(graph, readers, value, chain)
