"""Fix: changes that bring the bound of a model down to one that is of use, and what each of them does to it.

Each kind of change is tried in the whole graph at once, and its total is derived from the changed graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from lipcompile.analysis.changes import layers
from lipcompile.analysis.changes.edit import NO_CHANGE, is_refused
from lipcompile.analysis.changes.layers import Changed
from lipcompile.analysis.usefulness import USEFUL, Aim, Standing, standing
from lipcompile.core.graph import Graph


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of change.

    made: in any case, where the bound misses its aim without it, or only if it or a target is asked for.
    """

    name: str
    title: str
    make: Callable[[Graph, Fraction], Changed]
    made: Literal["always", "if needed", "if asked for"]


# In the order in which they are tried.
KINDS: Sequence[Kind] = (
    Kind("softmax", "last softmax or sigmoid -> left out, as the loss has its own", layers.of_logits, "always"),
    Kind("norm", "norms that divide by almost nothing -> norms with a floor", layers.floored, "if needed"),
    Kind("residual", "sums of branches -> their means", layers.averaged, "if needed"),
    Kind("attention", "attention -> attention to tokens of bounded length", layers.cut_tokens, "if needed"),
    Kind("pool", "max pools -> L2 pools", layers.pooled, "if asked for"),
    Kind("groupsort", "ReLU -> GroupSort of pairs", layers.sorted_in_pairs, "if asked for"),
)


@dataclass(frozen=True, slots=True)
class Fix:
    """A change that was made, or might be: at which places, why not at others, and the bound of the whole gradient
    before and after it. Totals are certified; infinite where they are not known.
    """

    kind: Kind
    places: tuple[str, ...]
    before: float
    after: float
    not_made: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Fixed:
    """A graph after its changes. total: of its whole gradient. useful: whether the aim is reached.

    target: the total that was aimed at, None for a useful one. excess: total over a typical gradient, if measured.
    """

    graph: Graph
    made: tuple[Fix, ...]
    left: tuple[Fix, ...]
    total: float
    useful: bool
    target: float | None = None
    excess: float | None = None


def fixed(
    graph: Graph,
    floor: Fraction,
    also: Collection[str] = (),
    never: Collection[str] = (),
    kinds: Sequence[Kind] = KINDS,
    before: Standing | None = None,
    aim: Aim = USEFUL,
) -> Fixed:
    """Return the graph with the changes of kinds in `also` and those that its aim needs, but none in `never`.

    before: how the graph stands, if that is known.
    """
    made: list[Fix] = []
    left: list[Fix] = []
    before = before or aim.judged(graph, standing(graph))
    for kind in kinds:
        changed = kind.make(graph, floor)
        if not (changed.places or changed.not_made) or is_refused(changed.graph):
            continue
        after = standing(changed.graph) if changed.places else before
        found = Fix(kind, changed.places, before.total, after.total, changed.not_made)
        if changed.places and kind.name not in never and (kind.name in also or _is_due(kind, before, after, aim)):
            made.append(found)
            graph, before = changed.graph, aim.judged(changed.graph, after)
        else:
            left.append(found)
    return Fixed(graph, tuple(made), tuple(left), before.total, before.useful, aim.target, before.excess)


def helps(graph: Graph, total: float) -> bool:
    """Whether what is changed unasked brings a useless bound of the whole gradient below the threshold."""
    unasked = [kind for kind in KINDS if kind.made != "if asked for"]
    return fixed(graph, Fraction(1), kinds=unasked, before=Standing(total, useful=False)).useful


def _is_due(kind: Kind, before: Standing, after: Standing, aim: Aim) -> bool:
    """Whether a change is made unasked: what is beyond doubles on both sides of it may have been made smaller."""
    if kind.made == "always":
        return True
    smaller = after.total < before.total * (1 - NO_CHANGE) or math.isinf(after.total)
    return not before.useful and smaller and (kind.made == "if needed" or aim.target is not None)
