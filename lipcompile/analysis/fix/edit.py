"""What a kind of change is told, what it gives back, and layers put in front of others."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from lipcompile.analysis.what_if.edit import Replacement, rebuild
from lipcompile.core.graph import Graph, Node
from lipcompile.core.names import Names
from lipcompile.ops.record import AnyOp, Site


@dataclass(frozen=True, slots=True)
class Wanted:
    """floor: of the deviation that a norm divides by."""

    floor: Fraction = Fraction(1)


@dataclass(frozen=True, slots=True)
class Changed:
    """A graph after one kind of change at `places`; `not_made` says of other places why it was not made there."""

    graph: Graph
    places: tuple[str, ...] = ()
    not_made: Mapping[str, str] = field(default_factory=dict)


def replaced(graph: Graph, found: Mapping[str, Replacement], not_made: Mapping[str, str] | None = None) -> Changed:
    """Return the graph with other ops at some nodes; nothing is changed where a rule refuses one of them."""
    made = rebuild(graph, found) if found else graph
    if made is None:
        return Changed(graph, (), {**(not_made or {}), **dict.fromkeys(found, "shapes would change")})
    return Changed(made, tuple(found), not_made or {})


def put_before(
    graph: Graph, readers: Collection[str], value: str, chain: Sequence[tuple[str, AnyOp, Any]]
) -> Graph:
    """Return the graph in which some readers of a value read what a chain of layers, by suffix, makes of it.

    The layers must keep its shape.
    """
    names = Names()
    for taken in (graph.input.name, *(node.name for node in graph.nodes)):
        names.fresh(taken)
    made: list[Node] = []
    shape, current = graph.shape(value), value
    for suffix, op, attributes in chain:
        site = Site(attributes, (shape,), op.shape(attributes, (shape,)))
        made.append(Node(names.fresh(f"{value}_{suffix}"), op, attributes, (current,), site, {}))
        current = made[-1].name
    nodes = [_reading(node, value, current) if node.name in readers else node for node in graph.nodes]
    place = next((i for i, node in enumerate(graph.nodes, start=1) if node.name == value), 0)
    return replace(graph, nodes=(*nodes[:place], *made, *nodes[place:]))


def _reading(node: Node, old: str, new: str) -> Node:
    return replace(node, inputs=tuple(new if name == old else name for name in node.inputs))
