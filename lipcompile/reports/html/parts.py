"""A graph as one list of parts: the bodies of its loops stand in their places."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from lipcompile.core.graph import Graph, Node
from lipcompile.numbers import Scalar


@dataclass(frozen=True, slots=True)
class Part:
    """A node, of the graph or of a loop's body, under a key that no other part has.

    inputs: the keys of what it reads. parameters: the names that the graph has for those it uses. layer: the node
    of the graph that it is, or is a part of.
    """

    key: str
    node: Node
    inputs: tuple[str, ...]
    parameters: tuple[str, ...]
    layer: str


@dataclass(frozen=True, slots=True)
class Body:
    """The parts from `first` up to, but not including, `stop`, which a loop repeats `count` times."""

    first: int
    stop: int
    count: int | Scalar


@dataclass(slots=True)
class Flat:
    """The parts of a graph, in its order, and which of them are bodies of loops, outer ones before inner ones."""

    parts: list[Part] = field(default_factory=list)
    bodies: list[Body] = field(default_factory=list)


def flat(graph: Graph) -> Flat:
    """Return the parts of a graph; its input has its own name as key."""
    found = Flat()
    names = {graph.input.name: graph.input.name}
    _add(found, graph.nodes, names, {name: name for name in graph.parameters})
    return found


def _add(
    found: Flat,
    nodes: Iterable[Node],
    keys: dict[str, str],
    parameters: Mapping[str, str],
    prefix: str = "",
    layer: str | None = None,
) -> None:
    """Add nodes; `keys` and `parameters` say what values and parameters are called in the whole graph."""
    for node in nodes:
        inputs = tuple(keys[name] for name in node.inputs)
        used = {role: parameters[name] for role, name in node.parameters.items()}
        own = f"{prefix}{node.name}"
        if node.op.name == "loop":
            keys[node.name] = _add_body(found, node, inputs[0], used, own, layer or node.name)
        else:
            found.parts.append(Part(own, node, inputs, tuple(used.values()), layer or node.name))
            keys[node.name] = own


def _add_body(found: Flat, node: Node, source: str, parameters: Mapping[str, str], own: str, layer: str) -> str:
    """Add the body of a loop, which reads the value `source`; return the key of what it returns."""
    loop, first, place = node.attributes, len(found.parts), len(found.bodies)
    keys = {loop.body.input.name: source}
    _add(found, loop.body.nodes, keys, parameters, f"{own}/", layer)
    if len(found.parts) > first:
        found.bodies.insert(place, Body(first, len(found.parts), loop.count.value or loop.count.scalar))
    return keys[loop.body.output]
