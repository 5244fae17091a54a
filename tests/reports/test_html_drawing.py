"""The drawing of a graph: every edge is there, no two lanes overlap, copies stand once, and all of it fits."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import sympy
from hypothesis import given
from hypothesis import strategies as st

from lipcompile.core.derivation import Block, Bound
from lipcompile.core.graph import Graph, Value
from lipcompile.frontends.options import ModelOptions
from lipcompile.ops.merge.rules import Sum
from lipcompile.pipeline import load
from lipcompile.reports.html.drawing import Drawing, Mark, place
from lipcompile.reports.html.layout import Bracket, Layout, Row, assign, layout
from tests.networks import ONE, Network

# Each node reads one to three of what stands before it: how far back.
BACK = st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=3), min_size=1, max_size=25)


def dag(back: list[list[int]]) -> Graph:
    """Sums of earlier values; those that nothing reads are read by the last node."""
    network = Network((4,))
    values, unread = [network.end], {network.end.name: network.end}
    for places in back:
        read = [values[max(0, len(values) - 1 - place)] for place in places]
        values.append(_sum(network, read))
        unread = {n: v for n, v in unread.items() if v not in read} | {values[-1].name: values[-1]}
    _sum(network, list(unread.values()))
    return network.finish(None)


def _sum(network: Network, read: list[Value]) -> Value:
    operands = read if len(read) > 1 else [*read, *read]
    return network.add("add", Sum((ONE,) * len(operands)), *operands)


def residual(blocks: int) -> tuple[Graph, Block]:
    """Residual blocks in a row, and what is known of their repetition: here nothing but the layers."""
    network = Network((4,))
    for _ in range(blocks):
        network.residual(4)
    network.dense(2)
    graph = network.finish()
    names = [node.name for node in graph.nodes[:-1]]
    layers = tuple(tuple(names[i : i + 3]) for i in range(0, len(names), 3))
    return graph, block(layers)


def block(layers: tuple[tuple[str, ...], ...]) -> Block:
    unknown, zero = Bound(sympy.S.Zero, 0.0), sympy.S.Zero
    count, index = sympy.Symbol("T"), sympy.Symbol("t")
    repeats = len(layers)
    return Block(
        "block_1", layers, count, index, repeats, None, unknown, unknown, unknown, zero, zero, {}, zero, True
    )


OPEN = """model open {
    param depth: int
    input x: tensor[8], norm <= 1
    stem = dense(4)
    repeat depth { residual(mean) { dense(4); groupsort(2) } }
    head = dense(2)
    loss cross_entropy
}
"""


def drawn(found: Layout) -> set[tuple[int, int]]:
    return {*found.straight, *((lane.start, end) for lane in found.lanes for end in lane.ends)}


def wanted(graph: Graph, found: Layout) -> set[tuple[int, int]]:
    """The edges between different rows of a graph without copies."""
    place = {part.key: index for index, row in enumerate(found.rows) for part in row.parts}
    place[graph.input.name] = 0
    edges = {(place[operand], place[node.name]) for node in graph.nodes for operand in node.inputs}
    return {(start, end) for start, end in edges if start != end}


@given(BACK)
def test_every_edge_is_drawn_and_nothing_else(back: list[list[int]]) -> None:
    graph = dag(back)
    found = layout(graph)
    assert len(found.rows) == len(graph.nodes) + 1
    assert drawn(found) == wanted(graph, found)
    assert all(end == start + 1 for start, end in found.straight)


@given(BACK, st.integers(2, 8))
def test_a_long_graph_keeps_its_ends_and_the_edges_between_its_rows(back: list[list[int]], limit: int) -> None:
    graph = dag(back)
    found = layout(graph, limit=limit)
    assert len(found.rows) <= limit + 2
    assert sum(len(row.parts) for row in found.rows) == len(graph.nodes)
    assert found.rows[-1].parts[0].key == graph.output
    assert drawn(found) == wanted(graph, found)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(2, 30)), max_size=40))
def test_lanes_of_one_column_do_not_overlap(spans: list[tuple[int, int]]) -> None:
    edges = {(start, start + length) for start, length in spans}
    lanes = assign(edges)
    assert {(lane.start, end) for lane in lanes for end in lane.ends} == edges
    assert len({lane.start for lane in lanes}) == len(lanes)
    for column in {lane.column for lane in lanes}:
        spans_of = sorted((lane.start, lane.ends[-1]) for lane in lanes if lane.column == column)
        assert all(before[1] <= after[0] for before, after in pairwise(spans_of))


def test_a_value_inside_another_ones_lane_runs_nearer_to_the_rows() -> None:
    inner, outer = sorted(assign([(0, 9), (3, 5)]), key=lambda lane: lane.column)
    assert (inner.start, outer.start) == (3, 0)


def test_copies_are_drawn_once() -> None:
    """Three rows for eight blocks, behind the input and before the last layer; the skip path of one copy."""
    graph, repeated = residual(8)
    found = layout(graph, [repeated])
    assert [len(row.parts) for row in found.rows] == [0, 8, 8, 8, 1]
    assert drawn(found) == {(0, 1), (1, 2), (2, 3), (3, 4), (0, 3)}
    [bracket] = found.brackets
    assert (bracket.first, bracket.last, bracket.count, bracket.depth) == (1, 3, 8, 0)


def test_only_the_first_copy_is_asked_for_its_edges() -> None:
    """Two branches, a layer and two, whose order differs from copy to copy: b reads nothing of a."""
    network = Network((4,))
    for longer_first in (False, True):
        start, ends = network.end, {}
        for longer in (longer_first, not longer_first):
            network.end = start
            network.dense(4)
            ends[longer] = network.sort() if longer else network.end
        network.add("add", Sum((ONE, ONE)), ends[False], ends[True])
    graph = network.finish(None)
    names = [node.name for node in graph.nodes]
    found = layout(graph, [block((tuple(names[:4]), tuple(names[4:])))])
    assert [row.parts[0].node.op.name for row in found.rows[1:]] == ["dense", "dense", "groupsort", "add"]
    assert drawn(found) == {(0, 1), (0, 2), (2, 3), (1, 4), (3, 4)}


def test_thousands_of_nodes_are_a_drawing_of_bounded_size() -> None:
    graph, repeated = residual(700)
    assert len(layout(graph, limit=40).rows) == 42
    assert len(layout(graph, [repeated], limit=40).rows) == 5


def test_a_loop_is_drawn_by_its_body(tmp_path: Path) -> None:
    """The input, the stem, three layers of the body in a bracket of `depth`, the head."""
    path = tmp_path / "model.lip"
    path.write_text(OPEN)
    graph = load(str(path), ModelOptions()).graph
    assert graph is not None
    found = layout(graph)
    assert [row.parts[0].node.op.name for row in found.rows[1:]] == ["dense", "dense", "groupsort", "add", "dense"]
    assert drawn(found) == {(0, 1), (1, 2), (2, 3), (3, 4), (1, 4), (4, 5)}
    [bracket] = found.brackets
    assert (bracket.first, bracket.last, getattr(bracket.count, "name", "")) == (2, 4, "depth")
    assert found.rows[2].parts[0].layer == "repeat_1"
    assert found.rows[2].parts[0].parameters == ("repeat_1.dense.weight",)


def test_labels_of_nested_frames_stand_side_by_side() -> None:
    rows, brackets = tuple(Row() for _ in range(4)), (Bracket(1, 3, 12, 0), Bracket(1, 2, 3, 1))
    outer, inner = _placed(Layout(rows, (), (), brackets)).frames
    assert outer.x < inner.x
    assert inner.x + inner.width < outer.x + outer.width
    assert inner.end < outer.end - 8 * len(outer.label)


@given(BACK)
def test_everything_has_its_place_inside(back: list[list[int]]) -> None:
    graph = dag(back)
    _assert_inside(_placed(layout(graph)))


def test_frames_hold_their_rows() -> None:
    graph, repeated = residual(8)
    found = _placed(layout(graph, [repeated]))
    [frame] = found.frames
    heights = [y for y, _ in found.marks]
    assert heights[0] < frame.y < heights[1]
    assert heights[3] < frame.y + frame.height < heights[4]
    assert frame.label == "× 8"
    _assert_inside(found)


def _placed(found: Layout) -> Drawing:
    return place(found, [Mark("node", f"layer {i}", "", "") for i in range(len(found.rows) + 1)])


def _assert_inside(found: Drawing) -> None:
    assert all(0 < y < found.height for y, _ in found.marks)
    assert all(0 <= x <= found.x for path in found.paths for x, _ in _points(path))
    assert all(0 < y < found.height for path in found.paths for _, y in _points(path))
    assert all(frame.x >= 0 and frame.x + frame.width <= found.width for frame in found.frames)


def _points(path: str) -> Iterator[tuple[float, float]]:
    """The points of an outline of `M`, `C` and `V`."""
    x = 0.0
    for command, text in re.findall(r"([MCV])([^MCV]*)", path):
        numbers = [float(number) for number in text.split()]
        pairs = [(x, numbers[0])] if command == "V" else list(zip(numbers[::2], numbers[1::2], strict=True))
        x = pairs[-1][0]
        yield from pairs
