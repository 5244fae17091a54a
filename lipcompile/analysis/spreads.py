"""Bounds of branches that start from disjoint slices of one tensor, where they come together again.

The slices of x have norms ξ_j with Σξ_j² <= X². What Lipschitz ops make of them is bounded by c + ‖Aξ‖ with a
matrix A of products of their constants, so by c + ‖A‖·X, where each branch by itself allows a·X. Proof:
docs/theory.md, "Branches over disjoint slices".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Generic

from lipcompile.core.graph import Graph, Node
from lipcompile.numbers import N, Numbers
from lipcompile.numbers.matrices import column_norms, operator_norm, root_of_squares
from lipcompile.ops.record import Extent
from lipcompile.ops.shape.rules import Slice

# Concatenations of concatenations may double the rows of a spread; ‖Aξ‖ <= Σ_j‖A_j‖·ξ_j makes one of many.
MOST_ROWS = 64


@dataclass(frozen=True, slots=True)
class Spread(Generic[N]):
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


def slice_spread(num: Numbers[N], node: Node) -> Spread[N]:
    """Return the spread of one of the disjoint slices."""
    return Spread(node.inputs[0], num.of(0), [{node.name: num.of(1)}])


def spread_of(
    num: Numbers[N],
    node: Node,
    operands: Sequence[Spread[N] | None],
    gains: Sequence[N],
    theta: Mapping[str, N],
) -> Spread[N] | None:
    """Return the spread of a Lipschitz node if all its operands have spreads over one tensor, else None."""
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
        return Spread(known[0].source, at_zero + root_of_squares(num, offsets), few)
    rows = grown[0] if len(grown) == 1 else [_added([column_norms(num, matrix) for matrix in grown])]
    return Spread(known[0].source, sum(offsets, start=at_zero), rows)


def _scaled(factor: N, rows: Sequence[Mapping[str, N]]) -> list[dict[str, N]]:
    return [{name: factor * entry for name, entry in row.items()} for row in rows]


def _added(rows: Sequence[Mapping[str, N]]) -> dict[str, N]:
    found: dict[str, N] = {}
    for row in rows:
        for name, entry in row.items():
            found[name] = found[name] + entry if name in found else entry
    return found
