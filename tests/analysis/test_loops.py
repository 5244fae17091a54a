"""Loops with counts that are open: what is said of them holds for every count and every value of a symbol."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import sympy
from sympy import Rational, Symbol, factor_terms, sqrt

from lipcompile import ModelOptions, pipeline
from lipcompile.analysis.bounds import derive
from lipcompile.analysis.depth.loops import loops, with_count
from lipcompile.analysis.depth.repetition import rerolled
from lipcompile.analysis.sensitivity import analyse
from lipcompile.core.derivation import Analysis
from lipcompile.core.record import NoAttributes
from lipcompile.numbers.certified import Certified
from lipcompile.numbers.symbolic import Formula, Symbolic
from lipcompile.ops.table import OP_BY_NAME
from tests.networks import Network


def analysed(folder: Path, *lines: str, norm: str = "1", **bindings: Fraction) -> Analysis:
    """Return the analysis of a network of [4], all of whose parameters are declared."""
    path = folder / "net.lip"
    declared = "param depth: int ; param u: real ; param X: real ; param G: real"
    path.write_text(f"model net {{ {declared} ; input x: tensor[4], norm <= {norm}\n" + "\n".join(lines) + "\n}")
    graph = pipeline.load(str(path), ModelOptions(bindings=bindings)).graph
    assert graph is not None
    return analyse(graph)


def test_what_reads_the_offsets_of_copies_before_is_not_zero_where_the_input_is(tmp_path: Path) -> None:
    """A layer of norm 0 hands on 0, but the biases of the copies do not: nothing is certified of their sum."""
    found = analysed(
        tmp_path,
        "dense(4, constraint=spectral(0))",
        "repeat depth { dense(4, bias=0.5) relu }",
        "dense(1) ; loss kr",
    )
    assert found.parameters["repeat_1.dense.weight"].value is None
    assert found.parameters["dense.weight"].value == 1
    tied = analysed(
        tmp_path,
        "dense(4, constraint=spectral(0))",
        'repeat depth { dense(4, bias=0.5, share="w") relu }',
        "dense(1) ; loss kr",
    )
    assert tied.parameters["repeat_1.dense.weight"].value is None


def test_parameters_may_be_called_as_formulas_of_one_copy_call_norm_and_cotangent(tmp_path: Path) -> None:
    """X_t = X^(t-1)·X_0 + G·(X^(t-1) - 1)/(X - 1) at copy t, and the cotangent X^(depth - t)."""
    found = analysed(
        tmp_path,
        "repeat depth { dense(4, constraint=spectral(X), bias=G) relu }",
        "dense(1) ; loss kr",
    )
    [block] = found.depth.blocks
    values = {"X": 2, "G": Fraction(1, 2), "X_0": 1, "depth": 5, "t": 3}
    at = {sympy.Symbol(name, positive=True): sympy.Rational(str(value)) for name, value in values.items()}
    assert block.input_norm.subs(at) == Fraction(11, 2)
    assert block.gradient["dense.weight"].subs(at) == 22
    assert block.gradient["dense.bias"].subs(at) == 4


def test_no_order_is_given_that_depends_on_where_an_open_rate_lies(tmp_path: Path) -> None:
    """Norms double from copy to copy, gradients grow by 2 + 2u: neither 2^T nor 2^T·T is a bound for u = 5."""
    found = analysed(
        tmp_path,
        "repeat depth { dense(4, constraint=spectral(2)) ; "
        "residual(add) { layer_norm(floor=1) ; dense(4, constraint=spectral(u)) } }",
        "dense(1) ; loss kr",
        norm="1000",
    )
    assert found.depth.growth is None


def test_of_two_decaying_rates_none_has_to_be_the_larger(tmp_path: Path) -> None:
    """0.9^T + u^T is below a constant for u < 1, whichever is larger, and O(u^T) for u > 1."""
    found = analysed(
        tmp_path,
        "branch { repeat depth { dense(4, constraint=spectral(0.9)) } } "
        "{ repeat depth { dense(4, constraint=spectral(u)) } } -> add",
        "dense(1) ; loss kr",
    )
    assert found.depth.growth == ("O(1) if u < 1, O(sqrt(depth)) if u = 1, O(u**depth * sqrt(depth)) if u > 1")


def test_a_rate_alone_has_an_order_in_each_case(tmp_path: Path) -> None:
    found = analysed(
        tmp_path, "repeat depth { dense(4, constraint=spectral(u), bias=0.5) relu }", "dense(1) ; loss kr"
    )
    assert found.depth.growth == ("O(1) if u < 1, O(depth**(3/2)) if u = 1, O(u**depth * sqrt(depth)) if u > 1")


def test_copies_may_forget_what_they_read(tmp_path: Path) -> None:
    """Behind a copy the norm is 1, before the last one no gradient arrives."""
    found = analysed(
        tmp_path,
        "repeat depth { dense(4, constraint=spectral(0)) ; dense(4, constraint=spectral(1.25), bias=1) }",
        "dense(1) ; loss kr",
    )
    assert found.depth.growth == "O(1)"


@pytest.mark.parametrize(
    ("bound", "order"), [("0.5", "O(1)"), ("1", "O(sqrt(depth))"), ("2", "O(2**depth * sqrt(depth))")]
)
def test_orders_of_chains_without_biases(bound: str, order: str, tmp_path: Path) -> None:
    """K² of copy t is (u^(depth-1)·X_0)², depth times; behind a first layer, whose K is u^depth·X_0."""
    found = analysed(
        tmp_path, f"repeat depth {{ dense(4, constraint=spectral({bound})) }}", "dense(1, bias=1) ; loss kr"
    )
    assert found.depth.growth == order


def test_no_two_quantities_have_one_name(tmp_path: Path) -> None:
    """The constant of one copy, 2u + 2, is not that of the output in what the copies make, 1."""
    found = analysed(
        tmp_path,
        "repeat depth { dense(4, constraint=spectral(2)) ; "
        "residual(add) { layer_norm(floor=1) ; dense(4, constraint=spectral(u)) } }",
        "dense(1) ; loss kr",
        norm="1000",
    )
    [rate] = [d for d in found.definitions if d.meaning == "Lipschitz constant of one copy of repeat_1"]
    assert rate.expression == 2 * sympy.Symbol("u", positive=True) + 2
    assert rate.upper is None


def test_one_function_written_in_two_ways_is_one_rate(tmp_path: Path) -> None:
    """Forward a copy multiplies by u·X + u, backward by (X + 1)·u: as two rates, they would meet everywhere."""
    found = analysed(
        tmp_path,
        "repeat depth { residual(add) { dense(4, constraint=spectral(X)) } dense(4, constraint=spectral(u)) }",
        "dense(1) ; loss kr",
    )
    [rate] = [d for d in found.definitions if d.name.endswith("_repeat_1") and d.name[0] in "ag"]
    assert rate.name == "a_repeat_1"
    [block] = found.depth.blocks
    assert not block.total.has(sympy.Piecewise)


@pytest.mark.parametrize(("last", "order"), [("8", "O(c_repeat_1_4**depth * sqrt(depth))"), ("7", "O(1)")])
def test_rates_of_many_digits_are_numbers(last: str, order: str, tmp_path: Path) -> None:
    """√2·0.7071… is above 1 or below it by 1e-45; the formulas say neither what would hold at 1, nor 0/0."""
    bound = f"0.70710678118654752440084436210484903928483593{last}"
    found = analysed(
        tmp_path,
        "repeat depth { branch { dense(4) } { dense(4) } -> concat ; "
        f"dense(4, constraint=spectral({bound}), bias=1) }}",
        "dense(1) ; loss kr",
    )
    formulas = [found.total.expression, *(d.expression for d in found.definitions if d.expression is not None)]
    assert not any(formula.has(sympy.Piecewise) for formula in formulas)
    assert found.depth.growth == order


def test_exponentials_of_fractions_are_not_factored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sympy would take e^(-3183099/5000000) for a power, of degree 3183099, of another number: for hours.

    Entries of at most tanh(…) < 1 leave gelu with at most Φ(1), which is below (1 + √(1 - e^(-0.6366198)))/2.
    """
    factored: list[Any] = []
    honest = sympy.factor

    def watched(expression: Any) -> Any:
        assert not expression.has(sympy.exp)
        factored.append(expression)
        return honest(expression)

    monkeypatch.setattr(sympy, "factor", watched)
    found = analysed(tmp_path, "repeat depth { tanh ; gelu ; dense(4) }", "dense(1) ; loss kr")
    [block] = found.depth.blocks
    [bound] = block.gradient.values()
    late = bound.subs({block.index: 1, block.count: 1})
    assert late - (1 + sqrt(1 - sympy.exp(-Rational("0.6366198")))) == 0
    assert factored


