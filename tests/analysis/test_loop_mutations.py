"""Bounds of repetitions made 5% smaller anywhere are seen: mutants of steps, their powers and polynomials."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from lipcompile.analysis.bounds import derive
from lipcompile.analysis.depth.loops import loops, with_count, with_loop
from lipcompile.core.graph import Graph
from lipcompile.numbers import Step, certified, closed_form, polynomial
from lipcompile.numbers.certified import Certified
from lipcompile.numbers.polynomial import Polynomial, Polynomials, without_root
from lipcompile.numbers.step import value
from lipcompile.numbers.symbolic import Symbolic
from tests.analysis.test_closed_forms import evaluated, loaded, network

NEAR = 1 - 1e-9
COPIES = 3
BODIES = {
    "expansive": "dense(4, constraint=spectral(1.25), bias=0.5) relu",
    "critical": "dense(4, bias=0.5) relu",
    "tied": 'dense(4, constraint=spectral(0.8), bias=0.5, share="w") relu',
    "tied and critical": 'dense(4, bias=0.5, share="w") relu',
    # Norms grow by an offset, cotangents by 3/2.
    "saturated": "dense(4) residual(add) {{ layer_norm(floor=1) dense(4, constraint=spectral(0.5)) }}",
}
NORMS = {"saturated": 1000}

# What must hold


def models(folder: Path) -> Iterator[tuple[Graph, float]]:
    """Yield networks whose count is open, and the bound of each with the copies written out."""
    for name, body in BODIES.items():
        source = network(body.format(), NORMS.get(name, 1))
        unrolled = loaded(source, folder, depth=Fraction(COPIES))
        yield loaded(source, folder), derive(unrolled, Certified()).total.upper


def composed(folder: Path) -> bool:
    """Powers of intervals, done step by step, are what the unrolled networks give."""
    found = []
    for graph, expected in models(folder):
        [loop] = loops(graph)
        number = derive(with_count(graph, loop.attributes, COPIES), Certified()).total.upper
        found.append(math.isclose(number, expected, rel_tol=1e-9))
    return all(found)


def closed(folder: Path) -> bool:
    """So are the closed forms."""
    found = []
    for graph, expected in models(folder):
        num = Symbolic()
        total = derive(graph, num).total.expression
        number = evaluated(total, tuple(num.definitions.values()), depth=COPIES, X_0=graph.input.norm)
        found.append(math.isclose(float(number), expected, rel_tol=1e-9))
    return all(found)


def programs(num: Polynomials[Any]) -> Iterator[tuple[Polynomial[Any], Callable[[float], float]]]:
    """Numbers of the domain, and what they stand for, to which they are near at one of the points."""
    x, two, three = num.symbol("X_0", None, "norm"), num.of(2), num.of(3)
    yield x + two, lambda at: at + 2
    yield (x + 1) * three, lambda at: 3 * at + 3
    yield x / three, lambda at: at / 3
    yield num.exp(0 - two), lambda _: math.exp(-2)
    yield num.sqrt(x * x * 9), lambda at: 3 * at
    yield num.sqrt(x * x * 4 + x * 12 + 1), lambda at: math.sqrt(4 * at * at + 12 * at + 1)
    yield num.sqrt(x * x + 4), lambda at: math.hypot(at, 2)
    yield num.minimum(two * x, three * x), lambda at: 2 * at
    yield num.minimum(two, x), lambda at: min(2, at)
    yield num.minimum(num.exp(x), three), lambda at: min(3, math.exp(min(at, 9)))
    yield num.maximum(two * x, three * x), lambda at: 3 * at
    yield num.maximum(x, num.of(1)), lambda at: max(at, 1)
    yield num.max_over(1, 4, lambda m: m * two), lambda _: 6
    yield num.supremum(lambda s: s * two + 1, lambda s: s * 0 + 2), lambda _: 3


def bounded(folder: Path) -> bool:  # noqa: ARG001
    """No number is below what it stands for."""
    found = []
    for saturated in (False, True):
        num = Certified()
        for number, function in programs(Polynomials(num, "test", saturated)):
            line = without_root(number).coefficients
            assert line is not None
            for at in (Fraction(1, 100), Fraction(1000)):
                found.append(value(num, line, num.of(at)).upper >= function(float(at)) * NEAR)
    return all(found)


# Mutants


def small(number: Any) -> Any:
    return number * 19 / 20


def fewer(of: Mapping[int, Any], degree: int) -> dict[int, Any]:
    return {d: small(k) if d == degree else k for d, k in of.items()}


def smaller(number: Polynomial[Any], degree: int | None = None) -> Polynomial[Any]:
    """The number with one coefficient, or all, made smaller."""
    coefficients = number.coefficients or {}
    return replace(
        number, coefficients={d: small(k) if degree in (d, None) else k for d, k in coefficients.items()}
    )


def _smaller_squares(degree: int) -> Callable[[Step[Any]], Step[Any]]:
    return lambda step: replace(step, squares={name: fewer(k, degree) for name, k in step.squares.items()})


def _smaller_shared(degree: int) -> Callable[[Step[Any]], Step[Any]]:
    return lambda step: replace(step, shared={name: fewer(k, degree) for name, k in step.shared.items()})


STEPS: Mapping[str, Callable[[Step[Any]], Step[Any]]] = {
    "rate": lambda step: replace(step, norm=fewer(step.norm, 1)),
    "offset": lambda step: replace(step, norm=fewer(step.norm, 0)),
    "lipschitz": lambda step: replace(step, lipschitz=small(step.lipschitz)),
    **{f"squares {d}": _smaller_squares(d) for d in (0, 1, 2)},
    **{f"shared {d}": _smaller_shared(d) for d in (0, 1)},
}


@dataclass(frozen=True)
class Mutant:
    """A function of a module or a class whose results are changed where `when` holds of its arguments."""

    owner: Any
    name: str
    change: Callable[[Any], Any]
    seen: Callable[[Path], bool]
    when: Callable[..., bool] = lambda *_: True

    def install(self, patch: pytest.MonkeyPatch) -> None:
        plain = getattr(self.owner, self.name)

        def mutated(*arguments: Any) -> Any:
            found = plain(*arguments)
            return self.change(found) if self.when(*arguments) else found

        patch.setattr(self.owner, self.name, mutated)


def _known(xs: tuple[Polynomial[Any], ...]) -> list[Polynomial[Any]]:
    return [x for x in xs if x.coefficients is not None]


def _degrees(xs: tuple[Polynomial[Any], ...]) -> int:
    return len({x.degree for x in _known(xs)})


MUTANTS = {
    **{f"composition: {name}": Mutant(certified, "then", change, composed) for name, change in STEPS.items()},
    **{f"closed form: {name}": Mutant(closed_form, "power", change, closed) for name, change in STEPS.items()},
    **{
        f"D_{j}, rates {'the same' if same else 'apart'}": Mutant(
            closed_form,
            "_sum",
            small,
            closed,
            lambda i, r, m, *_, j=j, same=same: i == j and (r == m) == same,
        )
        for j in (0, 1, 2)
        for same in (True, False)
    },
    "minimum: one is known": Mutant(Polynomials, "minimum", smaller, bounded, lambda _, *xs: len(_known(xs)) == 1),
    "minimum: the one that grows least": Mutant(
        Polynomials, "minimum", smaller, bounded, lambda num, *xs: _degrees(xs) > 1 and num.saturated
    ),
    "minimum: the one that grows most": Mutant(
        Polynomials, "minimum", smaller, bounded, lambda num, *xs: _degrees(xs) > 1 and not num.saturated
    ),
    "minimum: coefficients": Mutant(
        Polynomials, "minimum", smaller, bounded, lambda _, *xs: _degrees(xs) == 1 and len(_known(xs)) > 1
    ),
    "maximum: of one degree": Mutant(Polynomials, "maximum", smaller, bounded, lambda _, *xs: _degrees(xs) == 1),
    "maximum: constant": Mutant(
        Polynomials, "maximum", lambda p: smaller(p, 0), bounded, lambda _, *xs: _degrees(xs) > 1
    ),
    "maximum: slope": Mutant(
        Polynomials, "maximum", lambda p: smaller(p, 1), bounded, lambda _, *xs: _degrees(xs) > 1
    ),
    "maximum over": Mutant(Polynomials, "max_over", smaller, bounded),
    "supremum": Mutant(Polynomials, "supremum", smaller, bounded),
    "line: slope": Mutant(polynomial, "without_root", lambda p: smaller(p, 1), bounded, lambda x: x.root),
    "line: offset of a constant": Mutant(
        polynomial, "without_root", lambda p: smaller(p, 0), bounded, lambda x: x.root and 1 not in x.coefficients
    ),
    "line: offset of a slope": Mutant(
        polynomial, "without_root", lambda p: smaller(p, 0), bounded, lambda x: x.root and 1 in x.coefficients
    ),
    "root": Mutant(polynomial, "simplified", smaller, bounded, lambda x: x.root),
    "sum": Mutant(polynomial, "added", lambda p: fewer(p, 1), bounded),
    "product": Mutant(polynomial, "multiplied", lambda p: fewer(p, 1), bounded),
    "quotient": Mutant(Polynomial, "__truediv__", smaller, bounded),
    "exponential": Mutant(Polynomials, "exp", smaller, bounded, lambda _, x: x.constant is not None),
}


def test_nothing_is_wrong_without_mutants(tmp_path: Path) -> None:
    assert composed(tmp_path)
    assert closed(tmp_path)
    assert bounded(tmp_path)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_smaller_ingredient_is_seen(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS[name].install(monkeypatch)
    # The line is called by the name that this module imported.
    if MUTANTS[name].name == "without_root":
        monkeypatch.setitem(globals(), "without_root", polynomial.without_root)
    assert not MUTANTS[name].seen(tmp_path)


@pytest.mark.parametrize("body", ["tied", "tied and critical"])
def test_copies_of_a_shared_weight_do_not_add_up_as_squares(body: str, tmp_path: Path) -> None:
    """√Σk² in place of Σk, which a loop that forgets what its copies share would say."""
    source = network(BODIES[body].format())
    graph, unrolled = loaded(source, tmp_path), loaded(source, tmp_path, depth=Fraction(COPIES))
    [loop] = loops(graph)
    assert loop.attributes.shared
    forgetful = with_loop(graph, replace(loop.attributes, shared=frozenset()))
    [loop] = loops(forgetful)
    found = derive(with_count(forgetful, loop.attributes, COPIES), Certified()).total.upper
    assert found < derive(unrolled, Certified()).total.upper * NEAR
