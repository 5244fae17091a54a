"""Norms, the number by which what they return is multiplied, and how much the two stretch together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from lipcompile.core.graph import Graph, Node
from lipcompile.ops.merge.rules import SUM
from lipcompile.ops.normalisation.rules import squared_slope


@dataclass(frozen=True, slots=True)
class ScaledNorm:
    """A norm or a projection on a ball, and the multiplication that alone reads it, None if there is none.

    factor: of the multiplication, 1 without. square: of the Lipschitz constant of the two together.
    """

    node: Node
    behind: Node | None
    factor: Fraction
    square: Fraction

    @property
    def is_direction(self) -> bool:
        """Whether this is c·x/max(r, ‖x‖), the norm over the whole example."""
        return self.node.op.name == "clip_norm"


def scaled_norms(graph: Graph) -> Iterator[ScaledNorm]:
    """Yield the norms of a graph that divide by a known number at least, and its projections on balls.

    x/max(r, ‖x‖) is a projection on a ball of radius r, which stretches nothing, times 1/r.
    """
    behind = _multiplications(graph)
    for node in graph.nodes:
        own = Fraction(1) if node.op.name == "clip_norm" else squared_slope(node.attributes)
        if own is not None:
            after = behind.get(node.name)
            factor = Fraction(1) if after is None else abs(after.attributes.weights[0])
            yield ScaledNorm(node, after, factor, own * factor**2)


def _multiplications(graph: Graph) -> dict[str, Node]:
    """Return, by their operands, multiplications with known numbers other than 0 that alone read them."""
    read = Counter([graph.output, *(name for node in graph.nodes for name in node.inputs)])
    return {
        node.inputs[0]: node
        for node in graph.nodes
        if node.op is SUM and len(node.inputs) == 1 and read[node.inputs[0]] == 1 and _is_number(node)
    }


def _is_number(node: Node) -> bool:
    weight = node.attributes.weights[0]
    return isinstance(weight, Fraction) and weight != 0
