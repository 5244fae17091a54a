"""The parameters that dominate the noise, and the changes of the model that make its gradient bound smaller.

Every total is certified, and derived from the changed graph. A smaller bound is less noise for the same privacy,
not by itself a better ratio of signal to noise: where that can be measured, it ranks them (docs/what-if.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count

from lipcompile.analysis.bounds import derive
from lipcompile.analysis.changes import scale, structure
from lipcompile.analysis.changes.edit import NO_CHANGE, Edit, Family, Kind, applied
from lipcompile.analysis.changes.subject import Subject, place_of
from lipcompile.core.derivation import Analysis, Block
from lipcompile.core.graph import Graph
from lipcompile.numbers.certified import Certified, Interval

# Told after each candidate: its place, how many are done, and of how many.
Progress = Callable[[str, int, int], None]
# Returns the mean gradient over its noise in a graph at its initial weights; None where that is not known.
Measure = Callable[[Graph], float | None]

# Changes of scale are many and do much: they are not to push those of structure out.
_MOST, _MOST_OF_A_KIND = 12, 6
# Decimals of a gain: what differs in later ones is rounding of the gradients.
_MEASURED = 3
# Nodes to derive for single places in all, and how many places a family may try at least.
_WORK, _FEWEST = 40_000, 3
# In graphs of more nodes, single places are tried in the dominating layers alone.
_LARGE = 2_000


# A family, its edits to try one by one, and whether to try all of them together too.
_Planned = tuple[Family, Sequence[Edit], bool]


@dataclass(frozen=True, slots=True)
class Change:
    """A change of the model and the bound of the whole gradient, √ΣK², after it.

    kind: `scale` makes the numbers of the same network smaller, and gradients with them; `structure` makes another
    network; `training` trains the same one otherwise. place: node, parameter, input or loss, or several of them.
    description: what to write. total: certified, not below the true number. factor: total after / total before.
    gain: signal over noise after / before, measured at the initial weights; None if it was not measured.
    """

    kind: Kind
    place: str
    description: str
    total: float
    factor: float
    gain: float | None = None


# An edit, and what it changes.
_Tried = tuple[Edit, Change]


def changes(graph: Graph, progress: Progress | None = None, measure: Measure | None = None) -> tuple[Change, ...]:
    """Return the changes that make the total smaller, the most effective first: at most twelve, six of a kind.

    The most effective are those with the largest gain, where `measure` knows it, else with the smallest total. Of
    changes that several places allow there are two: all of them together, and the best single one. Nothing is
    returned where the total is not known, as without an input norm or a loss.
    """
    before = derive(graph, Certified())
    # One that no double holds is as good as known, if it is positive.
    if not math.isfinite((before.total / before.total).upper):
        return ()
    shares = {name: (bound / before.total).upper for name, bound in before.gradient.items()}
    plan = list(_plan(Subject(graph, shares, before.loss_lipschitz.upper)))
    found = list(_tried(graph, before.total, plan, progress))
    ranked = [change for _, change in found] if measure is None else _measured(found, graph, measure, progress)
    kept: list[Change] = []
    for change in sorted(ranked, key=_rank):
        if sum(other.kind == change.kind for other in kept) < _MOST_OF_A_KIND:
            kept.append(change)
    return tuple(kept[:_MOST])


def _rank(change: Change) -> tuple[bool, float, float]:
    """Put gains before factors, and known gains before unknown ones."""
    gain = 0.0 if change.gain is None else round(change.gain, _MEASURED)
    return change.gain is None, -gain, change.factor


def _measured(found: Sequence[_Tried], graph: Graph, measure: Measure, progress: Progress | None) -> list[Change]:
    """Return changes with their gains, as far as they can be measured."""
    before = measure(graph)
    if not before:
        return [change for _, change in found]
    measured = []
    for done, (edit, change) in enumerate(found, start=1):
        changed = applied(graph, edit.patch)
        after = None if changed is None else measure(changed)
        measured.append(replace(change, gain=None if after is None else after / before))
        if progress is not None:
            progress(edit.place, done, len(found))
    return measured


def _plan(subject: Subject) -> Iterator[_Planned]:
    """Yield what is to be tried."""
    kinds = (scale.families, structure.families)
    families = [family for of in kinds for family in of(subject) if family.edits]
    nodes = len(subject.graph.nodes)
    most = max(_FEWEST, _WORK // (max(nodes, 1) * max(len(families), 1)))
    for family in families:
        yield family, *_to_try(family, subject, most, large=nodes > _LARGE)


def _to_try(family: Family, subject: Subject, most: int, *, large: bool) -> tuple[Sequence[Edit], bool]:
    """Return the edits to try by themselves, one for each place, and whether there are more places than one.

    Those at dominating layers come first.
    """
    groups: dict[object, list[Edit]] = {}
    for edit in family.edits:
        groups.setdefault(subject.place(edit), []).append(edit)
    edits = [replace(family, edits=group).together() for group in groups.values()]
    if len(edits) == 1:
        return edits, False
    dominating = [edit for edit in edits if not large or subject.rank(edit) < _FEWEST]
    return sorted(dominating, key=subject.rank)[:most], True


def _tried(
    graph: Graph, before: Interval, plan: Sequence[_Planned], progress: Progress | None
) -> Iterator[_Tried]:
    """Yield the best single change of each family, and that of all places if it does more."""
    planned, done = sum(len(single) + together for _, single, together in plan), count(1)

    def trial(edit: Edit) -> Change | None:
        """Return what an edit changes; None if it cannot be made, or makes nothing smaller."""
        changed = applied(graph, edit.patch)
        total = None if changed is None else derive(changed, Certified()).total
        if progress is not None:
            progress(edit.place, next(done), planned)
        factor = math.inf if total is None else (total / before).upper
        if total is None or not math.isfinite(total.upper) or factor >= 1 - NO_CHANGE:
            return None
        return Change(edit.kind, edit.place, edit.description, total.upper, factor)

    for family, single, together in plan:
        found = [(edit, change) for edit in single if (change := trial(edit)) is not None]
        best = min(found, key=lambda one: one[1].factor, default=None)
        if best is not None:
            yield best
        whole = family.together()
        every = trial(whole) if together else None
        if every is not None and (best is None or every.factor < best[1].factor * (1 - NO_CHANGE)):
            yield whole, every


# Shares


@dataclass(frozen=True, slots=True)
class Share:
    """A parameter, or that of all copies of one layer.

    names: of the parameters, in the order of the graph. bound: the largest of their K, certified. share: their
    part of ΣK², from 0 to 1, not rounded to any side.
    """

    names: tuple[str, ...]
    bound: float
    share: float


def dominating(analysis: Analysis) -> tuple[Share, ...]:
    """Return the shares of all trained parameters, the largest first; none where a bound is not known."""
    bounds = {name: bound.value for name, bound in analysis.parameters.items()}
    known = {name: value for name, value in bounds.items() if value is not None}
    total = analysis.total.value
    if not total or len(known) < len(bounds):
        return ()
    kinds = _kinds(analysis.graph, analysis.depth.blocks)
    groups: dict[object, list[str]] = {}
    for name in known:
        groups.setdefault(kinds.get(name, name), []).append(name)
    found = [
        Share(tuple(names), max(known[name] for name in names), sum((known[name] / total) ** 2 for name in names))
        for names in groups.values()
    ]
    return tuple(sorted(found, key=lambda share: -share.share))


def _kinds(graph: Graph, blocks: tuple[Block, ...]) -> Mapping[str, object]:
    """Return a key that the parameters of all copies of one layer have in common, by parameter."""
    places = {
        name: (block.name, position)
        for block in blocks
        for copy in block.layers
        for position, name in enumerate(copy)
    }
    return {
        name: (places.get(node.name) or place_of(node), role)
        for node in graph.nodes
        for role, name in node.parameters.items()
    }
