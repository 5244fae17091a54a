"""Rules over polynomials in the input norm are never below the same rules over numbers, on random graphs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from lipcompile.analysis.bounds import Bounds, derive
from lipcompile.core.graph import Graph
from lipcompile.core.record import scaled_by_lipschitz
from lipcompile.frontends.lip.lowering import lower
from lipcompile.frontends.lip.parser import parse
from lipcompile.frontends.options import ModelOptions
from lipcompile.numbers.certified import Certified, Interval
from lipcompile.numbers.polynomial import Polynomial, Polynomials
from lipcompile.numbers.scalar import Scalar
from lipcompile.numbers.step import value

from .graphs import random_graph
from .modules import random_model

SMALL, DEEP = 25, 700
LARGEST = 60
NORMS = (Fraction(1, 100), Fraction(1), Fraction(1000), Fraction(10) ** 7)
CLOSE = 1e-12


class Unit(Certified):
    """Certified numbers with the cotangent 1 at the output, as polynomials have it."""

    def symbol(self, name: str, value: Scalar | None, meaning: str) -> Interval:
        return self.of(1) if name == "L" else super().symbol(name, value, meaning)


def body(graph: Graph | None) -> Graph | None:
    """The graph without its loss; None if no repetition can have it as a body."""
    if graph is None or graph.input.tokens or len(graph.nodes) > LARGEST:
        return None
    scaled = all(node.op.cotangent is scaled_by_lipschitz for node in graph.nodes)
    return replace(graph, loss=None) if scaled else None


def written(seed: int) -> Graph | None:
    text = "model m {\n" + "\n".join(random_model(seed)) + "\n}"
    return lower(parse(text, "m.lip").models[0], {}, ModelOptions())[0]


def every(bounds: Bounds[Any]) -> Iterator[tuple[str, Any]]:
    named: Mapping[str, Mapping[str, Any]] = {
        "norm": bounds.norm,
        "cotangent": bounds.cotangent,
        "slope": bounds.slope,
        "gradient": bounds.gradient,
        "total": {"": bounds.total},
    }
    for kind, found in named.items():
        yield from ((f"{kind} {name}", number) for name, number in found.items())
    for name, gains in bounds.gain.items():
        yield from ((f"gain {name} {index}", number) for index, number in enumerate(gains))


def at(polynomial: Polynomial[Interval], norm: Fraction) -> float:
    num = Certified()
    found = value(num, polynomial.coefficients or {}, num.of(norm))
    return (num.sqrt(found) if polynomial.root else found).upper


def compare(graph: Graph) -> int:
    """Return how many numbers are known."""
    known = 0
    sides = [dict(every(derive(graph, Polynomials(Certified(), "x", side)))) for side in (False, True)]
    for norm in NORMS:
        given = replace(graph, input=replace(graph.input, norm=norm))
        for what, number in every(derive(given, Unit())):
            for polynomial in (side[what] for side in sides):
                if polynomial.coefficients is None:
                    continue
                known += 1
                found = at(polynomial, norm)
                assert found >= number.upper * (1 - CLOSE), (what, float(norm))
                assert not polynomial.exact or found <= number.upper * (1 + CLOSE), (what, float(norm))
    return known


def attack(seeds: range) -> None:
    graphs = [body(graph) for seed in seeds for graph in (random_graph(seed), written(seed))]
    assert sum(compare(graph) for graph in graphs if graph is not None) > 500 * len(seeds)


def test_polynomials_are_never_below_the_numbers() -> None:
    attack(range(SMALL))


@pytest.mark.nightly
def test_polynomials_are_never_below_the_numbers_nightly() -> None:
    attack(range(SMALL, DEEP))