def test_gates_along_a_sequence_have_a_closed_form(tmp_path: Path) -> None:
    """Of products of gates of 16 steps, the bounded side alone is a polynomial of low degree."""
    path = tmp_path / "gru.lip"
    path.write_text(
        "model net { param depth: int ; input x: tensor[16, 4], norm <= 1\n"
        "repeat depth { gru(4, sequence=true) }\nflatten ; dense(1) ; loss kr }"
    )
    graph = pipeline.load(str(path), ModelOptions()).graph
    assert graph is not None
    [loop] = loops(graph)
    numbers = derive(with_count(graph, loop.attributes, 3), Certified())
    unrolled = pipeline.load(str(path), ModelOptions(bindings={"depth": Fraction(3)})).graph
    assert unrolled is not None
    assert numbers.total.upper >= derive(unrolled, Certified()).total.upper * (1 - 1e-12)


def test_no_bound_is_advised_that_hardly_changes_the_rate(tmp_path: Path) -> None:
    """Of the rate 1/2 + 2^-40·u, u = 2^39 would make 1: out of reach, and written as a power out of all range."""
    found = analysed(
        tmp_path,
        "repeat depth { branch { dense(4, constraint=spectral(0.5)) scale(0.000000000001) }"
        " { leaky_relu(0.5) } -> add ; leaky_relu(0.5) ; scale(0.5) }",
        "dense(1) ; loss kr",
    )
    assert not any("spectral" in text for text in found.depth.advice)


