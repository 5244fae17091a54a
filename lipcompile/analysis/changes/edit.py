"""The editor of graphs: other ops at nodes, layers put behind values; shapes are inferred again by the rules."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from lipcompile.analysis.requirements import examine
from lipcompile.core.graph import Graph, Input, LossUse, Node, Parameter
from lipcompile.core.names import Names
from lipcompile.core.record import AnyOp, Shape, Site
from lipcompile.diagnostics import Refusal, Severity
from lipcompile.numbers import Scalar
from lipcompile.ops.shape.rules import ClipGradient
from lipcompile.ops.table import OP_BY_NAME

Kind = Literal["scale", "structure", "training"]
# What stands in the place of a node: an op and its attributes.
Replacement = tuple[AnyOp, Any]
# What makes a bound smaller by a smaller share is no change of it.
NO_CHANGE = 1e-6


@dataclass(frozen=True, slots=True)
class Patch:
    """The changed parts of a graph: nodes and parameters by name, the input, the loss, a clip of the output."""

    nodes: Mapping[str, Replacement] = field(default_factory=dict)
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    input: Input | None = None
    loss: LossUse | None = None
    clip: Scalar | None = None


@dataclass(frozen=True, slots=True)
class Edit:
    """A change that can be written: where, what, and what it does to the graph."""

    kind: Kind
    place: str
    description: str
    patch: Patch


@dataclass(frozen=True, slots=True)
class Family:
    """Edits of one sort at different places, which may be done one by one or all together.

    summary: says what all of them do where their descriptions differ.
    """

    summary: str
    edits: Sequence[Edit]

    def together(self) -> Edit:
        """Return the edit of all places."""
        if len(self.edits) == 1:
            return self.edits[0]
        texts = {edit.description for edit in self.edits}
        one = self.edits[0].description if len(texts) == 1 else self.summary
        nodes = {name: new for edit in self.edits for name, new in edit.patch.nodes.items()}
        parameters = {name: new for edit in self.edits for name, new in edit.patch.parameters.items()}
        place = listed([edit.place for edit in self.edits])
        return Edit(self.edits[0].kind, place, f"{one}, {len(self.edits)} times", Patch(nodes, parameters))


def of_parameters(kind: Kind, node: Node, changed: Sequence[Parameter], description: str) -> Edit:
    """Return the edit of an argument of a layer that declares these parameters."""
    place = changed[0].name if len(changed) == 1 else node.name
    return Edit(kind, place, description, Patch(parameters={parameter.name: parameter for parameter in changed}))


def listed(names: Sequence[str], shown: int = 3) -> str:
    """Return the first names, and how many more there are."""
    more = len(names) - shown
    return ", ".join(names) if more <= 0 else f"{', '.join(names[:shown])} and {more} more"


def applied(graph: Graph, patch: Patch) -> Graph | None:
    """Return the changed graph; None if a rule refuses it, or it could not be trained any more."""
    changed = replace(
        graph,
        parameters={**graph.parameters, **patch.parameters},
        input=patch.input or graph.input,
        loss=patch.loss or graph.loss,
    )
    rebuilt = rebuild(changed, patch.nodes) if patch.nodes else changed
    if rebuilt is not None and patch.clip is not None:
        clip = ("clip_gradient", OP_BY_NAME["clip_gradient"], ClipGradient(patch.clip))
        rebuilt = put_behind(rebuilt, rebuilt.output, [clip], as_output=True)
    trained = any(parameter.trainable for parameter in changed.parameters.values())
    return rebuilt if rebuilt is not None and trained and not is_refused(rebuilt) else None


def rebuild(graph: Graph, replacements: Mapping[str, Replacement]) -> Graph | None:
    """Return the graph with other ops at some nodes, shapes inferred again; None where that cannot be.

    It cannot be if a shape rule refuses, the shape of the output changes, a value is repeated (`loop`) in another
    shape, a parameter would have two shapes or another one than its imported value, or an imported weight that is
    kept in the norm that was certified of its map would make another map.
    """
    shapes: dict[str, Shape] = {graph.input.name: graph.input.shape}
    nodes: list[Node] = []
    try:
        for node in graph.nodes:
            made = _again(node, replacements.get(node.name), tuple(shapes[name] for name in node.inputs))
            kept = (graph.parameters[name] for name in made.parameters.values())
            if made is not node and any(parameter.constraint.method for parameter in kept):
                return None  # a norm that was certified of another map
            nodes.append(made)
            shapes[node.name] = made.shape
        parameters = _parameters(graph.parameters, nodes)
    except Refusal:
        return None
    if shapes[graph.output] != graph.shape(graph.output):
        return None
    return replace(graph, nodes=tuple(nodes), parameters=parameters)


def _again(node: Node, replacement: Replacement | None, inputs: tuple[Shape, ...]) -> Node:
    if replacement is None and inputs == node.site.inputs:
        return node
    if node.op.name == "loop":
        raise Refusal("LIP102", "the repeated part keeps its shape")
    op, attributes = replacement or (node.op, node.attributes)
    return replace(node, op=op, attributes=attributes, site=Site(attributes, inputs, op.shape(attributes, inputs)))


def _parameters(declared: Mapping[str, Parameter], nodes: Iterable[Node]) -> dict[str, Parameter]:
    """Return the parameters in the shapes that the nodes need; raises `Refusal`."""
    needed: dict[str, Shape] = {}
    for node in nodes:
        for role, name in node.parameters.items():
            shape = node.op.parameter(role).shape(node.attributes, node.site.inputs)
            if needed.setdefault(name, shape) != shape:
                raise Refusal("LIP308", f"`{name}` would have two shapes")
    for name, shape in needed.items():
        if declared[name].initial is not None and declared[name].shape != shape:
            raise Refusal("LIP303", f"the imported `{name}` has another shape")
    return {name: replace(old, shape=needed[name]) for name, old in declared.items()}


def put_behind(
    graph: Graph,
    value: str,
    chain: Sequence[tuple[str, AnyOp, Any]],
    readers: Collection[str] = (),
    *,
    as_output: bool = False,
) -> Graph:
    """Return the graph in which some readers of a value read what a chain of layers, by suffix, makes of it.

    The layers must keep its shape. as_output: whether the model returns what they make.
    """
    names = Names({graph.input.name, *(node.name for node in graph.nodes)})
    made: list[Node] = []
    shape, current = graph.shape(value), value
    for suffix, op, attributes in chain:
        site = Site(attributes, (shape,), op.shape(attributes, (shape,)))
        made.append(Node(names.fresh(f"{value}_{suffix}"), op, attributes, (current,), site, {}))
        current = made[-1].name
    nodes = [node.reading(value, current) if node.name in readers else node for node in graph.nodes]
    place = next((i for i, node in enumerate(graph.nodes, start=1) if node.name == value), 0)
    output = current if as_output else graph.output
    return replace(graph, nodes=(*nodes[:place], *made, *nodes[place:]), output=output)


def is_refused(graph: Graph) -> bool:
    """Whether a changed graph does not hold the requirements."""
    return any(found.severity == Severity.ERROR for found in examine(graph))


def without_overlap(node: Node) -> Any:
    """Return the attributes of a pool whose windows are as wide as their steps; None if its shape would change."""
    axes = len(node.attributes.kernel)
    windows = {"kernel": node.attributes.stride, "padding": ((0, 0),) * axes, "dilation": (1,) * axes}
    narrow = replace(node.attributes, **windows, ceil_mode=False)
    try:
        return narrow if node.op.shape(narrow, node.site.inputs) == node.shape else None
    except Refusal:
        return None
