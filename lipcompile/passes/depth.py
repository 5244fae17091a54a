"""The depth pass: how Lipschitz constants compose from one bottleneck of the network to the next.

A bottleneck is a value through which every path from the input to the output passes: between two of them stands a
layer, or a whole residual block. Their constants multiply: they, not those of single nodes, say how bounds grow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from lipcompile.derivation import Depth
from lipcompile.graph import Graph
from lipcompile.numbers.certified import Interval

# Intervals of an exact 1 may miss it by their rounding.
ROUNDING = 1e-12


def growth(graph: Graph, slope: Mapping[str, Interval]) -> Depth:
    """Classify by the constants between bottlenecks: all 1 is critical, below contractive, above expansive.

    `slope` holds the Lipschitz constant of the output in each value; constants that are not known are left out.
    """
    uppers = [slope[value].upper for value in bottlenecks(graph)]
    steps = [before / after for before, after in pairwise(uppers) if after > 0 and before < float("inf")]
    return Depth(_regime(steps))


def bottlenecks(graph: Graph) -> list[str]:
    """Return the values that every path from input to output passes, in order, both ends included."""
    if all(len(node.inputs) == 1 for node in graph.nodes):  # a chain: `check` starts faster without networkx
        return [graph.input.name, *(node.name for node in graph.nodes)]
    import networkx as nx

    above = nx.immediate_dominators(graph.networkx(), graph.input.name)
    found = [graph.output]
    while found[-1] != graph.input.name:
        found.append(above[found[-1]])
    return found[::-1]


def _regime(constants: Sequence[float]) -> str:
    shrinks = any(value < 1 - ROUNDING for value in constants)
    grows = any(value > 1 + ROUNDING for value in constants)
    if shrinks and grows:
        return "mixed"
    return "contractive" if shrinks else "expansive" if grows else "critical"