@pytest.mark.parametrize(("bound", "regime"), [("1/2 - u", "contractive"), ("1 - u", None), ("2 - u", None)])
def test_what_an_open_rate_is_at_most_is_no_regime_unless_below_1(
    bound: str, regime: str | None, tmp_path: Path
) -> None:
    """At u = 3/4 the rate 1 - u is below 1, and at u = 1 so is 2 - u."""
    found = analysed(tmp_path, f"repeat depth {{ dense(4, constraint=spectral({bound})) }}", "dense(1) ; loss kr")
    assert found.depth.regime == regime


def test_formulas_of_open_rates_say_where_they_hold(tmp_path: Path) -> None:
    found = analysed(
        tmp_path,
        "repeat depth { dense(4, constraint=spectral(1 - u)) ; dense(4, constraint=spectral(1 + u)) }",
        "repeat depth { residual(add) { dense(4, constraint=spectral(u)) } ; dense(4) }",
        "dense(1) ; loss kr",
    )
    meanings = {definition.name: definition.meaning for definition in found.definitions}
    assert meanings["u"] == "parameter u, above 0"
    assert meanings["depth"] == "parameter depth, above 0"
    assert meanings["a_repeat_1"] == "growth of the norm of one copy of repeat_1, above 0"
    assert meanings["a_repeat_2"] == "growth of the norm of one copy of repeat_2"


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_formulas_hold_where_an_open_rate_is_zero(depth: int, tmp_path: Path) -> None:
    """A copy with ‖W‖ <= 0 hands on its bias alone, and only the last one's gets a gradient."""
    found = analysed(
        tmp_path, "repeat depth { dense(4, constraint=spectral(u), bias=G) relu }", "dense(1) ; loss kr"
    )
    at = {Symbol("X_0", positive=True): 1, Symbol("u", positive=True): 0, Symbol("G", positive=True): 2}
    count = {Symbol("depth", positive=True): depth}  # known last: its powers of u would hide 0/0
    named = [definition for definition in found.definitions if definition.expression is not None]
    names = {Symbol(d.name, positive=True): d.expression.subs(at).subs(count) for d in named}
    squares = {name: bound.expression.subs(names).subs(at) ** 2 for name, bound in found.parameters.items()}
    assert squares == {
        "repeat_1.dense.weight": 1 if depth == 1 else 4,
        "repeat_1.dense.bias": 1,
        "dense.weight": 4,
    }


N = Symbol("n", positive=True)
POWERS = (1 - Rational(7, 3) ** N), (1 - sqrt(2) ** N)
ROOTED = [
    -(POWERS[0] ** 3),
    -5 / POWERS[1],
    -sqrt(2) / POWERS[0] ** 3 * sympy.exp(-N),
    POWERS[0] * POWERS[1] ** -3 * N,
    POWERS[0] ** 3 / ((1 - sqrt(2)) * (3 - sqrt(2))),
    POWERS[0] ** 2 / (2 - sqrt(3)),
    -(N + 1) * POWERS[0],
    sympy.S.Zero,
]


@pytest.mark.parametrize("square", ROOTED)
def test_roots_of_numbers_above_zero_are_above_zero(square: Any) -> None:
    """Negative factors in pairs, as sums, as powers of sums and as numbers."""
    root = Symbolic().sqrt(Formula(square)).expression
    for count in (1, 2, 5):
        value = square.subs(N, count).evalf()
        assert value >= 0
        assert root.subs(N, count).evalf() == pytest.approx(value**0.5)


@pytest.mark.parametrize("ratio", [1 + sqrt(2), (8 + 3 * sqrt(41)) / 10, Rational(1, 2), 2 + Rational(1, 3)])
def test_roots_of_sums_over_copies_are_above_zero(ratio: Any) -> None:
    """Not √(1 - r^n) times the root of a number below 0, which is negative where r is above 1."""
    n = Symbol("n", positive=True)
    powers = (1 - ratio**n) / (1 - ratio), 7 * n * factor_terms((ratio**n - (2 * ratio) ** n) / -ratio)
    for square in powers:
        root = Symbolic().sqrt(Formula(square)).expression
        assert root.subs(n, 3).evalf() == pytest.approx(square.subs(n, 3).evalf() ** 0.5)


def test_loops_that_are_found_are_called_as_nothing_else_is() -> None:
    """An importer keeps the names of a file, of layers and of weights: any may be called block_1."""
    net = Network((4,))
    net.dense(4, shared="block_1__.weight")
    for name in ("block_1", "input_block_1_", "tanh"):
        net.end = net.builder.add(OP_BY_NAME["tanh"], NoAttributes(), [net.end], name=name)
        net.dense(4)
    graph = net.finish()
    repeated, _ = rerolled(graph)
    repeated.verify()
    [loop] = loops(repeated)
    assert loop.name == "block_1___"
    assert derive(repeated, Certified()).total.upper == derive(graph, Certified()).total.upper
