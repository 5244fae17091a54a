"""Bounds of tensors that are parts of one tensor: cotangents of what is joined, and branches from disjoint slices.

The operands of a concatenation receive disjoint parts of one cotangent: with part norms g·γ_i, g its bound,
Σγ_i² <= 1. Where the branches meet again, their contributions add up to at most g·√Σc_i², not g·Σc_i. So a
cotangent is carried as a form c + Σ c_π·γ_π in these parts until all parts of one tensor have come together.

A path π names a part of a part of …: (concatenation, operand) pairs, outermost first. Along a path parts are
nested (γ_π,i = γ_π·f_i with Σf_i² <= 1): folding goes from the inside out. Proof: docs/theory.md, "Parts of one
cotangent".

The slices of x have norms ξ_j with Σξ_j² <= X². What Lipschitz ops make of them is bounded by c + ‖Aξ‖ with a
matrix A of products of their constants, so by c + ‖A‖·X, where each branch by itself allows a·X. Proof:
docs/theory.md, "Branches over disjoint slices".
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Generic, NamedTuple

from lipcompile.core.graph import Graph, Node
from lipcompile.core.record import Extent
from lipcompile.numbers import N, Numbers
from lipcompile.numbers.matrices import column_norms, operator_norm, root_of_squares
from lipcompile.ops.shape.rules import Slice

# Every concatenation that reads earlier ones may double the terms of a form; folding some early is always sound.
MOST_TERMS = 64


class Part(NamedTuple):
    """One operand of the node `whole`, which has so many operands; a tuple, whose hash is quick."""

    whole: str
    operand: int
    operands: int


Path = tuple[Part, ...]
WHOLE: Path = ()


@dataclass(frozen=True, slots=True)
class PartwiseBound(Generic[N]):
    """Σ c_π·γ_π over paths, at least one; the empty path stands for the number 1."""

    terms: Mapping[Path, N]

    def scaled(self, factor: N) -> PartwiseBound[N]:
        """Return factor·form."""
        return PartwiseBound({path: factor * term for path, term in self.terms.items()})

    def part(self, part: Part) -> PartwiseBound[N]:
        """Return the form of one part of a tensor with this form."""
        return PartwiseBound({(*path, part): term for path, term in self.terms.items()})


def total(num: Numbers[N], forms: Sequence[PartwiseBound[N]]) -> PartwiseBound[N]:
    """Return the sum, the triangle inequality for what shares no part."""
    if len(forms) == 1:
        return forms[0]
    terms: dict[Path, list[N]] = {}
    for form in forms:
        for path, term in form.terms.items():
            terms.setdefault(path, []).append(term)
    return PartwiseBound({path: found[0] if len(found) == 1 else num.sum(*found) for path, found in terms.items()})


def bound(num: Numbers[N], form: PartwiseBound[N]) -> N:
    """Return the largest value of the form."""
    terms, levels = dict(form.terms), _levels(form.terms)
    while len(levels) > 1:
        _fold(num, terms, levels)
    return terms[WHOLE]


def settled(num: Numbers[N], form: PartwiseBound[N]) -> PartwiseBound[N]:
    """Fold every tensor whose parts have all arrived, c_π += √Σ c_(π,i)²."""
    terms, levels = dict(form.terms), _levels(form.terms)
    outside: set[Path] = set()  # of longer paths that stay
    while len(levels) > 1:
        outside = {path[:-1] for path in (*outside, *_fold(num, terms, levels, outside))}
    return PartwiseBound(terms)


def limited(num: Numbers[N], form: PartwiseBound[N]) -> PartwiseBound[N]:
    """Fold the innermost parts until terms are not too many."""
    if len(form.terms) <= MOST_TERMS:
        return form
    terms, levels = dict(form.terms), _levels(form.terms)
    while len(terms) > MOST_TERMS:
        _fold(num, terms, levels)
    return PartwiseBound(terms)


def _levels(terms: Iterable[Path]) -> list[list[Path]]:
    """Return the paths of length 0, 1, …, up to the longest."""
    levels: list[list[Path]] = [[]]
    for path in terms:
        while len(levels) <= len(path):
            levels.append([])
        levels[len(path)].append(path)
    return levels


def _fold(
    num: Numbers[N], terms: dict[Path, N], levels: list[list[Path]], outside: Container[Path] | None = None
) -> list[Path]:
    """Take off the last level, and fold its paths, the parts of one tensor into one; return those that stay.

    None stays unless `outside` is given, what the longer paths that stayed begin with: then those do that have
    such, and those of which a part has not arrived.
    """
    wholes: dict[tuple[Path, str], list[Path]] = {}
    for path in levels.pop():
        wholes.setdefault((path[:-1], path[-1].whole), []).append(path)
    staying = []
    for (outer, _), parts in wholes.items():
        if outside is not None and (len(parts) < parts[0][-1].operands or any(path in outside for path in parts)):
            staying += parts
            continue
        folded = root_of_squares(num, [terms.pop(path) for path in parts])
        if outer in terms:
            terms[outer] = terms[outer] + folded
        else:
            terms[outer] = folded
            levels[-1].append(outer)
    return staying


def disjoint(num: Numbers[N], forms: Sequence[PartwiseBound[N]]) -> PartwiseBound[N]:
    """Return the form of a tensor from those of its disjoint slices: √Σ‖g_j‖².

    What all slices are parts of, γ_π, is a common factor. If the rests are forms Σ c_ji·γ_i in parts of one more
    tensor, Σγ_i² <= 1, the root is at most ‖(c_ji)‖·γ_π: blocks on disjoint slices that are joined again are its
    diagonal case, max c. Otherwise the rests are bounded one by one.
    """
    shared = _common_path(forms)
    rests = [PartwiseBound({path[len(shared) :]: term for path, term in form.terms.items()}) for form in forms]
    if _are_parts({path for rest in rests for path in rest.terms}):
        return PartwiseBound({shared: operator_norm(num, [rest.terms for rest in rests])})
    return PartwiseBound({shared: root_of_squares(num, [bound(num, rest) for rest in rests])})


def _are_parts(paths: set[Path]) -> bool:
    """Whether the paths lead to different parts, or parts of parts, of one tensor: then Σγ_π² <= 1."""
    if WHOLE in paths:
        return len(paths) == 1
    if len({path[0].whole for path in paths}) > 1:
        return False
    return all(_are_parts({path[1:] for path in paths if path[0] == first}) for first in {p[0] for p in paths})


def _common_path(forms: Sequence[PartwiseBound[N]]) -> Path:
    """Return the longest path that all paths of all forms begin with."""
    paths = [path for form in forms for path in form.terms]
    shared = paths[0]
    for path in paths[1:]:
        same = [a == b for a, b in zip(shared, path, strict=False)]
        shared = shared[: same.index(False) if False in same else len(same)]
    return shared


# Concatenations of concatenations may double the rows of a bound; ‖Aξ‖ <= Σ_j‖A_j‖·ξ_j makes one of many.
MOST_ROWS = 64


@dataclass(frozen=True, slots=True)
class BranchBound(Generic[N]):
    """‖t‖ <= offset + ‖(Σ_j row[j]·ξ_j) over rows‖, ξ_j the norms of disjoint slices of `source`, by name."""

    source: str
    offset: N
    rows: Sequence[Mapping[str, N]]

    def bound(self, num: Numbers[N], norm: N) -> N:
        """Return a bound of ‖t‖ if the norm of the source is at most `norm`."""
        return operator_norm(num, self.rows) * norm + self.offset


def disjoint_slices(graph: Graph) -> frozenset[str]:
    """Return the slices that overlap no other slice of the same tensor, where a tensor has several."""
    of: dict[str, list[Node]] = {}
    for node in graph.nodes:
        if isinstance(node.attributes, Slice):
            of.setdefault(node.inputs[0], []).append(node)
    families = [nodes for nodes in of.values() if len(nodes) > 1 and are_disjoint(nodes)]
    return frozenset(node.name for nodes in families for node in nodes)


def are_disjoint(slices: Sequence[Node]) -> bool:
    """Whether slices of one tensor are along one axis and overlap nowhere."""
    ordered = sorted((node.attributes for node in slices), key=lambda part: part.start)
    same_axis = len({part.axis for part in ordered}) == 1
    return same_axis and all(a.stop <= b.start for a, b in pairwise(ordered))


def slice_bound(num: Numbers[N], node: Node) -> BranchBound[N]:
    """Return the bound of one of the disjoint slices."""
    return BranchBound(node.inputs[0], num.of(0), [{node.name: num.of(1)}])


def branch_bound(
    num: Numbers[N],
    node: Node,
    operands: Sequence[BranchBound[N] | None],
    gains: Sequence[N],
    theta: Mapping[str, N],
) -> BranchBound[N] | None:
    """Return the bound of a Lipschitz node if all its operands have bounds over one tensor, else None."""
    known = [operand for operand in operands if operand is not None]
    one_source = len({operand.source for operand in known}) == 1
    if len(known) < len(operands) or not one_source:
        return None
    zero = Extent(num.of(0), num.of(0), num.of(0))
    at_zero = node.op.norm(num, node.site, [zero] * len(known), theta)
    offsets = [gain * operand.offset for gain, operand in zip(gains, known, strict=True)]
    grown = [_scaled(gain, operand.rows) for gain, operand in zip(gains, known, strict=True)]
    if node.op.parts:
        rows = [row for matrix in grown for row in matrix]
        few = rows if len(rows) <= MOST_ROWS else [column_norms(num, rows)]
        return BranchBound(known[0].source, at_zero + root_of_squares(num, offsets), few)
    rows = grown[0] if len(grown) == 1 else [_added([column_norms(num, matrix) for matrix in grown])]
    return BranchBound(known[0].source, sum(offsets, start=at_zero), rows)


def _scaled(factor: N, rows: Sequence[Mapping[str, N]]) -> list[dict[str, N]]:
    return [{name: factor * entry for name, entry in row.items()} for row in rows]


def _added(rows: Sequence[Mapping[str, N]]) -> dict[str, N]:
    found: dict[str, N] = {}
    for row in rows:
        for name, entry in row.items():
            found[name] = found[name] + entry if name in found else entry
    return found
