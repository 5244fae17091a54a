"""The rerolling pass: find what a graph repeats, by structure, and stand a loop for it.

The graph is cut at its bottlenecks, the values that every path from input to output passes. Between two of them
stands a layer, or a whole residual block. Segments of the same structure get the same key, and what repeats in
the sequence of keys repeats in the graph. Found loops say how bounds grow with their counts; nothing certified
rests on them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from typing import Any

from lipcompile.analysis.depth.loops import GROWING, Loop, NotAffineError, affine, loop_op, loops, with_loop
from lipcompile.core.derivation import Unsolved
from lipcompile.core.graph import Graph, Input, Node, Parameter
from lipcompile.core.record import Site
from lipcompile.numbers import Count, Symbol

# Longer periods are not looked for: the search is linear in the nodes times this.
LONGEST_PERIOD = 64

Segment = tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repetition:
    """`count` copies in a row of what stands at start … start + period - 1 of a sequence."""

    start: int
    period: int
    count: int

    @property
    def length(self) -> int:
        """How much of the sequence it covers."""
        return self.period * self.count


def bottlenecks(graph: Graph) -> list[str]:
    """Return the values that every path from input to output passes, in order, both ends included.

    Nodes stand in topological order, and each reaches the output: so those that no edge bridges.
    """
    place = {graph.input.name: 0, **{node.name: i for i, node in enumerate(graph.nodes, start=1)}}
    farthest = [0] * len(place)
    for node in graph.nodes:
        for operand in node.inputs:
            farthest[place[operand]] = place[node.name]
    found, reach = [], 0
    for name, index in place.items():
        if reach <= index:
            found.append(name)
        reach = max(reach, farthest[index])
    return found


def segments(graph: Graph) -> list[Segment]:
    """Return the nodes between bottlenecks, in order."""
    ends = set(bottlenecks(graph))
    found: list[Segment] = []
    current: list[Node] = []
    for node in graph.nodes:
        current.append(node)
        if node.name in ends:
            found.append(tuple(current))
            current = []
    return found


def rerolled(graph: Graph) -> tuple[Graph, tuple[Unsolved, ...]]:
    """Return the graph with loops instead of what stands at least twice in a row, and what has no affine step.

    Loops are put into loops. Longer periods than `LONGEST_PERIOD` stretches are not found.
    """
    parts = segments(graph)
    uses = _uses(graph.nodes)
    numbers: dict[Hashable, int] = {}
    keys = [numbers.setdefault(_key(segment, graph.parameters, uses), len(numbers)) for segment in parts]
    # Copies begin with layers that have weights rather than with the activations between them.
    heads = {key for key, segment in zip(keys, parts, strict=True) if any(node.parameters for node in segment)}
    rerolling = _Rerolling(graph, parts, keys, heads, _names(graph))
    nodes = rerolling.sequence(0, len(parts), graph.input.name)
    used = {name for node in nodes for name in node.parameters.values()}
    parameters = {name: p for name, p in {**graph.parameters, **rerolling.stacked}.items() if name in used}
    found = replace(graph, nodes=tuple(nodes), parameters=parameters, output=rerolling.output)
    return _alone(found) if rerolling.number == 1 else found, tuple(rerolling.unsolved)


def _alone(graph: Graph) -> Graph:
    """Write T, not T_1, for the number of copies in the only loop."""
    [loop] = [node.attributes for node in loops(graph) if node.attributes.copies]
    return with_loop(graph, replace(loop, count=Count(_copies("T", loop.name), loop.count.value)))


def _copies(symbol: str, name: str) -> Symbol:
    return Symbol(symbol, f"number of copies of {name}")


def _uses(nodes: Segment) -> Counter[str]:
    """Return how often nodes use each parameter."""
    return Counter(name for node in nodes for name in node.parameters.values())


def _key(segment: Segment, parameters: Mapping[str, Parameter], uses: Mapping[str, int]) -> Hashable:
    """Return what equal stretches have in common: ops, attributes, shapes, constraints, and how they are wired.

    The order in which a file lists branches does not count. A parameter that is used elsewhere goes by its name.
    """
    nodes = ordered(segment)
    order = {node.name: index for index, node in enumerate(nodes)}
    local = _uses(segment)
    letters: dict[str, Hashable] = {}
    entries = []
    for node in nodes:
        used = []
        for role, parameter in node.parameters.items():
            elsewhere = local[parameter] < uses[parameter]
            letters.setdefault(parameter, parameter if elsewhere else len(letters))
            p = parameters[parameter]
            used.append((role, letters[parameter], p.shape, p.constraint, p.trainable))
        operands = tuple(order.get(operand, -1) for operand in node.inputs)
        entries.append((node.op.name, _hashable(node.attributes), node.site.inputs, operands, tuple(used)))
    return tuple(entries)


def ordered(segment: Segment) -> list[Node]:
    """Return the nodes of a segment in an order that its structure alone decides, operands first."""
    inside = {node.name: node for node in segment}
    found: dict[str, Node] = {}
    waiting = [(segment[-1].name, False)]
    while waiting:
        name, ready = waiting.pop()
        if ready:
            found[name] = inside[name]
        elif name not in found:
            waiting.append((name, True))
            waiting += [(operand, False) for operand in reversed(inside[name].inputs) if operand in inside]
    return list(found.values())


def _hashable(attributes: Any) -> Hashable:
    """Return attributes as they are if they can be compared, else their identity."""
    try:
        hash(attributes)
    except TypeError:
        return id(attributes)
    return attributes  # type: ignore[no-any-return]


def repetitions(keys: Sequence[int], heads: Container[int] = ()) -> list[Repetition]:
    """Return runs that do not overlap, in order: preferred are those that cover most, then short periods.

    Between them nothing stands twice in a row. Where copies may begin at several places, they begin with one of
    the keys `heads` if they can.
    """
    waiting = [_ranked(*candidate) for candidate in _candidates(keys)]
    heapify(waiting)
    taken = bytearray(len(keys))
    chosen = []
    while waiting:
        _, period, start, stop = heappop(waiting)
        free = list(_free(taken, start, stop))
        if free == [(start, stop)]:
            repeat = _aligned(keys, heads, period, start, stop)
            taken[repeat.start : repeat.start + repeat.length] = b"\1" * repeat.length
            chosen.append(repeat)
            continue
        for first, end in free:
            if end - first >= 2 * period:
                heappush(waiting, _ranked(period, first, end))
    return sorted(chosen, key=lambda repeat: repeat.start)


def _candidates(keys: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Yield every period, and where it begins and ends, of at least two copies."""
    for period in range(1, min(LONGEST_PERIOD, len(keys) // 2) + 1):
        equal = 0
        for index in range(period, len(keys) + 1):
            if index < len(keys) and keys[index] == keys[index - period]:
                equal += 1
                continue
            if equal >= period:
                yield period, index - period - equal, index
            equal = 0


def _ranked(period: int, start: int, stop: int) -> tuple[int, int, int, int]:
    covered = (stop - start) // period * period
    return -covered, period, start, stop


def _free(taken: bytearray, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Yield the longest intervals within start … stop - 1 that are not taken."""
    while start < stop:
        end = taken.find(1, start, stop)
        end = stop if end < 0 else end
        if end > start:
            yield start, end
        start = taken.find(0, end, stop)
        if start < 0:
            return


def _aligned(keys: Sequence[int], heads: Container[int], period: int, start: int, stop: int) -> Repetition:
    """Return the repetition of as many copies as fit, begun with a head if one stands early enough."""
    count = (stop - start) // period
    starts = range(start, stop - count * period + 1)
    return Repetition(next((i for i in starts if keys[i] in heads), start), period, count)


@dataclass(slots=True)
class _Rerolling:
    """The rerolled nodes of a graph under construction.

    heads: keys with which copies begin if they can. taken: names in the graph. number: how many loops were found.
    stacked: the parameters of loops. unsolved: runs whose body has no affine step. output: the last value.
    """

    graph: Graph
    parts: Sequence[Segment]
    keys: Sequence[int]
    heads: Container[int]
    taken: frozenset[str]
    number: int = 0
    stacked: dict[str, Parameter] = field(default_factory=dict)
    unsolved: list[Unsolved] = field(default_factory=list)
    output: str = ""

    def sequence(self, start: int, stop: int, source: str) -> list[Node]:
        """Return the nodes that stand for stretches start … stop - 1, which read the value `source`."""
        nodes: list[Node] = []
        next_repeat = {start + repeat.start: repeat for repeat in repetitions(self.keys[start:stop], self.heads)}
        index, current = start, source
        while index < stop:
            repeat = next_repeat.get(index)
            loop = self._loop(replace(repeat, start=index)) if repeat else None
            if repeat and loop:
                nodes.append(self._node(loop, current))
            else:
                nodes += self._plain(index, repeat.length if repeat else 1, current)
            index += repeat.length if repeat else 1
            current = nodes[-1].name
        self.output = current
        return nodes

    def _plain(self, index: int, length: int, source: str) -> Iterator[Node]:
        entered = self._entered(index)
        yield from (node.reading(entered, source) for node in self.parts[index])
        for segment in self.parts[index + 1 : index + length]:
            yield from segment

    def _entered(self, index: int) -> str:
        """Return the value that segment `index` reads in the graph as it is."""
        return self.parts[index - 1][-1].name if index else self.graph.input.name

    def _loop(self, repeat: Repetition) -> Loop | None:
        """Return the loop that stands for a repetition, None if its body has no affine step."""
        before, stacked = self.number, dict(self.stacked)
        self.number += 1
        name, symbol = self._name(self.number), f"T_{self.number}"
        copies = [
            self.parts[i : i + repeat.period]
            for i in range(repeat.start, repeat.start + repeat.length, repeat.period)
        ]
        body = self._body(repeat, name)
        names = tuple(tuple(node.name for segment in copy for node in ordered(segment)) for copy in copies)
        later = {
            p for copy in copies[1:] for segment in copy for node in segment for p in node.parameters.values()
        }
        shared = later.intersection(body.parameters)
        loop = Loop(name, body, Count(_copies(symbol, name), repeat.count), GROWING, names, frozenset(shared))
        try:
            return affine(loop)
        except NotAffineError as error:
            self.number, self.stacked = before, stacked
            self.unsolved.append(Unsolved(names, str(error)))
            return None

    def _name(self, number: int) -> str:
        """Return a name that nothing in the graph has."""
        name = f"block_{number}"
        while name in self.taken or _entry(name) in self.taken:
            name += "_"
        return name

    def _body(self, repeat: Repetition, name: str) -> Graph:
        """Return the first copy as a graph of its own."""
        first = self.parts[repeat.start]
        shape = next(
            node.site.inputs[node.inputs.index(self._entered(repeat.start))]
            for node in first
            if self._entered(repeat.start) in node.inputs
        )
        entry = Input(_entry(name), shape, None)
        nodes = self.sequence(repeat.start, repeat.start + repeat.period, entry.name)
        used = dict.fromkeys(p for node in nodes for p in node.parameters.values())
        parameters = {p: self.stacked.get(p) or self.graph.parameters[p] for p in used}
        return Graph(name, entry, tuple(nodes), parameters, self.output, None)

    def _node(self, loop: Loop, source: str) -> Node:
        shape = loop.body.input.shape
        roles = {}
        for name, parameter in loop.body.parameters.items():
            own = name if name in loop.shared else f"{loop.name}.{name}"
            roles[name] = own
            self.stacked[own] = replace(parameter, name=own)
        return Node(loop.name, loop_op(loop), loop, (source,), Site(loop, (shape,), shape), roles)


def _entry(name: str) -> str:
    """Return the name of what the body of a loop reads."""
    return f"input_{name}"


def _names(graph: Graph) -> frozenset[str]:
    """Return the names of values, and of the layers that parameters are named after."""
    owners = (name.partition(".")[0] for name in graph.parameters)
    return frozenset((graph.input.name, *(node.name for node in graph.nodes), *owners))
