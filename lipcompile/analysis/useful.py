"""Whether the bound of the whole gradient is of any use: noise in its proportion may drown every gradient."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction

from lipcompile.analysis.bounds import derive
from lipcompile.core.graph import Graph, LossUse
from lipcompile.numbers.certified import Certified
from lipcompile.ops.record import NoAttributes
from lipcompile.ops.table import LOSS_BY_NAME

# Times L·max(1, X_0), the bound of a weight or bias between layers of gain 1. With noise multiplier 1 and batches
# of 10⁴, noise at this bound has on every entry of the gradient a deviation of 10⁶/10⁴ = 100 times that; 10⁴ steps
# average it down to once, on each of very many entries. See docs/what-if.md.
LARGEST_USEFUL = 1e6
# Times a typical gradient at the initial weights: see docs/clipping.md, "Hopeless bounds".
LARGEST_EXCESS = 50.0


@dataclass(frozen=True, slots=True)
class Standing:
    """The certified bound of the whole gradient of one example, infinite where it is not known.

    useful: whether it is at most `LARGEST_USEFUL`·L·max(1, X_0), or what else `Aim` says.
    excess: how many times the bound is a typical gradient at the initial weights; None if that was not measured.
    """

    total: float
    useful: bool
    excess: float | None = None


@dataclass(frozen=True, slots=True)
class Aim:
    """Which bound is good enough.

    target: the largest total; None for one that is useful, as `check`, `compile` and `train` judge it.
    measure: returns the excess of a graph, or None where it cannot be measured; without it formulas alone judge.
    """

    target: float | None = None
    measure: Callable[[Graph], float | None] | None = None

    def judged(self, graph: Graph, found: Standing) -> Standing:
        """Return the standing of a graph, useful if the aim is reached."""
        if self.target is not None:
            return replace(found, useful=found.total <= self.target)
        if not found.useful or self.measure is None:
            return found
        excess = self.measure(graph)
        return replace(found, useful=excess is None or excess <= LARGEST_EXCESS, excess=excess)


USEFUL = Aim()


def standing(graph: Graph) -> Standing:
    """Return how a graph stands, as if what is not declared were X_0 = 1 and L = 1."""
    graph = complete(graph)
    bounds = derive(graph, Certified())
    norm, total = graph.input.norm, bounds.total.upper
    unit = bounds.loss_lipschitz.upper * max(1.0, float(norm) if isinstance(norm, Fraction) else 1.0)
    return Standing(total, math.isfinite(total) and total <= LARGEST_USEFUL * unit)


def complete(graph: Graph) -> Graph:
    """Return the graph with an input norm and a loss, where it has none."""
    if graph.input.norm is None and not graph.input.tokens:
        graph = replace(graph, input=replace(graph.input, norm=Fraction(1)))
    if graph.loss is None:
        graph = replace(graph, loss=LossUse(LOSS_BY_NAME["kr"], NoAttributes()))
    return graph
