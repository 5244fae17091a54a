"""Fix: changes that bring the bound of a model down to one that is of use, and what each of them does to it.

Each kind of change is tried in the whole graph at once, and its total is derived from the changed graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from lipcompile.graph import Graph, LossUse
from lipcompile.numbers.certified import Certified
from lipcompile.ops import LOSS_BY_NAME
from lipcompile.ops.record import NoAttributes
from lipcompile.passes.bounds import derive
from lipcompile.passes.fix import layers, tokens
from lipcompile.passes.fix.edit import Changed, Wanted
from lipcompile.passes.requirements import examine
from lipcompile.passes.vacuous import LARGEST_USEFUL

__all__ = ["KINDS", "Fix", "Fixed", "Kind", "Left", "Wanted", "fixed", "total_of"]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of change. needed: whether it is made by itself where the bound is useless without."""

    name: str
    title: str
    make: Callable[[Graph, Wanted], Changed]
    needed: bool


# In the order in which they are tried.
KINDS: Sequence[Kind] = (
    Kind("norm", "norms with eps -> norms with a floor", layers.floored, needed=True),
    Kind("residual", "sums of branches -> their means", layers.averaged, needed=True),
    Kind("attention", "attention -> attention to tokens of bounded length", tokens.bounded, needed=True),
    Kind("pool", "max pools -> L2 pools", layers.pooled, needed=False),
    Kind("groupsort", "ReLU -> GroupSort of pairs", layers.sorted_in_pairs, needed=False),
)


@dataclass(frozen=True, slots=True)
class Fix:
    """A change that was made: at which places, and the bound of the whole gradient before and after it.

    Totals are certified; infinite where they are not known.
    """

    kind: Kind
    places: tuple[str, ...]
    before: float
    after: float
    not_made: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Left:
    """A change that was not made, at so many places, and what the bound would be with it; why not everywhere."""

    kind: Kind
    places: tuple[str, ...]
    after: float
    not_made: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Fixed:
    """A graph after its changes. total: of its whole gradient. useful: whether that is below the threshold.

    assumed: that the graph declares no input norm or no loss, and that totals are those for X_0 = 1 and L = 1.
    """

    graph: Graph
    made: tuple[Fix, ...]
    left: tuple[Left, ...]
    total: float
    useful: bool
    assumed: bool


def fixed(graph: Graph, wanted: Wanted, also: Collection[str] = (), never: Collection[str] = ()) -> Fixed:
    """Return the graph with the changes of kinds in `also` and those that its bound needs, but none in `never`."""
    made: list[Fix] = []
    left: list[Left] = []
    for kind in KINDS:
        changed = kind.make(graph, wanted)
        if not (changed.places or changed.not_made) or _is_refused(changed.graph):
            continue
        before, after = total_of(graph), total_of(changed.graph)
        if (
            changed.places
            and kind.name not in never
            and (kind.name in also or _is_needed(kind, graph, before, after))
        ):
            made.append(Fix(kind, changed.places, before, after, changed.not_made))
            graph = changed.graph
        else:
            left.append(Left(kind, changed.places, after, changed.not_made))
    total = total_of(graph)
    return Fixed(graph, tuple(made), tuple(left), total, _is_useful(graph, total), _complete(graph) is not graph)


def _is_needed(kind: Kind, graph: Graph, before: float, after: float) -> bool:
    return kind.needed and not _is_useful(graph, before) and after < before


def _is_refused(graph: Graph) -> bool:
    """Whether a change has made something that could not be trained."""
    return any(found.severity == "error" for found in examine(graph))


def total_of(graph: Graph) -> float:
    """Return the certified bound of the whole gradient, as if what is not declared were X_0 = 1 and L = 1."""
    return derive(_complete(graph), Certified()).total.upper


def _is_useful(graph: Graph, total: float) -> bool:
    """Whether a total is below the threshold of `passes.vacuous`, in units of L·max(1, X_0)."""
    loss = derive(_complete(graph), Certified()).loss_lipschitz.upper
    norm = graph.input.norm
    unit = loss * max(1.0, float(norm) if isinstance(norm, Fraction) else 1.0)
    return math.isfinite(total) and total <= LARGEST_USEFUL * unit


def _complete(graph: Graph) -> Graph:
    """Return the graph with an input norm and a loss, where it has none."""
    if graph.input.norm is None and not graph.input.tokens:
        graph = replace(graph, input=replace(graph.input, norm=Fraction(1)))
    if graph.loss is None:
        graph = replace(graph, loss=LossUse(LOSS_BY_NAME["kr"], NoAttributes()))
    return graph
