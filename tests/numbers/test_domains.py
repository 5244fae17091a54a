"""One rule, three number types: formulas, certified numbers and programs agree on random graphs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

import mpmath
import pytest
import sympy

from lipcompile.analysis.bounds import Bounds, derive
from lipcompile.core.graph import Graph
from lipcompile.core.record import Constraint
from lipcompile.numbers import Arithmetic, Symbol
from lipcompile.numbers.certified import Certified
from lipcompile.numbers.symbolic import MaxOver, Symbolic
from lipcompile.numbers.traced import Traced
from tests.attacks.graphs import random_graph
from tests.networks import Network
from tests.suprema import supremum

PRECISION = mpmath.mp.clone()
PRECISION.dps = 50
RELATIVE = 1e-12
GRAPHS = range(60)


def every_bound(bounds: Bounds[Any]) -> dict[str, Any]:
    """All numbers of the analysis, by kind and name."""
    found = {f"X {name}": bound for name, bound in bounds.norm.items()}
    found |= {f"l {name} {i}": gain for name, gains in bounds.gain.items() for i, gain in enumerate(gains)}
    found |= {f"G {name}": bound for name, bound in bounds.cotangent.items()}
    found |= {f"slope {name}": bound for name, bound in bounds.slope.items()}
    found |= {f"K {name}": bound for name, bound in bounds.gradient.items()}
    return found | {"L": bounds.loss_lipschitz, "total": bounds.total}


def evaluate(expression: Any, known: Mapping[str, Any]) -> Any:
    """Evaluate a formula to 50 digits, node by node."""
    if isinstance(expression, sympy.Symbol):
        return known[expression.name]
    if isinstance(expression, MaxOver):
        term, index, start, last = expression.args
        if not index.is_integer:
            return supremum(lambda s: evaluate(term, {**known, index.name: s}), PRECISION.mpf)
        return max(evaluate(term, {**known, index.name: m}) for m in range(int(start), int(last) + 1))
    if expression.is_Rational:
        return PRECISION.mpf(int(expression.p)) / int(expression.q)
    return OPERATIONS[expression.func]([evaluate(part, known) for part in expression.args])


OPERATIONS: Mapping[Any, Callable[[list[Any]], Any]] = {
    sympy.Add: PRECISION.fsum,
    sympy.Mul: PRECISION.fprod,
    sympy.Pow: lambda args: PRECISION.power(*args),
    sympy.exp: lambda args: PRECISION.exp(*args),
    sympy.log: lambda args: PRECISION.log(*args),
    sympy.Min: min,
    sympy.Max: max,
}


def exact(graph: Graph) -> dict[str, Any]:
    """Every bound from its formula, definitions expanded, to 50 digits."""
    domain = Symbolic()
    formulas = every_bound(derive(graph, domain))
    known: dict[str, Any] = {}
    for name, definition in domain.definitions.items():
        if definition.expression is not None:
            known[name] = evaluate(definition.expression, known)
        else:
            assert definition.value is not None, name
            known[name] = PRECISION.mpf(definition.value.numerator) / definition.value.denominator
    return {name: evaluate(formula.expression, known) for name, formula in formulas.items()}


def program(graph: Graph) -> dict[str, float]:
    """Every bound from the traced program, run on floats."""
    domain = Traced()
    results = every_bound(derive(graph, domain))
    assert isinstance(graph.input.norm, Fraction)
    scope: dict[str, Any] = {
        "X_0": float(graph.input.norm),
        "sqrt": math.sqrt,
        "exp": math.exp,
        "expm1": math.expm1,
        "log": math.log,
        "minimum": min,
        "maximum": max,
        "max_over": lambda start, stop, term: max(term(m) for m in range(start, stop)),
        "supremum": lambda value, _: supremum(value),
    }
    exec("\n".join(domain.program(*results.values())), scope)
    return {name: float(eval(str(result), scope)) for name, result in results.items()}


@pytest.mark.parametrize("seed", GRAPHS)
def test_three_number_types_agree(seed: int) -> None:
    graph = random_graph(seed)
    formulas, programs = exact(graph), program(graph)
    certified = {name: interval.upper for name, interval in every_bound(derive(graph, Certified())).items()}
    assert formulas.keys() == programs.keys() == certified.keys()
    for name, value in formulas.items():
        assert value <= certified[name] <= value * (1 + RELATIVE), name
        assert math.isclose(programs[name], value, rel_tol=RELATIVE), name


def test_parameters_whose_names_look_alike_have_variables_of_their_own() -> None:
    """Tied weights may be called `a.b` and `a_b`: one variable for both would give one the bound of the other."""
    net = Network((4,))
    net.dense(4, shared="a.b")
    net.weight = Constraint("spectral", Fraction(5))
    net.dense(4, shared="a_b")
    graph = net.finish()
    programs, certified = program(graph), derive(graph, Certified()).gradient
    assert programs["K a.b"] == pytest.approx(5 * programs["K a_b"], rel=RELATIVE)
    assert all(programs[f"K {name}"] == pytest.approx(k.upper, rel=RELATIVE) for name, k in certified.items())


def _interval(value: Any) -> Any:
    return Certified().of(value).ends


AWKWARD = (Fraction(1, 3), Fraction(-1, 10), Fraction(2**300 + 1, 2**300), Fraction(1, 3 * 10**400))


@pytest.mark.parametrize("value", AWKWARD, ids=float)
def test_certified_numbers_enclose_fractions_that_binary_cannot_hold(value: Fraction) -> None:
    ends = _interval(value)
    # Outward: below and above the truth, compared as exact integers times powers of two.
    low, high = (Fraction((-1) ** s * int(m)) * Fraction(2) ** e for s, m, e, _ in ends._mpi_)
    assert low <= value <= high
    assert Fraction(Certified().of(value).upper) >= value


@pytest.mark.parametrize(
    "text", ["0", "1e-400", "-1e-400", "1e-300", "-1e-17", "-5e-9", "1/3", "-2", "7", "-1e300"]
)
def test_certified_differences_of_exponentials_and_1_do_not_cancel(text: str) -> None:
    """e^x - 1 lies between x and x/(1 - x), which near 0 is all of its digits."""
    x = Fraction(text)
    num, precise = Certified(), mpmath.mp.clone()
    precise.prec = 4000
    low, high = num.expm1(num.of(x)).ends._mpi_
    exact = precise.expm1(precise.mpf(x.numerator) / x.denominator)
    assert precise.make_mpf(low) <= exact <= precise.make_mpf(high)
    assert abs(precise.make_mpf(high) - precise.make_mpf(low)) <= abs(exact) * precise.mpf(10) ** -16


def test_unknown_differences_of_exponentials_and_1() -> None:
    num, unknown = Certified(), Symbol("a")
    assert num.expm1(num.of(unknown)).upper == math.inf
    assert (0 - num.expm1(0 - num.of(unknown))).upper == 1


def test_programs_compute_with_exact_numbers_exactly() -> None:
    """In doubles 1 - 0.9999999999 is 8e-8 off, relatively, and 10^-400 is 0."""
    num = Traced()
    x, share = num.symbol("x", None, ""), num.of(Fraction("0.9999999999"))
    assert str(x * (1 - share)) == "x * 1e-10"
    assert str((num.of(1) / 3 + num.of(2) / 3) * x) == "x"
    assert str(num.of(Fraction(1, 10**400)) * x) == "0.0 * x"
    assert str(num.of(Fraction(1, 10**400)) * 0 + x) == "x"
    assert str(x / (num.of(1) / 3 - Fraction(1, 3).numerator * num.of(Fraction(1, 3)))) == "x / 0"


def test_unknown_numbers_give_infinite_or_independent_bounds() -> None:
    num, unknown = Certified(), Symbol("a")
    assert num.of(unknown).upper == math.inf
    assert num.of(Arithmetic("-", Fraction(1), unknown)).upper == 1
    assert num.minimum(num.of(unknown), num.of(3)).upper == 3
    assert (num.of(0) * num.of(unknown)).upper == 0


@pytest.mark.parametrize("num", [Symbolic(), Certified()])
def test_zero_times_what_is_unknown_is_zero(num: Any) -> None:
    """Unknown means finite but unknown; a formula of no number could not be compared."""
    for product in (num.of(0) * num.unbounded(), num.unbounded() * num.of(0), num.unbounded() * 0):
        assert product == num.of(0)


def test_formulas_of_extremes_leave_out_what_another_operand_makes_redundant() -> None:
    num = Symbolic()
    x, y = (num.symbol(name, None, "a norm") for name in "xy")
    low = num.minimum(x, num.sqrt(2) * x, num.minimum(y, x + y), num.unbounded())
    high = num.maximum(x, num.sqrt(2) * x, num.maximum(y, x + y), num.of(0))
    assert low.expression == sympy.Min(x.expression, y.expression)
    assert set(high.expression.args) == {(num.sqrt(2) * x).expression, (x + y).expression}
    assert num.minimum((num.sqrt(2) + 1) * (num.sqrt(2) + 1), 2 * num.sqrt(2) + 3).expression.is_number


def test_a_quotient_of_unknown_numbers_is_unknown() -> None:
    """As the bound of softsign has it, r·x/(r + x) at an x without a bound."""
    num = Symbolic()
    root = num.sqrt(3)
    assert num.minimum(root, root * num.unbounded() / (root + num.unbounded())) == root
