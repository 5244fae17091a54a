"""Changes that `fix` makes of layers: the last one, norms, sums of branches, pools, activations, attention."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import isqrt

from lipcompile.analysis.changes.edit import Replacement, put_behind, rebuild, without_overlap
from lipcompile.analysis.requirements import ScaledNorm, probabilities, scaled_norms
from lipcompile.core.graph import Graph, Node
from lipcompile.ops.activation.rules import GroupSort
from lipcompile.ops.merge.rules import SUM, Sum
from lipcompile.ops.normalisation.rules import OverAxes
from lipcompile.ops.pool.rules import Pool
from lipcompile.ops.rules import feature_axis
from lipcompile.ops.shape.rules import ClipNorm, Dropout
from lipcompile.ops.table import OP_BY_NAME

_ATTENTION = ("attention", "dot_product_attention")
# What may stand between tokens and the layers that make queries, keys and values of them.
_MOVING = ("reshape", "transpose", "slice", "bias", "add", "identity", "flatten", "expand", "scale")


@dataclass(frozen=True, slots=True)
class Changed:
    """A graph after one kind of change at `places`; `not_made` says of other places why it was not made there."""

    graph: Graph
    places: tuple[str, ...] = ()
    not_made: Mapping[str, str] = field(default_factory=dict)


def replaced(graph: Graph, found: Mapping[str, Replacement], not_made: Mapping[str, str] | None = None) -> Changed:
    """Return the graph with other ops at some nodes; nothing is changed where a rule refuses one of them."""
    made = rebuild(graph, found) if found else graph
    if made is None:
        return Changed(graph, (), {**(not_made or {}), **dict.fromkeys(found, "shapes would change")})
    return Changed(made, tuple(found), not_made or {})


def of_logits(graph: Graph, floor: Fraction) -> Changed:
    """Leave out a last softmax or sigmoid where the loss has its own: it would flatten what is learnt."""
    last = probabilities(graph)
    if last is None or last.inputs[0] == graph.input.name:
        return Changed(graph)
    read = any(last.name in node.inputs for node in graph.nodes)
    nodes = graph.nodes if read else tuple(node for node in graph.nodes if node is not last)
    return Changed(replace(graph, nodes=nodes, output=last.inputs[0]), (last.name,))


# Norms


def floored(graph: Graph, floor: Fraction) -> Changed:
    """Divide by max(floor, σ) instead of √(σ² + eps): the slope is 1/floor at most, that of eps=1e-5 is 316.

    Lower floors are raised. x/max(r, ‖x‖) gets the radius `floor`.
    """
    found: dict[str, Replacement] = {}
    places = []
    for norm in scaled_norms(graph):
        changes = _directed(norm, floor) if norm.is_direction else _floored(norm, floor)
        places += [norm.node.name] if changes else []
        found |= changes
    changed = replaced(graph, found)
    return replace(changed, places=tuple(places) if changed.places else ())


def _floored(norm: ScaledNorm, floor: Fraction) -> Mapping[str, Replacement]:
    """Give a norm a floor, by which a factor below 1 behind it is divided: c·x/max(c·floor, ρ)."""
    node = norm.node
    floor = floor * min(Fraction(1), norm.factor)
    if node.attributes.eps is None and node.attributes.floor >= floor:
        return {}
    return {node.name: (node.op, replace(node.attributes, floor=floor, eps=None))}


def _directed(norm: ScaledNorm, floor: Fraction) -> Mapping[str, Replacement]:
    """Take another radius, and another factor, so that what is longer than both radii stays as it is."""
    node, behind = norm.node, norm.behind
    if behind is None or not isinstance(node.attributes.radius, Fraction):
        return {}
    length = node.attributes.radius * behind.attributes.weights[0]
    radius = floor * min(Fraction(1), abs(length))
    if norm.factor <= abs(length) / radius:
        return {}
    return {node.name: (node.op, ClipNorm(radius)), behind.name: (behind.op, Sum((length / radius,)))}


# Sums


def averaged(graph: Graph, floor: Fraction) -> Changed:
    """Take the mean of a sum's operands: h + f(h) doubles the bound at every block, (h + f(h))/2 keeps it."""
    found: dict[str, Replacement] = {}
    for node in graph.nodes:
        count = len(node.inputs)
        if node.op is SUM and len(set(node.inputs)) > 1 and all(weight == 1 for weight in node.attributes.weights):
            found[node.name] = (SUM, Sum((Fraction(1, count),) * count))
    return replaced(graph, found)


