"""Bounds of branches that start from disjoint slices of one tensor, where a concatenation joins them.

The slices of x have norms ξ_j with Σξ_j² <= X². A branch of Lipschitz ops on slice j has norm at most a·ξ_j + c,
a the product of the constants and c what the branch makes of zero. Joined, √Σ(a_j·ξ_j + c_j)² <= max a_j·X +
√Σc_j², where each branch by itself allows a_j·X. Proof: docs/theory.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Generic

from lipcompile.graph import Graph, Node
from lipcompile.numbers import N, Numbers
from lipcompile.ops.merge import CONCAT
from lipcompile.ops.record import Extent
from lipcompile.ops.shape import Slice
from lipcompile.passes.forms import root_of_squares


@dataclass(frozen=True, slots=True)
class Spread(Generic[N]):
    """‖t‖ <= offset + Σ_j gains[j]·ξ_j, ξ_j the norms of disjoint slices of `source`."""

    source: str
    offset: N
    gains: Mapping[str, N]


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


def spread_of(
    num: Numbers[N],
    node: Node,
    operands: Sequence[Spread[N] | None],
    gains: Sequence[N] | None,
    theta: Mapping[str, N],
) -> Spread[N] | None:
    """Return the spread of a node whose operands all have spreads over one tensor; None if it has none."""
    known = [operand for operand in operands if operand is not None]
    if gains is None or not known or len(known) < len(operands) or len({one.source for one in known}) > 1:
        return None
    zero = Extent(num.of(0), num.of(0), num.of(0))
    offset = node.op.norm(num, node.site, [zero] * len(known), theta)
    spread: dict[str, N] = {}
    for one, gain in zip(known, gains, strict=True):
        offset = offset + gain * one.offset
        for name, factor in one.gains.items():
            spread[name] = spread[name] + gain * factor if name in spread else gain * factor
    return Spread(known[0].source, offset, spread)


def joined(
    num: Numbers[N], node: Node, operands: Sequence[Spread[N] | None], norm: Mapping[str, Extent[N]]
) -> N | None:
    """Return the joint bound of a concatenation of branches over one tensor, None where there is none.

    With A = (a_ij) the gains of branch i on slice j, ‖A‖ <= √(largest row sum · largest column sum) (Schur); it is
    max a if each branch has a slice of its own.
    """
    known = [operand for operand in operands if operand is not None]
    if (
        node.op is not CONCAT
        or len(known) < len(operands)
        or len({one.source for one in known}) > 1
        or len(known) < 2
    ):
        return None
    slices = list(dict.fromkeys(name for one in known for name in one.gains))
    rows = [_sum(list(one.gains.values())) for one in known]
    columns = [_sum([one.gains[name] for one in known if name in one.gains]) for name in slices]
    diagonal = all(len(one.gains) == 1 for one in known) and len(slices) == len(known)
    gain = num.maximum(*rows) if diagonal else num.sqrt(num.maximum(*rows) * num.maximum(*columns))
    return gain * norm[known[0].source].norm + root_of_squares(num, [one.offset for one in known])


def _sum(terms: Sequence[N]) -> N:
    return sum(terms[1:], start=terms[0])
