"""Which rows the drawing of a graph has, and in which lane runs what skips rows.

The bodies of loops stand in their places. Copies of a block are drawn once. What is still too long keeps its first
and its last rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

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


# The keys of the first and of the last part of what a loop repeats, and how often it does.
Body = tuple[str, str, int | Scalar]


def parts_of(graph: Graph) -> tuple[list[Part], list[Body]]:
    """Return the parts of a graph in its order, and which are bodies of loops, outer ones before inner ones.

    The input of the graph has its own name as key.
    """
    parts, bodies = list[Part](), list[Body]()

    def add(
        nodes: Iterable[Node],
        keys: dict[str, str],
        parameters: Mapping[str, str],
        prefix: str = "",
        layer: str = "",
    ) -> None:
        """Add nodes; `keys` and `parameters` say what values and parameters are called in the whole graph."""
        for node in nodes:
            inputs = tuple(keys[name] for name in node.inputs)
            used = {role: parameters[name] for role, name in node.parameters.items()}
            keys[node.name] = own = f"{prefix}{node.name}"
            if node.op.name != "loop":
                parts.append(Part(own, node, inputs, tuple(used.values()), layer or node.name))
                continue
            loop, first, place = node.attributes, len(parts), len(bodies)
            inner = {loop.body.input.name: inputs[0]}
            add(loop.body.nodes, inner, used, f"{own}/", layer or node.name)
            keys[node.name] = inner[loop.body.output]
            if len(parts) > first:
                bodies.insert(place, (parts[first].key, parts[-1].key, loop.count.value or loop.count.scalar))

    add(graph.nodes, {graph.input.name: graph.input.name}, {name: name for name in graph.parameters})
    return parts, bodies


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
    (parts, bodies), found = parts_of(graph), [block for block in blocks if block.repeats is not None]
    first = first_copies(found)
    rows = [Row(), *_shortened(_rows(parts, first), limit)]
    place = {graph.input.name: 0, **{part.key: index for index, row in enumerate(rows) for part in row.parts}}
    edges = sorted({edge for edge in _edges(parts, first, place) if edge[0] < edge[1]})
    of_loops = (Bracket(place[start], place[stop], count) for start, stop, count in bodies)
    return Layout(
        rows=tuple(rows),
        straight=tuple((start, end) for start, end in edges if end == start + 1),
        lanes=assign((start, end) for start, end in edges if end > start + 1),
        brackets=_nested([*_found_brackets(found, rows), *of_loops]),
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


def _nested(brackets: Sequence[Bracket]) -> tuple[Bracket, ...]:
    """Return brackets once each, with the number of others that hold them, outer ones first."""
    outer_first = sorted(dict.fromkeys(brackets), key=lambda bracket: (bracket.first, -bracket.last))
    return tuple(
        replace(one, depth=sum(o.first <= one.first and one.last <= o.last for o in outer_first[:index]))
        for index, one in enumerate(outer_first)
    )


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
