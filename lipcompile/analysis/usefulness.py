"""Whether the bound of the whole gradient is of any use: noise in its proportion may drown every gradient."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

from lipcompile.analysis.bounds import Bounds, derive
from lipcompile.analysis.changes import dominating
from lipcompile.analysis.requirements import proves
from lipcompile.core.derivation import Analysis, Derivation
from lipcompile.core.graph import Graph, LossUse
from lipcompile.core.record import NoAttributes
from lipcompile.diagnostics import Diagnostic, Severity
from lipcompile.numbers.certified import Certified, Interval
from lipcompile.ops.table import LOSS_BY_NAME

# Times L·max(1, X_0), the bound of a weight or bias between layers of gain 1. With noise multiplier 1 and batches
# of 10⁴, noise at this bound has on every entry of the gradient a deviation of 10⁶/10⁴ = 100 times that; 10⁴ steps
# average it down to once, on each of very many entries. See docs/what-if.md.
LARGEST_USEFUL = 1e6
# Times a typical gradient at the initial weights: see docs/clipping.md, "Useless bounds".
LARGEST_EXCESS = 50.0
ADVICE = "--bounds auto clips gradients where theorems do not serve; --allow-vacuous goes on all the same"


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
    graph = with_norm_and_loss(graph)
    bounds = derive(graph, Certified())
    total = bounds.total.upper
    return Standing(total, math.isfinite(total) and total <= LARGEST_USEFUL * unit_of(graph, bounds))


def unit_of(graph: Graph, bounds: Bounds[Interval]) -> float:
    """Return L·max(1, X_0), 1 instead of a norm that is not a number: the bound between layers of gain 1."""
    norm = graph.input.norm
    return bounds.loss_lipschitz.upper * max(1.0, float(norm) if isinstance(norm, Fraction) else 1.0)


def with_norm_and_loss(graph: Graph) -> Graph:
    """Return the graph with an input norm and a loss, where it has none."""
    if graph.input.norm is None and not graph.input.tokens:
        graph = replace(graph, input=replace(graph.input, norm=Fraction(1)))
    if graph.loss is None:
        graph = replace(graph, loss=LossUse(LOSS_BY_NAME["kr"], NoAttributes()))
    return graph


_RANKED = "`lipcompile report` ranks the changes that make it smaller"


def useless(analysis: Analysis, helps: Callable[[Graph, float], bool]) -> Iterator[Diagnostic]:
    """Yield a note if the bound of the whole gradient is known, and useless; it names the dominating parameter.

    helps: whether `fix` brings the bound of a graph with such a total down.
    """
    if not proves(analysis.graph):
        return
    total, loss = analysis.total.value, analysis.loss_lipschitz.value
    given = {one.name: one.upper for one in analysis.definitions if one.expression is None}
    if total is None:
        if analysis.graph.loss is not None and None not in given.values():  # only the product is not known
            message = "vacuous: the bound of the whole gradient is too large for a double"
            yield Diagnostic("LIP310", message, _help(analysis, helps), Severity.NOTE)
        return
    unit = (loss or 0.0) * max(1.0, given.get("X_0") or 0.0)
    if 0 < unit * LARGEST_USEFUL < total:
        yield _note(analysis, total / unit, _help(analysis, helps))


def _help(analysis: Analysis, helps: Callable[[Graph, float], bool]) -> str:
    """Return the help, which names `fix` if it brings the bound down."""
    total = analysis.total.value
    repaired = helps(analysis.graph, math.inf if total is None else total)
    return f"`lipcompile fix MODEL -o FILE` reduces it; {_RANKED}" if repaired else _RANKED


def _note(analysis: Analysis, ratio: float, advice: str) -> Diagnostic:
    share = dominating(analysis)[0]
    node = next(node for node in analysis.graph.nodes if share.names[0] in node.parameters.values())
    power = math.floor(math.log10(ratio))
    copies = f" and its {len(share.names) - 1} copies contribute" if len(share.names) > 1 else " contributes"
    return node.diagnostic(
        "LIP310",
        f"vacuous: the bound of the whole gradient is more than 10^{power} times L·max(1, X_0); "
        f"`{share.names[0]}`{copies} {share.share:.0%} of the squared bound",
        advice,
        Severity.NOTE,
    )


def judged(derivation: Derivation, *, allow_vacuous: bool) -> Derivation:
    """Return the derivation, rejected if its bound is known to be of no use (LIP310) and nobody allows that."""
    if allow_vacuous:
        return derivation
    diagnostics = tuple(
        replace(found, severity=Severity.ERROR, help=f"{ADVICE}; {found.help}")
        if found.code == "LIP310"
        else found
        for found in derivation.diagnostics
    )
    return replace(derivation, diagnostics=diagnostics)
