"""Put the formulas and the certified numbers of a graph side by side."""

from __future__ import annotations

import sympy

from lipcompile.analysis.bounds import Bounds, derive
from lipcompile.analysis.depth.regimes import growth, used
from lipcompile.core.derivation import Analysis, Bound, Depth, LayerBounds, largest
from lipcompile.core.graph import Graph
from lipcompile.numbers.certified import Certified, Interval
from lipcompile.numbers.rounding import finite
from lipcompile.numbers.simplify import extreme
from lipcompile.numbers.symbolic import Formula, Symbolic


def analyse(graph: Graph) -> Analysis:
    """Derive every bound of `graph`, as a formula and as a certified number, and how they grow with depth."""
    domain = Symbolic()
    formulas = derive(graph, domain)
    certified = Certified()
    numbers = derive(graph, certified)
    layers = tuple(_layer(node.name, formulas, numbers) for node in graph.nodes)
    # What occurs in a formula, and X_0.
    shown = [
        *formulas.norm.values(),
        *formulas.cotangent.values(),
        *formulas.gradient.values(),
        formulas.total,
        formulas.slope[graph.input.name],
    ]
    mentioned = [sympy.Symbol("X_0"), *(formula.expression for formula in shown)]
    slope = _bound(formulas.slope[graph.input.name], numbers.slope[graph.input.name])
    return Analysis(
        graph=graph,
        numbers=numbers,
        definitions=used(mentioned, domain, certified),
        layers=layers,
        parameters={name: _bound(k, numbers.gradient[name]) for name, k in formulas.gradient.items()},
        loss_lipschitz=_bound(formulas.loss_lipschitz, numbers.loss_lipschitz),
        lipschitz=slope,
        total=_bound(formulas.total, numbers.total),
        depth=growth(graph, numbers.slope),
    )


def numbers_alone(graph: Graph) -> Analysis:
    """Derive the certified numbers of `graph`, without formulas or growth with depth: all that programs need."""
    numbers = derive(graph, Certified())
    known = {name: _number(k) for name, k in numbers.gradient.items()}
    slope = _number(numbers.slope[graph.input.name])
    return Analysis(
        graph=graph,
        numbers=numbers,
        definitions=(),
        layers=(),
        parameters=known,
        loss_lipschitz=_number(numbers.loss_lipschitz),
        lipschitz=slope,
        total=_number(numbers.total),
        depth=Depth(None),
    )


def _number(number: Interval) -> Bound:
    return Bound(None, finite(number.upper))


def _layer(name: str, formulas: Bounds[Formula], numbers: Bounds[Interval]) -> LayerBounds:
    gains = [_bound(f, n) for f, n in zip(formulas.gain[name], numbers.gain[name], strict=True)]
    return LayerBounds(
        name,
        output_norm=_bound(formulas.norm[name], numbers.norm[name]),
        cotangent=_bound(formulas.cotangent[name], numbers.cotangent[name]),
        lipschitz=_largest(gains),
    )


def _bound(formula: Formula, number: Interval) -> Bound:
    return Bound(formula.expression, finite(number.upper))


def _largest(bounds: list[Bound]) -> Bound:
    if all(bound.expression == bounds[0].expression for bound in bounds):
        return bounds[0]
    return Bound(extreme(sympy.Max, (bound.expression for bound in bounds)), largest(bounds))
