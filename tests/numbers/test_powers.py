"""Powers of affine steps: the closed form against the step done so many times, and what holds of all powers."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from functools import reduce
from typing import Any

import mpmath
import pytest
import sympy

from lipcompile.numbers import Count, Step, Symbol, closed_form
from lipcompile.numbers.certified import Certified, Interval
from lipcompile.numbers.step import changed, value
from tests.nights import by_day

T, ALPHA, BETA = sympy.symbols("T alpha beta", positive=True)
HALF = sympy.Rational(1, 2)
# Numbers with equal squares, products and powers among them, 0, 1, and symbols.
NUMBERS = [sympy.S.Zero, sympy.S.One, HALF, sympy.Integer(2), sympy.sqrt(2), HALF**2, sympy.Integer(4)]
OFFSET = sympy.Rational(3, 2)
# Pairs of which at least one is open, and values of (alpha, beta) at which what they make coincides or not.
OPEN = [
    *((a, ALPHA) for a in (sympy.S.Zero, HALF, ALPHA, ALPHA**2, sympy.sqrt(ALPHA), BETA)),
    (ALPHA, HALF),
    (ALPHA, sympy.S.One),
]
POINTS = [(HALF, 3), (1, 1), (2, 1), (1, 2), (2, 2), (4, 2), (2, 4), (HALF, HALF**2)]
# No rate is divided by, but where the other one is its root.
ZEROS = [(0, 1), (0, 2), (1, 0), (2, 0)]


def step(a: Any, c: Any, lipschitz: Any) -> Step[Any]:
    """X ↦ aX + c, G ↦ lG, k² = 3X² + X/3 + 2 of an own parameter, k = 2X + 1/5 of a shared one."""
    norm = {degree: coefficient for degree, coefficient in ((1, a), (0, c)) if coefficient != 0}
    own = {2: sympy.Integer(3), 1: sympy.Rational(1, 3), 0: sympy.Integer(2)}
    return Step(norm, lipschitz, {"own": own}, {"shared": {1: sympy.Integer(2), 0: sympy.Rational(1, 5)}}, True)


def one_by_one(a: Any, c: Any, lipschitz: Any, n: int) -> dict[str, Any]:
    """The bounds after n copies as polynomials in X, from the recurrence copy by copy."""
    x = sympy.Symbol("X")
    norms = reduce(lambda found, _: [*found, a * found[-1] + c], range(n), [x])
    leaving = [lipschitz ** (n - 1 - s) for s in range(n)]
    own = sum(g**2 * (3 * h**2 + h / 3 + 2) for g, h in zip(leaving, norms, strict=False))
    shared = sum(g * (2 * h + sympy.Rational(1, 5)) for g, h in zip(leaving, norms, strict=False))
    return {"norm": norms[-1], "own": own, "shared": shared, "lipschitz": lipschitz**n}


def at(polynomial: Mapping[int, Any], known: Mapping[Any, Any]) -> Any:
    """A polynomial of the closed form in X, with numbers for its symbols."""
    x = sympy.Symbol("X")
    return sum((k.subs(known) * x**degree for degree, k in polynomial.items()), start=sympy.S.Zero)


def check(power: Step[Any], rates: tuple[Any, Any, Any], known: Mapping[Any, Any]) -> None:
    a, c, lipschitz = (rate.subs(known) for rate in rates)
    for n in (1, 2, 5):
        expected = one_by_one(a, c, lipschitz, n)
        found = {"norm": power.norm, "own": power.squares["own"], "shared": power.shared["shared"]}
        for name, polynomial in found.items():
            # The count is known last: of a rate that is 0, powers of whole numbers would hide 0/0.
            difference = sympy.Poly(at(polynomial, known).subs(T, n) - expected[name], sympy.Symbol("X"))
            assert all(abs(k.evalf(40)) < 1e-25 for k in difference.all_coeffs()), (rates, known, n, name)
        assert (power.lipschitz.subs({**known, T: n}) - expected["lipschitz"]).equals(0)


RATES = [(a, c) for c in (sympy.S.Zero, OFFSET) for a in NUMBERS]


@pytest.mark.slow
@pytest.mark.parametrize(("a", "c"), by_day([pair for pair in RATES if pair[1] or pair[0] in (0, 1, 2)], RATES))
def test_the_closed_form_is_the_step_done_n_times(a: Any, c: Any) -> None:
    for lipschitz in NUMBERS[1:]:
        check(closed_form.power(step(a, c, lipschitz), T, {}), (a, c, lipschitz), {})


@pytest.mark.slow
@pytest.mark.parametrize(("a", "lipschitz"), OPEN)
def test_cases_of_open_rates_hold_where_rates_coincide_and_elsewhere(a: Any, lipschitz: Any) -> None:
    power = closed_form.power(step(a, OFFSET, lipschitz), T, {})
    for alpha, beta in [*POINTS, *(ZEROS if a != sympy.sqrt(ALPHA) else ())]:
        check(power, (a, OFFSET, lipschitz), {ALPHA: alpha, BETA: beta})


# (a, c, l), and of the order of K in docs/theory.md the rate and the powers of n, with own and shared weights.
ORDERS = {
    "both below 1": (("1/2", 1, "3/4"), "1", 0, 0),
    "cotangents stay": (("1/2", 1, "1"), "1", 0.5, 1),
    "both stay": (("1", 0, "1"), "1", 0.5, 1),
    "both stay, with an offset": (("1", 1, "1"), "1", 1.5, 2),
    "norms stay": (("1", 0, "3/4"), "1", 0, 0),
    "norms stay, with an offset": (("1", 1, "3/4"), "1", 1, 1),
    "norms explode": (("13/10", 1, "9/10"), "13/10", 0, 0),
    "cotangents explode": (("9/10", 1, "13/10"), "13/10", 0, 0),
    "cotangents explode, norms stay": (("1", 1, "13/10"), "13/10", 0, 0),
    "both explode": (("13/10", 1, "13/10"), "13/10", 0.5, 1),
}


@pytest.mark.parametrize("name", ORDERS)
def test_orders_of_powers_are_those_of_the_table_in_theory(name: str) -> None:
    """Slopes of log K - n·log(rate) in log n between 2000 and 4000 copies; lower orders leave thousandths."""
    (a, c, lipschitz), rate, own, shared = ORDERS[name]
    num = Certified()
    norm = {degree: num.of(Fraction(k)) for degree, k in ((1, a), (0, c)) if k}
    weight = {1: num.of(1)}
    found = Step(norm, num.of(Fraction(lipschitz)), {"own": {2: num.of(1)}}, {"shared": weight}, True)
    logarithms = []
    for n in (2000, 4000):
        power = num.power(found, Count(Fraction(n), n), "loop")
        bounds = (
            num.sqrt(value(num, power.squares["own"], num.of(1))),
            value(num, power.shared["shared"], num.of(1)),
        )
        growth = n * mpmath.log(mpmath.mpf(Fraction(rate).numerator) / Fraction(rate).denominator)
        logarithms.append([mpmath.log(mpmath.mpf(bound.ends.b._mpi_[1])) - growth for bound in bounds])
    slopes = [float((after - before) / mpmath.log(2)) for before, after in zip(*logarithms, strict=True)]
    assert slopes == pytest.approx([own, shared], abs=0.005)


def test_powers_of_any_number_of_copies_enclose_each() -> None:
    num = Certified()
    bounded = changed(step(sympy.S.One, HALF, sympy.S.One), lambda k: num.of(Fraction(int(k.p), int(k.q))))
    every = num.power(bounded, Count(Symbol("n"), None), "loop")
    # Nothing enters the first copy, and its offset enters the second one.
    for n in range(1, 6):
        once = num.power(bounded, Count(Fraction(n), n), "loop")
        pairs = [(once.norm, every.norm), (once.squares["own"], every.squares["own"])]
        pairs.append((once.shared["shared"], every.shared["shared"]))
        assert all(_at_zero(num, found) <= _at_zero(num, enclosing) for found, enclosing in pairs)


def _at_zero(num: Certified, polynomial: Mapping[int, Interval]) -> float:
    return value(num, polynomial, num.of(0)).upper


def test_nothing_is_known_of_a_gradient_that_only_later_copies_have() -> None:
    num = Certified()
    linear = Step({1: num.of(1), 0: num.of(1)}, num.of(1), {"w": {2: num.of(1)}}, {"v": {1: num.of(1)}}, True)
    every = num.power(linear, Count(Symbol("n"), None), "loop")
    assert _at_zero(num, every.squares["w"]) == float("inf")
    assert _at_zero(num, every.shared["v"]) == float("inf")
