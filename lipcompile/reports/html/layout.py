"""Which rows the drawing of a graph has, and in which lane runs what skips rows.

The bodies of loops stand in their places. Copies of a block are drawn once. What is still too long keeps its first
and its last rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from lipcompile.core.derivation import Block
from lipcompile.core.graph import Graph, Node
from lipcompile.numbers import Scalar
from lipcompile.reports.rows import first_copies


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
class Parts:
    """The parts of a graph, in its order, and which of them are bodies of loops, outer ones before inner ones."""

    parts: list[Part] = field(default_factory=list)
    bodies: list[Body] = field(default_factory=list)


def parts_of(graph: Graph) -> Parts:
    """Return the parts of a graph; its input has its own name as key."""
    found = Parts()
    names = {graph.input.name: graph.input.name}
    _add(found, graph.nodes, names, {name: name for name in graph.parameters})
    return found


def _add(
    found: Parts,
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


def _add_body(found: Parts, node: Node, source: str, parameters: Mapping[str, str], own: str, layer: str) -> str:
    """Add the body of a loop, which reads the value `source`; return the key of what it returns."""
    loop, first, place = node.attributes, len(found.parts), len(found.bodies)
    keys = {loop.body.input.name: source}
    _add(found, loop.body.nodes, keys, parameters, f"{own}/", layer)
    if len(found.parts) > first:
        found.bodies.insert(place, Body(first, len(found.parts), loop.count.value or loop.count.scalar))
    return keys[loop.body.output]


# The most rows that are drawn of a graph.
LARGEST_DRAWING = 80

Edge = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Row:
    """The parts that a row stands for, itself the first. The input has none; of several, `hidden` says so."""

    parts: tuple[Part, ...] = ()
    hidden: bool = False


@dataclass(frozen=True, slots=True)
class Bracket:
    """Rows that stand for `count` copies (a number or a symbol), inside `depth` other brackets."""

    first: int
    last: int
    count: int | Scalar
    depth: int = 0


@dataclass(frozen=True, slots=True)
class Lane:
    """A value that skips rows: from row `start` to the rows `ends`, in order. Column 0 is next to the rows."""

    start: int
    ends: tuple[int, ...]
    column: int


@dataclass(frozen=True, slots=True)
class Layout:
    """The input is row 0. `straight` are edges from a row to the next one; `lanes` hold all others."""

    rows: tuple[Row, ...]
    straight: tuple[Edge, ...]
    lanes: tuple[Lane, ...]
    brackets: tuple[Bracket, ...]

    @property
    def columns(self) -> int:
        """How many lanes run side by side."""
        return max((lane.column + 1 for lane in self.lanes), default=0)


def layout(graph: Graph, blocks: Sequence[Block] = (), limit: int = LARGEST_DRAWING) -> Layout:
    """Lay out a graph in at most `limit` rows behind its input, and one for what is left out."""
    whole, found = parts_of(graph), [block for block in blocks if block.repeats is not None]
    first = first_copies(found)
    rows = [Row(), *_shortened(_rows(whole.parts, first), limit)]
    place = {graph.input.name: 0, **{part.key: index for index, row in enumerate(rows) for part in row.parts}}
    edges = sorted({edge for edge in _edges(whole.parts, first, place) if edge[0] < edge[1]})
    return Layout(
        rows=tuple(rows),
        straight=tuple((start, end) for start, end in edges if end == start + 1),
        lanes=assign((start, end) for start, end in edges if end > start + 1),
        brackets=_nested([*_found_brackets(found, rows), *_open_brackets(whole, place)]),
    )


def _rows(parts: Iterable[Part], first: Mapping[str, str]) -> list[Row]:
    members: dict[str, list[Part]] = {}
    for part in parts:
        drawn = first.get(part.layer, part.layer) + part.key.removeprefix(part.layer)
        members.setdefault(drawn, []).append(part)
    return [Row(tuple(found)) for found in members.values()]


def _shortened(rows: list[Row], limit: int) -> list[Row]:
    if len(rows) <= limit:
        return rows
    head, tail = rows[: limit // 2], rows[len(rows) - limit // 2 :]
    middle = rows[len(head) : len(rows) - len(tail)]
    return [*head, Row(tuple(part for row in middle for part in row.parts), hidden=True), *tail]


def _edges(parts: Iterable[Part], first: Mapping[str, str], place: Mapping[str, int]) -> Iterator[Edge]:
    """Yield the edges between rows; what later copies read is what their bracket says."""
    for part in parts:
        if part.layer not in first:
            yield from ((place[key], place[part.key]) for key in part.inputs)


def _found_brackets(blocks: Iterable[Block], rows: Sequence[Row]) -> Iterator[Bracket]:
    place: dict[str, list[int]] = defaultdict(list)
    for index, row in enumerate(rows):
        for part in row.parts if not row.hidden else ():
            place[part.layer].append(index)
    for block in blocks:
        inside = [index for name in block.layers[0] for index in place.get(name, ())]
        if inside:
            yield Bracket(min(inside), max(inside), len(block.layers))


def _open_brackets(whole: Parts, place: Mapping[str, int]) -> Iterator[Bracket]:
    for body in whole.bodies:
        yield Bracket(place[whole.parts[body.first].key], place[whole.parts[body.stop - 1].key], body.count)


def _nested(brackets: Sequence[Bracket]) -> tuple[Bracket, ...]:
    """Return brackets once each, with the number of others that hold them, outer ones first."""
    outer_first = sorted(dict.fromkeys(brackets), key=lambda bracket: (bracket.first, -bracket.last))
    return tuple(
        Bracket(one.first, one.last, one.count, sum(_holds(other, one) for other in outer_first[:index]))
        for index, one in enumerate(outer_first)
    )


def _holds(outer: Bracket, inner: Bracket) -> bool:
    return outer.first <= inner.first and inner.last <= outer.last


def assign(edges: Iterable[Edge]) -> tuple[Lane, ...]:
    """Give each value that skips rows the innermost free lane, short ones first: they are drawn inside long ones.

    A lane may begin in the row where another one of its column ends.
    """
    ends: dict[int, list[int]] = defaultdict(list)
    for start, end in edges:
        ends[start].append(end)
    columns: list[list[Lane]] = []
    for start, rows in sorted(ends.items(), key=lambda item: (max(item[1]) - item[0], item[0])):
        last = max(rows)
        free = (c for c, taken in enumerate(columns) if all(last <= t.start or t.ends[-1] <= start for t in taken))
        column = next(free, len(columns))
        columns += [[]] if column == len(columns) else []
        columns[column].append(Lane(start, tuple(sorted(rows)), column))
    return tuple(sorted((lane for taken in columns for lane in taken), key=lambda lane: lane.start))
