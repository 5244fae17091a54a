"""The features of a network: what it computes of an example before any trained parameter has a part in it.

No cotangent crosses that part, so it costs no sensitivity, and of a fixed data set it needs computing once. The
layers after the features are then a separate network, and only the norm of its input is known.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from lipcompile.analysis.bounds import Bounds, derive
from lipcompile.analysis.requirements import frozen_nodes, trained_values
from lipcompile.core.graph import Graph, Input, Node
from lipcompile.core.record import Shape
from lipcompile.numbers.certified import Certified, Interval

# Features are clipped to a little less than their certified bound, so that rounding cannot raise what rests on it.
_INSIDE = 1 - Fraction(1, 2**40)


@dataclass(frozen=True, slots=True)
class Features:
    """The value `name` is all that the rest of the graph reads; ‖value‖ <= norm, up to a relative 2^-40.

    nodes: what computes it, in order.
    """

    name: str
    shape: Shape
    norm: Fraction
    nodes: tuple[Node, ...]


def features(graph: Graph) -> Features | None:
    """Return the features of a graph without open numbers; None if it has none that are worth keeping.

    There must be one value that all else reads, not the input itself, computed without chance, and by more than
    moving entries about. Bounds of the rest, derived from the norm of that value alone, must not be above those of
    the whole graph: then the module's bounds hold whether it is given examples or their features.
    """
    if not frozen_nodes(graph):
        return None
    fixed = _determined(graph)
    rest = tuple(node for node in graph.nodes if node.name not in fixed)
    read = {operand for node in rest for operand in node.inputs} - {node.name for node in rest}
    if len(read) != 1 or graph.output in fixed or read == {graph.input.name}:
        return None
    (name,) = read
    whole = derive(graph, Certified())
    upper = whole.norm[name].upper
    if not 0 < upper < math.inf:
        return None
    found = Features(
        name, graph.shape(name), Fraction(upper) * _INSIDE, tuple(n for n in graph.nodes if n.name in fixed)
    )
    return found if _as_tight(graph, _head(graph, found, rest), whole) else None


def _determined(graph: Graph) -> frozenset[str]:
    """Return the nodes that no trained parameter and no chance reaches."""
    trained, found = trained_values(graph, frozenset()), {graph.input.name}
    for node in graph.nodes:
        if node.name not in trained and not node.draws and all(operand in found for operand in node.inputs):
            found.add(node.name)
    return frozenset(found - {graph.input.name})


def _head(graph: Graph, found: Features, nodes: tuple[Node, ...]) -> Graph:
    """Return the network that reads the features."""
    used = {name for node in nodes for name in node.parameters.values()}
    parameters = {name: p for name, p in graph.parameters.items() if name in used}
    source = Input(found.name, found.shape, found.norm)
    return Graph(graph.name, source, nodes, parameters, graph.output, graph.loss, clips=graph.clips)


def _as_tight(graph: Graph, head: Graph, whole: Bounds[Interval]) -> bool:
    """Whether no bound of the head is above that of the whole, with gradient clips inside and without."""
    without = derive(graph, Certified(), through_clips=False)
    return _below(derive(head, Certified()), whole) and _below(
        derive(head, Certified(), through_clips=False), without
    )


def _below(one: Bounds[Interval], other: Bounds[Interval]) -> bool:
    if one.loss_lipschitz.upper > other.loss_lipschitz.upper:
        return False
    return all(bound.upper <= other.gradient[name].upper for name, bound in one.gradient.items())
