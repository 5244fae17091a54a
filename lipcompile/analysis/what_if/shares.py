"""Which parameters dominate the noise: the share of each in ΣK², copies of one layer taken together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lipcompile.core.derivation import Analysis, Block
from lipcompile.core.graph import Graph, Node


@dataclass(frozen=True, slots=True)
class Share:
    """A parameter, or that of all copies of one layer.

    names: of the parameters, in the order of the graph. bound: the largest of their K, certified. share: their
    part of ΣK², from 0 to 1, not rounded to any side.
    """

    names: tuple[str, ...]
    bound: float
    share: float


def dominating(analysis: Analysis) -> tuple[Share, ...]:
    """Return the shares of all trained parameters, the largest first; none where a bound is not known."""
    bounds = {name: bound.value for name, bound in analysis.parameters.items()}
    known = {name: value for name, value in bounds.items() if value is not None}
    total = analysis.total.value
    if not total or len(known) < len(bounds):
        return ()
    kinds = _kinds(analysis.graph, analysis.depth.blocks)
    groups: dict[object, list[str]] = {}
    for name in known:
        groups.setdefault(kinds.get(name, name), []).append(name)
    found = [
        Share(tuple(names), max(known[name] for name in names), sum((known[name] / total) ** 2 for name in names))
        for names in groups.values()
    ]
    return tuple(sorted(found, key=lambda share: -share.share))


def _kinds(graph: Graph, blocks: tuple[Block, ...]) -> Mapping[str, object]:
    """Return a key that the parameters of all copies of one layer have in common, by parameter."""
    places = {
        name: (block.name, position)
        for block in blocks
        for copy in block.layers
        for position, name in enumerate(copy)
    }
    return {
        name: (places.get(node.name) or place_of(node), role)
        for node in graph.nodes
        for role, name in node.parameters.items()
    }


def place_of(node: Node) -> object:
    """Return where a layer is written: copies of a `repeat`, and of a block, are written in one place."""
    at = node.location
    return node.name if at is None or at.line is None else (at.file, at.line, at.column)
