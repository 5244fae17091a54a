"""Changes of single layers: the last one, norms, sums of branches, pools, activations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

from lipcompile.analysis.fix.edit import Changed, Wanted, replaced
from lipcompile.analysis.norm_slopes import Stretch, stretches
from lipcompile.analysis.requirements import probabilities
from lipcompile.analysis.what_if.edit import Replacement
from lipcompile.core.diagnostics import Refusal
from lipcompile.core.graph import Graph, Node
from lipcompile.ops.activation.rules import GroupSort
from lipcompile.ops.merge.rules import SUM, Sum
from lipcompile.ops.pool.rules import Pool
from lipcompile.ops.rules import feature_axis
from lipcompile.ops.shape.rules import ClipNorm
from lipcompile.ops.table import OP_BY_NAME


def of_logits(graph: Graph, wanted: Wanted) -> Changed:
    """Leave out a last softmax or sigmoid where the loss has its own: it would flatten what is learnt."""
    last = probabilities(graph)
    if last is None or last.inputs[0] == graph.input.name:
        return Changed(graph)
    read = any(last.name in node.inputs for node in graph.nodes)
    nodes = graph.nodes if read else tuple(node for node in graph.nodes if node is not last)
    return Changed(replace(graph, nodes=nodes, output=last.inputs[0]), (last.name,))


# Norms


def floored(graph: Graph, wanted: Wanted) -> Changed:
    """Divide by max(floor, σ) in place of √(σ² + eps): the slope is 1/floor at most, that of eps=1e-5 is 316.

    Lower floors are raised. x/max(r, ‖x‖) gets the radius `floor`.
    """
    found: dict[str, Replacement] = {}
    places = []
    for stretch in stretches(graph):
        changes = _directed(stretch, wanted) if stretch.is_direction else _floored(stretch, wanted)
        places += [stretch.node.name] if changes else []
        found |= changes
    changed = replaced(graph, found)
    return replace(changed, places=tuple(places) if changed.places else ())


def _floored(stretch: Stretch, wanted: Wanted) -> Mapping[str, Replacement]:
    """Give a norm a floor, by which a factor below 1 behind it is divided: c·x/max(c·floor, ρ)."""
    node = stretch.node
    floor = wanted.floor * min(Fraction(1), stretch.factor)
    if node.attributes.eps is None and node.attributes.floor >= floor:
        return {}
    return {node.name: (node.op, replace(node.attributes, floor=floor, eps=None))}


def _directed(stretch: Stretch, wanted: Wanted) -> Mapping[str, Replacement]:
    """Take another radius, and another factor, so that what is longer than both radii stays as it is."""
    node, behind = stretch.node, stretch.behind
    if behind is None or not isinstance(node.attributes.radius, Fraction):
        return {}
    length = node.attributes.radius * behind.attributes.weights[0]
    radius = wanted.floor * min(Fraction(1), abs(length))
    if stretch.factor <= abs(length) / radius:
        return {}
    return {node.name: (node.op, ClipNorm(radius)), behind.name: (behind.op, Sum((length / radius,)))}


# Sums


def averaged(graph: Graph, wanted: Wanted) -> Changed:
    """Take the mean of a sum's operands: h + f(h) doubles the bound at every block, (h + f(h))/2 keeps it."""
    found: dict[str, Replacement] = {}
    for node in graph.nodes:
        count = len(node.inputs)
        if node.op is SUM and len(set(node.inputs)) > 1 and all(weight == 1 for weight in node.attributes.weights):
            found[node.name] = (SUM, Sum((Fraction(1, count),) * count))
    return replaced(graph, found)


# Pools


def pooled(graph: Graph, wanted: Wanted) -> Changed:
    """Pool by √Σx² in place of maxima, which keeps norms; windows that overlap become as wide as their steps.

    Not where another shape would come out: windows stay as they are there.
    """
    found = {node.name: new for node in graph.nodes for new in _of_squares(node)}
    return replaced(graph, found)


def _of_squares(node: Node) -> Iterator[Replacement]:
    if node.op.name == "global_max_pool":
        yield OP_BY_NAME["global_l2_pool"], node.attributes
    if node.op.name == "max_pool":
        yield OP_BY_NAME["l2_pool"], _apart(node)


def _apart(node: Node) -> Pool:
    """Return windows that do not overlap, if their outputs have the same shape."""
    pool: Pool = node.attributes
    axes = len(pool.kernel)
    narrow = Pool(pool.stride, pool.stride, ((0, 0),) * axes, (1,) * axes)
    overlaps = any(taps > step for taps, step in zip(pool.kernel, pool.stride, strict=True))
    return narrow if overlaps and _shape(node, narrow) == node.shape else pool


def _shape(node: Node, attributes: Any) -> tuple[int, ...] | None:
    try:
        return node.op.shape(attributes, node.site.inputs)
    except Refusal:
        return None


# Activations


def sorted_in_pairs(graph: Graph, wanted: Wanted) -> Changed:
    """Sort pairs of features in place of ReLU: gradients pass it without getting smaller."""
    found: dict[str, Replacement] = {}
    not_made: dict[str, str] = {}
    for node in graph.nodes:
        if node.op.name == "relu":
            features = _features(node)
            if features % 2 == 0:
                found[node.name] = (OP_BY_NAME["groupsort"], GroupSort(2))
            else:
                not_made[node.name] = f"its {features} features do not pair up"
    return replaced(graph, found, not_made)


def _features(node: Node) -> int:
    shape = node.site.inputs[0]
    return shape[feature_axis(None, shape)] if shape else 1
