"""The nodes of a graph as the statements of a body: layers in a row, residuals and branches where parts allow.

A part of a graph is a residual or a branch if it begins where the merged value forks, if its nodes stand together
and in order, and if nothing else reads what is computed inside.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from lipcompile.core.graph import Graph, Node
from lipcompile.numbers import Scalar, text
from lipcompile.ops.merge.rules import CONCAT, MAXIMUM, MINIMUM, PRODUCT, SUM

ONE, HALF = Fraction(1), Fraction(1, 2)
# Ops that a branch may end in.
MERGES = {op.name: op for op in (SUM, CONCAT, PRODUCT, MAXIMUM, MINIMUM)}


@dataclass(frozen=True, slots=True)
class Step:
    """One layer."""

    node: Node

    @property
    def output(self) -> str:
        """The value that the statement makes."""
        return self.node.name


@dataclass(frozen=True, slots=True)
class Fork:
    """A residual or a branch: what `merge` makes of its bodies. `head` is what stands before the bodies.

    spelling: the name of the merging node where nobody else chooses it.
    """

    merge: Node
    head: str
    tail: str
    spelling: str
    bodies: tuple[tuple[Item, ...], ...]

    @property
    def output(self) -> str:
        """The value that the statement makes."""
        return self.merge.name


Item = Step | Fork


class Outline:
    """Finds the statements of a graph."""

    def __init__(self, graph: Graph, *, structured: bool) -> None:
        """Prepare; without `structured` there are layers alone."""
        self._graph = graph
        self._nodes = graph.nodes
        self._index = {node.name: place for place, node in enumerate(graph.nodes)}
        self._structured = structured

    def items(self) -> tuple[Item, ...]:
        """Return the statements of the whole graph."""
        return self._items(0, len(self._nodes), self._graph.input.name)

    def _items(self, start: int, stop: int, current: str) -> tuple[Item, ...]:
        found: list[Item] = []
        while start < stop:
            fork = self._fork_at(start, stop, current)
            found.append(fork or Step(self._nodes[start]))
            current = found[-1].output
            start = self._index[current] + 1
        return tuple(found)

    @cached_property
    def _merges(self) -> dict[str, list[int]]:
        """Where values that fork come together again, the last place first."""
        merges = [n for n in self._nodes if n.op.name in MERGES and len(set(n.inputs)) > 1] * self._structured
        found: defaultdict[str, list[int]] = defaultdict(list)
        if not merges:
            return found
        import networkx as nx

        above = nx.immediate_dominators(self._graph.networkx(), self._graph.input.name)
        for node in reversed(merges):
            found[above[node.name]].append(self._index[node.name])
        return found

    @cached_property
    def _readers(self) -> dict[str, set[str]]:
        found: defaultdict[str, set[str]] = defaultdict(set)
        for node in self._nodes:
            for operand in node.inputs:
                found[operand].add(node.name)
        return found

    def _fork_at(self, start: int, stop: int, current: str) -> Fork | None:
        """Return the largest fork of `current` whose nodes begin at `start`."""
        for place in self._merges.get(current, ()):
            if start <= place < stop:
                fork = self._fork(start, place, current)
                if fork is not None:
                    return fork
        return None

    def _fork(self, start: int, place: int, current: str) -> Fork | None:
        merge = self._nodes[place]
        if len(set(merge.inputs)) != len(merge.inputs):
            return None
        return self._residual(start, merge, current) or self._branch(start, merge, current)

    def _residual(self, start: int, merge: Node, current: str) -> Fork | None:
        """A sum of the value above and of the last value inside."""
        place = self._index[merge.name]
        last = self._nodes[place - 1].name
        if merge.op is not SUM or place == start or set(merge.inputs) != {current, last} or len(merge.inputs) != 2:
            return None
        shares = dict(zip(merge.inputs, merge.attributes.weights, strict=True))
        kind = _kind(shares[current], shares[last])
        if kind is None or not self._is_closed(start, place, current, merge.name):
            return None
        body = self._items(start, place, current)
        return Fork(merge, f"residual({kind})", "", kind.partition("(")[0], (body,))

    def _branch(self, start: int, merge: Node, current: str) -> Fork | None:
        """A merge of bodies that stand one after the other, in the order of the operands."""
        ending = _ending(merge)
        operands = sorted(merge.inputs, key=self._place) if merge.op is SUM else list(merge.inputs)
        if ending is None:
            return None
        bodies, place = [], start
        for operand in operands:
            end = place if operand == current else self._place(operand) + 1
            if (end <= place) != (operand == current) or not self._is_closed(place, end, current, merge.name):
                return None
            bodies.append((place, end))
            place = end
        if place != self._index[merge.name]:
            return None
        made = tuple(self._items(low, high, current) for low, high in bodies)
        return Fork(merge, "branch", f" -> {ending}", ending.partition("(")[0], made)

    def _place(self, value: str) -> int:
        return self._index.get(value, -1)

    def _is_closed(self, start: int, stop: int, current: str, merge: str) -> bool:
        """Whether nodes read nothing but `current` and each other, and only the last is read, by the merge."""
        own = {node.name for node in self._nodes[start:stop]}
        last = self._nodes[stop - 1].name if stop > start else ""
        return all(
            own.issuperset(set(node.inputs) - {current})
            and self._readers[node.name] <= ({merge} if node.name == last else own)
            for node in self._nodes[start:stop]
        )


def _kind(kept: Scalar, changed: Scalar) -> str | None:
    """Return the argument of a residual, None if these weights have none."""
    if kept == changed and kept in (ONE, HALF):
        return "add" if kept == ONE else "mean"
    known = isinstance(kept, Fraction) and isinstance(changed, Fraction)
    convex = known and kept + changed == ONE and 0 <= changed <= 1  # type: ignore[operator]
    return f"convex({text(changed)})" if convex else None


def _ending(merge: Node) -> str | None:
    """Return what a branch ends in, None if these weights have no name."""
    if merge.op is CONCAT:
        return "concat" if merge.attributes.axis is None else f"concat(axis={merge.attributes.axis})"
    if merge.op is not SUM:
        return merge.op.name
    weights: Sequence[Scalar] = merge.attributes.weights
    named = {ONE: "add", Fraction(1, len(weights)): "mean"}
    return named.get(weights[0]) if len(set(weights)) == 1 and isinstance(weights[0], Fraction) else None
