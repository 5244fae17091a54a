"""What a graph of an ONNX file must be to mean anything: every name is made once, before it is read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from onnx import GraphProto, NodeProto

from lipcompile.diagnostics import Diagnostic, Location

_HELP = "export the model again"
# Names that are told of a circle, and findings of a graph.
_LONGEST, _MOST = 8, 20

Finding = tuple[str, "NodeProto | None"]


def problems(graph: GraphProto, at: Location) -> tuple[Diagnostic, ...]:
    """Return what is wrong with a graph's names, its order and its attributes (LIP003), not those of subgraphs."""
    found = [*_twice(graph), *_unmade(graph), *_outside_functions(graph)]
    circle = _circle(graph) if found else []
    if circle:
        around = " → ".join([*(f"`{name}`" for name in circle[:_LONGEST]), "…"])
        found = [(f"tensors depend on one another in a circle: {around}", None)]
    return tuple(_diagnostic(message, node, at) for message, node in found[:_MOST])


def reaching(graph: GraphProto) -> list[NodeProto]:
    """Return the nodes that the outputs are computed from: weights that others read are not used twice."""
    makers = {name: node for node in graph.node for name in node.output if name}
    waiting, needed = [value.name for value in graph.output], set[str]()
    while waiting:
        name = waiting.pop()
        if name not in needed and name in makers:
            waiting += makers[name].input
        needed.add(name)
    return [node for node in graph.node if needed.intersection(node.output)]


def _diagnostic(message: str, node: NodeProto | None, at: Location) -> Diagnostic:
    if node is None:
        return Diagnostic("LIP003", message, _HELP, location=at)
    name = node.name or next(iter(node.output), "")
    return Diagnostic("LIP003", message, _HELP, node=name, op=node.op_type, location=at)


def _given(graph: GraphProto) -> set[str]:
    stored = [tensor.name for tensor in graph.initializer]
    stored += [tensor.values.name for tensor in graph.sparse_initializer]
    return {*stored, *(value.name for value in graph.input)}


def _twice(graph: GraphProto) -> Iterator[Finding]:
    for what, entries in (("stored tensor", graph.initializer), ("input", graph.input)):
        seen = set[str]()
        for entry in entries:
            if entry.name in seen:
                yield f"the {what} `{entry.name}` is declared twice", None
            seen.add(entry.name)
    made = _given(graph)
    for node in graph.node:
        for name in filter(None, node.output):
            if name in made:
                yield f"`{name}` is made twice", node
            made.add(name)


def _outside_functions(graph: GraphProto) -> Iterator[Finding]:
    """What refers to the attributes of a function, although calls of functions are written out."""
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.ref_attr_name:
                refers = f"`{attribute.name}` is the attribute `{attribute.ref_attr_name}` of a function"
                yield f"{refers}, and {node.op_type} stands in none", node


def _unmade(graph: GraphProto) -> Iterator[Finding]:
    made = _given(graph)
    for node in graph.node:
        for name in node.input:
            if name and name not in made:
                yield f"`{name}` is read, and nothing makes it before", node
        made.update(node.output)
    for value in graph.output:
        if value.name not in made:
            yield f"nothing makes the output `{value.name}`", None


def _circle(graph: GraphProto) -> Sequence[str]:
    import networkx as nx

    drawing = nx.DiGraph()
    for node in graph.node:
        drawing.add_edges_from((source, name) for source in node.input for name in node.output if source and name)
    try:
        return [source for source, _ in nx.find_cycle(drawing)]
    except nx.NetworkXNoCycle:
        return []
