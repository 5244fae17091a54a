"""What would make a repeated block critical: changes of the block, tried and kept if they do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

from lipcompile.graph import Graph, Node
from lipcompile.numbers.certified import Certified
from lipcompile.ops.merge import SUM, Sum
from lipcompile.ops.record import Constraint
from lipcompile.passes.bounds import derive
from lipcompile.passes.loops import ROUNDING, Loop, NotAffineError, loops, step_of

# Constraints that scale with their bound.
_SCALED = ("spectral", "frobenius")


def advice(graph: Graph) -> Iterator[str]:
    """Yield, for each loop that is not critical, what makes it so, or which layers shrink what passes them."""
    for node in loops(graph):
        loop = node.attributes
        rate = _largest_rate(loop)
        if rate is None or abs(rate - 1) <= ROUNDING:
            continue
        found = list(_changes(loop, rate))
        yield from (f"{loop.name} becomes critical with {text}" for text in found)
        if not found and rate < 1:
            yield from _shrinking(loop)


def _changes(loop: Loop, rate: float) -> Iterator[str]:
    averaged = _averaged(loop.body)
    if averaged is not None and _is_critical(replace(loop, body=averaged)):
        yield "residual(mean) in place of residual(add)"
    weights = [p for p in loop.body.parameters.values() if p.constraint.kind in _SCALED]
    bounds = {p.constraint.bound for p in weights}
    if len(bounds) == 1 and isinstance(bound := bounds.pop(), Fraction):
        # In a chain of k layers the rate is u^k times the rest, which stays.
        ideal = Fraction(float(bound) * rate ** (-1 / len(weights))).limit_denominator(10**6)
        if _is_critical(replace(loop, body=_constrained(loop.body, ideal)), ROUNDING * 10**6):
            yield f"{weights[0].constraint.kind}({float(ideal):.7g}) for {_its_weights(len(weights))}"


def _its_weights(number: int) -> str:
    return "its weight" if number == 1 else f"each of its {number} weights"


def _averaged(body: Graph) -> Graph | None:
    """Return the body with means in place of sums, None if there are none."""

    def changed(node: Node) -> Node:
        weights = getattr(node.attributes, "weights", ())
        if node.op is not SUM or any(weight != 1 for weight in weights):
            return node
        mean = Sum((Fraction(1, len(weights)),) * len(weights))
        return replace(node, attributes=mean, site=replace(node.site, attributes=mean))

    nodes = tuple(changed(node) for node in body.nodes)
    return replace(body, nodes=nodes) if nodes != body.nodes else None


def _constrained(body: Graph, bound: Fraction) -> Graph:
    parameters = {
        name: replace(p, constraint=Constraint(p.constraint.kind, bound)) if p.constraint.kind in _SCALED else p
        for name, p in body.parameters.items()
    }
    return replace(body, parameters=parameters)


def _is_critical(loop: Loop, tolerance: float = ROUNDING) -> bool:
    rate = _largest_rate(loop)
    return rate is not None and abs(rate - 1) <= tolerance


def _largest_rate(loop: Loop) -> float | None:
    """Return the larger of a and l; None if it is not known."""
    num = Certified()
    try:
        step = step_of(loop, num)
    except NotAffineError:
        return None
    rate = max(step.norm.get(1, num.of(0)).upper, step.lipschitz.upper)
    return rate if rate < float("inf") else None


def _shrinking(loop: Loop) -> Iterator[str]:
    """Name the layers of a contractive body whose own constants are below 1."""
    unit = replace(loop.body, input=replace(loop.body.input, norm=Fraction(1)))
    gains = derive(unit, Certified()).gain
    small = [name for name, found in gains.items() if all(gain.upper < 1 - ROUNDING for gain in found)]
    if small:
        yield f"{loop.name} is contractive because of {', '.join(small)}: constants of 1 would make it critical"