# Pools


def pooled(graph: Graph, floor: Fraction) -> Changed:
    """Pool by √Σx² instead of maxima, which keeps norms; windows that overlap become as wide as their steps.

    Not where another shape would come out: windows stay as they are there.
    """
    found = {node.name: new for node in graph.nodes for new in _of_squares(node)}
    return replaced(graph, found)


def _of_squares(node: Node) -> Iterator[Replacement]:
    if node.op.name == "global_max_pool":
        yield OP_BY_NAME["global_l2_pool"], node.attributes
    if node.op.name == "max_pool":
        pool: Pool = node.attributes
        overlaps = any(taps > step for taps, step in zip(pool.kernel, pool.stride, strict=True))
        yield OP_BY_NAME["l2_pool"], (overlaps and without_overlap(node)) or pool


# Activations


def sorted_in_pairs(graph: Graph, floor: Fraction) -> Changed:
    """Sort pairs of features instead of ReLU: gradients pass it without getting smaller."""
    found: dict[str, Replacement] = {}
    not_made: dict[str, str] = {}
    for node in graph.nodes:
        if node.op.name == "relu":
            features = _features(node)
            if features % 2 == 0:
                found[node.name] = (OP_BY_NAME["groupsort"], GroupSort(2))
            else:
                not_made[node.name] = f"its {features} features do not divide into pairs"
    return replaced(graph, found, not_made)


def _features(node: Node) -> int:
    shape = node.site.inputs[0]
    return shape[feature_axis(None, shape)] if shape else 1


# Attention


def cut_tokens(graph: Graph, floor: Fraction) -> Changed:
    """Cut tokens to length 1 where attention reads them: its slope grows with the square of their length.

    A row is cut to the length f·√d as x·f/max(f, ρ), ρ its root mean square: a norm with the floor f, whose slope
    is 1/f, times f. So the two together stretch nothing.
    """
    found: dict[str, set[str]] = {}
    places = []
    for node in graph.nodes:
        if node.op.name in _ATTENTION:
            reads = [pair for pair in _reads(graph, node) if not _is_cut(graph, pair[0])]
            places += [node.name] if reads else []
            for value, reader in reads:
                found.setdefault(value, set()).add(reader)
    for value, readers in found.items():
        graph = _cut(graph, value, readers)
    return Changed(graph, tuple(places))


def _reads(graph: Graph, node: Node) -> Iterator[tuple[str, str]]:
    """Yield the tokens that attention looks at or from, and who reads them: it, or what projects them."""
    for operand in dict.fromkeys(node.inputs):
        projection = None if node.op.name == "attention" else _projection(graph, operand)
        yield (operand, node.name) if projection is None else (projection.inputs[0], projection.name)


def _projection(graph: Graph, value: str) -> Node | None:
    """Return the dense layer that queries, keys or values come from, None if there is none."""
    while value != graph.input.name:
        node = graph.node(value)
        if node.op.name == "dense":
            return node
        if not (node.op.name in _MOVING or isinstance(node.attributes, Dropout)) or len(node.inputs) != 1:
            return None
        value = node.inputs[0]
    return None


def _is_cut(graph: Graph, value: str) -> bool:
    """Whether a value is that of `_cut`."""
    named = {node.name: node for node in graph.nodes}
    node = named.get(value)
    if node is None or node.op is not SUM or len(node.inputs) != 1:
        return False
    before = named.get(node.inputs[0])
    return (
        before is not None
        and before.op.name == "rms_norm"
        and before.attributes.floor == node.attributes.weights[0]
    )


def _cut(graph: Graph, value: str, readers: set[str]) -> Graph:
    width = graph.shape(value)[-1]
    share = Fraction(1, isqrt(width - 1) + 1)  # at most 1/√width
    chain = (("directions", OP_BY_NAME["rms_norm"], OverAxes(share, None, (-1,))), ("bounded", SUM, Sum((share,))))
    return put_behind(graph, value, chain, readers)
