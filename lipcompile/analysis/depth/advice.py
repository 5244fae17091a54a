"""Changes that make a repeated block critical: each is tried, and kept if it does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from math import log2

from lipcompile.analysis.bounds import derive
from lipcompile.analysis.depth.loops import ROUNDING, Loop, NotAffineError, loops, step_of
from lipcompile.core.graph import Graph, Node
from lipcompile.core.record import Constraint
from lipcompile.numbers import text
from lipcompile.numbers.certified import Certified
from lipcompile.numbers.rounding import finite
from lipcompile.ops.merge.rules import SUM, Sum

# Constraints that scale with their bound.
_SCALED = ("spectral", "frobenius")
# A bound that is no short fraction is written with so many digits, and rounded down.
DIGITS = 6
NEARLY = 10.0**-DIGITS
# With k weights in a row the rate misses 1 by k times as much.
LONGEST_CHAIN = 10
# No bound is multiplied or divided by more than 2 to this.
FARTHEST = 64


def advice(graph: Graph) -> Iterator[str]:
    """Yield, for each loop that is not critical, what makes it so, or which layers shrink what passes them."""
    for node in loops(graph):
        loop = node.attributes
        rate = _largest_rate(loop)
        if rate is None or abs(rate - 1) <= ROUNDING:
            continue
        found = list(_changes(loop))
        yield from (f"{loop.name} becomes {text}" for text in found)
        if not found and rate < 1:
            yield from _shrinking(loop)


def _changes(loop: Loop) -> Iterator[str]:
    """Yield the changes of one kind that make the loop critical; if none does, those of both kinds together."""
    means = "residual(mean) instead of residual(add)"
    averaged = _averaged(loop)
    alone = averaged is not None and _is_critical(averaged)
    if alone:
        yield f"critical with {means}"
    bounded = _bounded(loop)
    if bounded is not None:
        yield bounded
    elif averaged is not None and not alone and (both := _bounded(averaged)) is not None:
        yield f"{both}, and {means}"


def _bounded(loop: Loop) -> str | None:
    """Return the one bound of its weights that makes the loop critical, up to rounding; None if there is none."""
    weights = [p for p in loop.body.parameters.values() if p.constraint.kind in _SCALED]
    kinds = {(p.constraint.kind, p.constraint.bound) for p in weights}
    if len(kinds) != 1 or not isinstance(bound := weights[0].constraint.bound, Fraction):
        return None
    ideal = _ideal(loop, bound)
    written = None if ideal is None else _written(loop, weights[0].constraint.kind, bound, ideal)
    whose = "its weight" if len(weights) == 1 else f"each of its {len(weights)} weights"
    return None if written is None else f"{written} for {whose}"


def _ideal(loop: Loop, bound: Fraction) -> float | None:
    """Return the bound u with which the rate is 1 if it is a multiple of u^k, as with k weights in a row."""
    rate, halved = _largest_rate(loop), _largest_rate(_constrained(loop, bound / 2))
    if not rate or not halved or rate <= halved * (1 + ROUNDING):
        return None
    doublings = -log2(rate) / log2(rate / halved)
    return float(bound) * 2**doublings if abs(doublings) < FARTHEST else None


def _written(loop: Loop, kind: str, bound: Fraction, ideal: float) -> str | None:
    """Write a bound that makes the loop critical: a short fraction, or a decimal not above the ideal one."""
    for exact in (Fraction(ideal).limit_denominator(1000), Fraction(1)):
        if exact not in (0, bound) and _is_critical(_constrained(loop, exact)):
            return f"critical with {kind}({text(exact)})"
    below = Fraction(f"{ideal * (1 - NEARLY / 2):.{DIGITS + 1}g}")
    rate = _largest_rate(_constrained(loop, below))
    if rate is None or not (1 - NEARLY) ** LONGEST_CHAIN <= rate <= 1:
        return None
    return f"critical to {DIGITS} digits with {kind}({text(below)})"


def _averaged(loop: Loop) -> Loop | None:
    """Return the loop with means instead of sums, None if there are none."""

    def changed(node: Node) -> Node:
        weights = getattr(node.attributes, "weights", ())
        if node.op is not SUM or any(weight != 1 for weight in weights):
            return node
        mean = Sum((Fraction(1, len(weights)),) * len(weights))
        return replace(node, attributes=mean, site=replace(node.site, attributes=mean))

    nodes = tuple(changed(node) for node in loop.body.nodes)
    return replace(loop, body=replace(loop.body, nodes=nodes)) if nodes != loop.body.nodes else None


def _constrained(loop: Loop, bound: Fraction) -> Loop:
    parameters = {
        name: replace(p, constraint=Constraint(p.constraint.kind, bound)) if p.constraint.kind in _SCALED else p
        for name, p in loop.body.parameters.items()
    }
    return replace(loop, body=replace(loop.body, parameters=parameters))


def _is_critical(loop: Loop) -> bool:
    rate = _largest_rate(loop)
    return rate is not None and abs(rate - 1) <= ROUNDING


def _largest_rate(loop: Loop) -> float | None:
    """Return the larger of a and l; None if it is not known."""
    num = Certified()
    try:
        step = step_of(loop, num)
    except NotAffineError:
        return None
    return finite(max(step.norm.get(1, num.of(0)).upper, step.lipschitz.upper))


def _shrinking(loop: Loop) -> Iterator[str]:
    """Name the layers of a contractive body whose own constants are below 1; shares of sums are no layers."""
    unit = replace(loop.body, input=replace(loop.body.input, norm=Fraction(1)))
    gains = derive(unit, Certified()).gain
    layers = [node.name for node in unit.nodes if node.op is not SUM]
    small = [name for name in layers if all(gain.upper < 1 - ROUNDING for gain in gains[name])]
    if small:
        yield f"{loop.name} is contractive because Lipschitz constants in it are below 1: {', '.join(small)}"
