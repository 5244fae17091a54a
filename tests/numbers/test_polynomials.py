"""Polynomials in the norm X at the input of a graph, as numbers: equal to what they stand for, or not below it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lipcompile import check
from lipcompile.numbers.certified import Certified, Interval
from lipcompile.numbers.polynomial import Polynomial, Polynomials, without_root
from lipcompile.numbers.step import value

BASE = Certified()
NEAR, FAR, BETWEEN = Fraction(1, 100), Fraction(1000), Fraction(7, 3)
Function = Callable[[float], float]


@dataclass(frozen=True)
class Pair:
    """A number of the domain, and the function of X that it stands for."""

    number: Polynomial[Interval]
    function: Function


def domain(*, saturated: bool = False) -> Polynomials[Interval]:
    return Polynomials(BASE, "test", saturated)


def norm(num: Polynomials[Interval]) -> Polynomial[Interval]:
    return num.symbol("X_0", None, "bound of the input norm")


def leaf(num: Polynomials[Interval], constant: int | None) -> Pair:
    if constant is None:
        return Pair(norm(num), lambda x: x)
    return Pair(num.of(constant), lambda _: float(constant))


def combined(num: Polynomials[Interval], kind: str, one: Pair, two: Pair) -> Pair:
    """What a rule may do to two numbers."""
    a, f, b, g = one.number, one.function, two.number, two.function
    built: dict[str, Callable[[], tuple[Any, Function]]] = {
        "sum": lambda: (a + b, lambda x: f(x) + g(x)),
        "product": lambda: (a * b, lambda x: f(x) * g(x)),
        "half": lambda: (a / 2, lambda x: f(x) / 2),
        "quotient": lambda: (a / (b + 1), lambda x: f(x) / (g(x) + 1)),
        "difference": lambda: ((a + b) - b, f),
        "decay": lambda: (num.exp(0 - a), lambda x: math.exp(-f(x))),
        "root": lambda: (num.sqrt(a), lambda x: math.sqrt(f(x))),
        "length": lambda: (num.sqrt(a * a + b * b), lambda x: math.hypot(f(x), g(x))),
        "minimum": lambda: (num.minimum(a, b), lambda x: min(f(x), g(x))),
        "maximum": lambda: (num.maximum(a, b), lambda x: max(f(x), g(x))),
    }
    return Pair(*built[kind]())


KINDS = ("sum", "product", "half", "quotient", "difference", "decay", "root", "length", "minimum", "maximum")
programs = st.lists(
    st.tuples(st.sampled_from(KINDS), st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=6
)


@given(programs=programs, saturated=st.booleans())
def test_numbers_are_never_below_what_they_stand_for(
    programs: list[tuple[str, int, int]], saturated: bool
) -> None:
    num = domain(saturated=saturated)
    pairs = [leaf(num, None), leaf(num, 0), leaf(num, 1), leaf(num, 3)]
    for kind, first, second in programs:
        pairs.append(combined(num, kind, pairs[first % len(pairs)], pairs[second % len(pairs)]))
    for pair in pairs:
        for x in (NEAR, BETWEEN, FAR):
            _compare(pair, x)


def _compare(pair: Pair, x: Fraction) -> None:
    plain = without_root(pair.number)
    if plain.coefficients is None:
        return
    try:
        expected = pair.function(float(x))
    except OverflowError:
        return
    found = value(BASE, plain.coefficients, BASE.of(x)).upper
    assert found >= expected * (1 - 1e-9)
    if plain.exact:
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_a_root_of_a_square_is_below_its_line() -> None:
    num = domain()
    x = norm(num)
    line = without_root(num.sqrt(x * x * 4 + x * 12 + 1))
    assert line.coefficients is not None
    # √(4X² + 12X + 1) <= 2X + max(1, 12/4).
    assert [(degree, k.upper) for degree, k in sorted(line.coefficients.items())] == [(0, 3.0), (1, 2.0)]


def test_nothing_is_made_of_an_enlarged_number_but_larger_ones() -> None:
    num = domain(saturated=True)
    x = norm(num)
    unknown = num.exp(x)
    assert unknown.coefficients is None
    for larger in (num.minimum(num.of(1), x), num.minimum(num.of(1), unknown), num.maximum(num.of(1), x)):
        assert (larger + 1).coefficients is not None
        assert (2 - larger).coefficients is None
        assert (1 / larger).coefficients is None
        assert num.exp(larger).coefficients is None


def test_a_loop_in_a_loop_is_no_more_exact_than_that(tmp_path: Path) -> None:
    path = tmp_path / "net.lip"
    body = "repeat inner { residual(add) { dense(4, constraint=spectral(0.5)) tanh } } dense(4)"
    path.write_text(
        f"model net {{ param outer: int param inner: int input x: tensor[4], norm <= 1"
        f" repeat outer {{ {body} }} dense(1) loss kr }}"
    )
    analysis = check(str(path)).analysis
    assert analysis is not None
    assert [block.exact for block in analysis.depth.blocks] == [False]


def test_magnitudes_of_negative_constants() -> None:
    num = domain()
    negative = num.of(3) - num.of(5)
    assert value(BASE, num.maximum(negative, 0 - negative).coefficients or {}, BASE.of(1)).upper == 2
    assert value(BASE, num.maximum(num.of(0), negative).coefficients or {}, BASE.of(1)).upper == 0
    assert value(BASE, num.maximum(norm(num), negative).coefficients or {}, BASE.of(1)).upper == 1
