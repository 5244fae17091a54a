"""Which gradients a theorem bounds, and which the backward pass clips (docs/clipping.md).

A clip bounds the gradient of one example by construction, whatever the weights, the activations and the loss are.
So the parameters of a clipped layer need no constraint, and the rest of the network no Lipschitz constant.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

from lipcompile.analysis.bounds import derive
from lipcompile.analysis.depth.loops import loops
from lipcompile.analysis.depth.repetition import segments
from lipcompile.analysis.open_numbers import open_numbers
from lipcompile.analysis.requirements import examine, proves
from lipcompile.analysis.usefulness import unit_of
from lipcompile.core.graph import LENGTH, REGULARISER, ClipGroup, Graph
from lipcompile.core.names import Names
from lipcompile.core.record import FREE
from lipcompile.diagnostics import Diagnostic, Severity
from lipcompile.numbers.certified import Certified

Source = Literal["theorem", "clip", "auto"]
SOURCES: tuple[Source, ...] = ("theorem", "clip", "auto")
# What one clip bounds: all parameters, those of a layer, or those between two values that every path passes.
Groups = Literal["flat", "layers", "blocks"]
GROUPS: tuple[Groups, ...] = ("flat", "layers", "blocks")

# Times L·max(1, X_0): see docs/clipping.md, "The choice of auto".
LARGEST_THEOREM = 4


@dataclass(frozen=True, slots=True)
class Clipping:
    """How parameters without a clip of their own are clipped. length: C; None: automatic, without a threshold."""

    groups: Groups = "flat"
    length: Fraction | None = None

    def of(self, name: str, parameters: tuple[str, ...]) -> ClipGroup:
        """Return a group."""
        if self.length is None:
            return ClipGroup(name, parameters, LENGTH, REGULARISER)
        return ClipGroup(name, parameters, self.length, None)


def with_source(graph: Graph, source: Source, clipping: Clipping) -> tuple[Graph, tuple[Diagnostic, ...]]:
    """Return the graph whose bounds have this source, and notes of what `auto` chose, and why.

    Where no theorem is left, an input without a norm is taken as it comes.

    Formal guarantees: the choice depends on the graph alone, not on data or weights.
    """
    graph, notes = _with_source(graph, source, clipping)
    if graph.input.norm is None and not graph.input.tokens and not proves(graph):
        graph = replace(graph, input=replace(graph.input, trusted=True))
    return graph, notes


def _with_source(graph: Graph, source: Source, clipping: Clipping) -> tuple[Graph, tuple[Diagnostic, ...]]:
    if source == "theorem" or not _unclipped(graph):
        return graph, ()
    if source == "clip":
        return clipped(graph, clipping)
    against = _against_theorems(graph)
    if against is None:
        known = graph.loss is not None and not open_numbers(graph)
        tight = f"bounds by theorem: the bound of the whole gradient is at most {LARGEST_THEOREM}·L·max(1, X_0)"
        message = tight if known else "bounds by theorem: the comparison with clipping needs a loss and all counts"
        return graph, (_chosen(message, "use --bounds clip to clip instead"),)
    graph, notes = clipped(graph, clipping)
    reason, help_line = against
    return graph, (*notes, _chosen(f"bounds by clip: {reason}", help_line))


def clipped(graph: Graph, clipping: Clipping) -> tuple[Graph, tuple[Diagnostic, ...]]:
    """Return the graph in which clips bound all parameters that are trained and have no clip of their own.

    Nothing constrains them from there on.
    """
    if loops(graph):
        message = "a repetition whose count is open cannot be clipped"
        return graph, (Diagnostic("LIP316", message, "give the count: --set name=12"),)
    names = _unclipped(graph)
    fresh = Names({group.name for group in graph.clips}).fresh
    made = (clipping.of(fresh(name), own) for name, own in _groups(graph, names, clipping.groups))
    parameters = {
        name: replace(p, constraint=FREE) if name in names else p for name, p in graph.parameters.items()
    }
    return replace(graph, parameters=parameters, clips=(*graph.clips, *made)), ()


def _groups(graph: Graph, names: Sequence[str], groups: Groups) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the name and parameters of each group, a partition of `names`; a shared one is where it is first."""
    if groups == "flat":
        yield "others" if graph.clips else "all", tuple(names)
        return
    left = dict.fromkeys(names)
    for segment in segments(graph) if groups == "blocks" else ((node,) for node in graph.nodes):
        own = {name: node.name for node in segment for name in node.parameters.values() if name in left}
        for name in own:
            del left[name]
        if own:
            yield next(iter(own.values())), tuple(own)


def _unclipped(graph: Graph) -> tuple[str, ...]:
    """Return the parameters that are trained, and bounded by theorem as it stands."""
    return tuple(name for name, p in graph.proved().parameters.items() if p.trainable)


def _against_theorems(graph: Graph) -> tuple[str, str] | None:
    """Return why the theorems of a graph are of no use, and what helps; None if they are of use."""
    errors = [d for d in examine(graph) if d.severity == Severity.ERROR]
    if errors:
        return f"no theorem holds ({errors[0].message})", errors[0].help
    if open_numbers(graph):
        return None
    if graph.input.norm is None and not graph.input.tokens:
        help_line = "declare an input norm, and use --bounds theorem to prove bounds instead"
        return "no input norm is declared, so no theorem gives a bound", help_line
    if graph.loss is None:
        return None
    bounds = derive(graph, Certified())
    unit, total = unit_of(graph, bounds), bounds.total.upper
    if not math.isfinite(total) or not math.isfinite(unit):
        return "no theorem gives a finite bound", ""
    if total > LARGEST_THEOREM * unit:
        reason = f"the theorem's bound is {total:.4g}, above {LARGEST_THEOREM}·L·max(1, X_0) = {4 * unit:.4g}"
        return reason, "--bounds theorem takes it, with noise in its proportion"
    return None


def _chosen(message: str, help_line: str) -> Diagnostic:
    return Diagnostic("LIP315", message, help_line, Severity.NOTE)


def unproved(graph: Graph, known: Sequence[str]) -> tuple[Diagnostic, ...]:
    """Return an error for each parameter without a finite bound, if a weight has no constraint.

    Args:
        graph: as it was derived.
        known: names of the parameters with a finite bound.
    """
    if not _is_loose(graph) or open_numbers(graph):
        return ()
    return tuple(
        Diagnostic(
            "LIP317",
            f"no theorem bounds the gradient of `{name}`: it depends on a weight without a constraint",
            "clip it as well (clip=automatic, or --bounds clip), or constrain the weights before and after it",
            node=name.rpartition(".")[0] or None,
        )
        for name in _unclipped(graph)
        if name not in known
    )


def _is_loose(graph: Graph) -> bool:
    """Whether rules read a bound of a parameter that nothing constrains."""
    return any(
        graph.parameters[name].constraint.kind == "free" and node.op.parameter(role).is_constrained
        for node in graph.nodes
        for role, name in node.parameters.items()
    )
