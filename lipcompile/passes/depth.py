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
    return Depth(_regime(steps), ())


def bottlenecks(graph: Graph) -> list[str]:
    """Return the values that every path from input to output passes, in order, both ends included."""
    values = [graph.input.name, *(node.name for node in graph.nodes)]
    position = {value: index for index, value in enumerate(values)}
    last_use = {value: index for index, value in enumerate(values)}
    for node in graph.nodes:
        for operand in node.inputs:
            last_use[operand] = max(last_use[operand], position[node.name])
    found, reach = [], 0
    for value in values:
        if reach <= position[value]:  # nothing from before is read behind this value
            found.append(value)
        reach = max(reach, last_use[value])
    return found


def _regime(constants: Sequence[float]) -> str:
    shrinks = any(value < 1 - ROUNDING for value in constants)
    grows = any(value > 1 + ROUNDING for value in constants)
    if shrinks and grows:
        return "mixed"
    return "contractive" if shrinks else "expansive" if grows else "critical"
