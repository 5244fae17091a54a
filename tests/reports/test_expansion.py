"""Formulas written out, and taken apart: they stay equal to what they stand for, and of bounded size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

from lipcompile.core.derivation import Analysis
from lipcompile.numbers.known import Definition
from lipcompile.numbers.symbolic import MaxOver
from lipcompile.pipeline import check
from lipcompile.reports.closed_forms import Expansion, expand
from lipcompile.reports.formulas import text
from lipcompile.reports.long_formulas import Pieces, pieces
from tests.suprema import supremum

X = sympy.Symbol("X_0", positive=True)
INPUT = Definition("X_0", "input norm")
VIT = Path(__file__).parents[2] / "examples" / "vit.lip"


def name(index: int) -> Any:
    return sympy.Symbol(f"a_{index}", positive=True)


def chain(expressions: Sequence[Any]) -> list[Definition]:
    named = (Definition(f"a_{i}", "a part", expression) for i, expression in enumerate(expressions))
    return [INPUT, *named]


def numbers(definitions: Sequence[Definition], inputs: Mapping[Any, Any]) -> dict[Any, Any]:
    """Evaluate names in their order: the oracle, which substitutes numbers alone."""
    known = dict(inputs)
    for definition in definitions:
        if definition.expression is not None:
            known[sympy.Symbol(definition.name, positive=True)] = evaluated(definition.expression, known)
    return known


def evaluated(expression: Any, known: Mapping[Any, Any]) -> Any:
    """Evaluate exactly as written; maxima over a range term by term."""
    if expression.is_Symbol:
        return known[expression]
    if isinstance(expression, MaxOver):
        term, index, start, last = expression.args
        if not index.is_integer:
            return supremum(lambda s: evaluated(term, {**known, index: s}), lambda s: sympy.Float(s, 30))
        return max(evaluated(term, {**known, index: sympy.Integer(m)}) for m in range(int(start), int(last) + 1))
    if not expression.args:
        return sympy.Float(expression, 30)
    return sympy.N(expression.func(*(evaluated(part, known) for part in expression.args)), 30)


def together(found: Expansion, inputs: Mapping[Any, Any]) -> list[Any]:
    known = numbers(found.names, inputs)
    return [evaluated(expression, known) for expression in found.expressions]


# Written out


def test_every_name_is_written_out_if_the_result_is_short() -> None:
    definitions = chain([X + 1, 2 * name(0), sympy.sqrt(name(1))])
    found = expand([name(2) * name(0), X], definitions)
    assert found.expressions == ((X + 1) * sympy.sqrt(2 * X + 2), X)
    assert (found.names, found.inputs) == ((), (INPUT,))


def test_names_are_kept_where_writing_them_out_would_be_too_long() -> None:
    definitions = chain([X + 1, name(0) ** 2 + name(0)])
    found = expand([name(1) + name(0)], definitions, longest=3)
    # a_1 alone has two operations and twice that of a_0; it is kept, and its own names too.
    assert found.expressions == (name(1) + X + 1,)
    assert [(d.name, d.expression) for d in found.names] == [("a_0", X + 1), ("a_1", name(0) ** 2 + name(0))]


def test_names_that_are_not_needed_are_left_out() -> None:
    found = expand([name(0)], chain([X, sympy.Integer(2), name(1) ** 2]))
    assert found == Expansion((X,), (), (INPUT,))


@pytest.mark.parametrize("length", [10, 400])
def test_what_would_be_exponential_is_never_built(length: int) -> None:
    # Written out, a_n has 2^n operations and more.
    definitions = chain([X + 1, *(name(i) ** 2 + sympy.sqrt(name(i)) / 2 for i in range(length))])
    found = expand([name(length)], definitions, longest=50)
    assert all(d.expression.count_ops() <= 50 for d in found.names)
    assert all(expression.count_ops() <= 50 for expression in found.expressions)
    assert len(found.names) < length


def test_extremes_stay_extremes() -> None:
    y = sympy.Symbol("Y", positive=True)
    definitions = [INPUT, Definition("Y", "another"), *chain([X + y, sympy.Max(X, y, evaluate=False)])[1:]]
    found = expand([sympy.Min(name(0), name(1), evaluate=False)], definitions)
    assert evaluated(found.expressions[0], {X: 2, y: 3}) == pytest.approx(3)
    assert not found.names


@st.composite
def programs(draw: st.DrawFn) -> list[Any]:
    """Draw definitions over earlier ones: sums, products, extremes, roots and exponentials."""
    made: list[Any] = [X]
    forms = [
        lambda a, b: a + b,
        lambda a, b: a * b / 3,
        lambda a, b: sympy.Max(a, b + 1, evaluate=False),
        lambda a, b: sympy.Min(2 * a, b, evaluate=False),
        lambda a, b: sympy.sqrt(a**2 + b**2),
        lambda a, b: a * (1 - sympy.exp(-b)),
    ]
    for i in range(draw(st.integers(1, 8))):
        operands = [X, *map(name, range(i))]
        form = draw(st.sampled_from(forms))
        made.append(form(draw(st.sampled_from(operands)), draw(st.sampled_from(operands))))
    return made[1:]


@given(programs(), st.sampled_from([0, 5, 20, 200]), st.fractions(min_value="0.1", max_value=2))
@settings(max_examples=60, deadline=None)
def test_what_is_written_out_is_equal(program: list[Any], longest: int, value: Any) -> None:
    definitions = chain(program)
    roots = [name(len(program) - 1), name(0) + 1]
    inputs = {X: sympy.Rational(value.numerator, value.denominator)}
    oracle = numbers(definitions, inputs)
    found = together(expand(roots, definitions, longest), inputs)
    expected = [evaluated(root, oracle) for root in roots]
    assert found == pytest.approx(expected, rel=1e-20)


# Taken apart


@pytest.fixture(scope="module")
def analysis() -> Analysis:
    found = check(str(VIT)).analysis
    assert found is not None
    return found


def whole(found: Pieces, inputs: Mapping[Any, Any]) -> Any:
    """Written out before it is evaluated: parts of what a maximum runs over rest on its index."""
    assert not inputs.keys() & {part for part, _ in found.parts}
    written_out = found.whole
    for part, expression in reversed(found.parts):
        written_out = written_out.xreplace({part: expression})
    return evaluated(written_out, inputs)


@pytest.mark.slow
def test_pieces_are_equal_to_the_formula(analysis: Analysis) -> None:
    formulas = [definition.expression for definition in analysis.definitions if definition.expression is not None]
    formulas += [analysis.total.expression, *(bound.expression for bound in analysis.parameters.values())]
    inputs = {
        s: sympy.Rational(i + 3, 7)
        for i, s in enumerate(sorted(set().union(*(f.free_symbols for f in formulas)), key=str))
    }
    for formula in formulas:
        assert whole(pieces(formula), inputs) == pytest.approx(evaluated(formula, inputs), rel=1e-20)


def test_pieces_are_short_and_few(analysis: Analysis) -> None:
    (loss,) = (d.expression for d in analysis.definitions if d.name == "L_R")
    found = pieces(loss)
    assert "⋯" not in "".join(text(part) for _, part in found.parts)
    assert [str(part) for part, _ in found.parts] == [f"c_{i + 1}" for i in range(len(found.parts))]
    assert 1 < len(found.parts) < 8


def test_a_short_formula_stays_whole() -> None:
    assert pieces(sympy.sqrt(2) * X + 1) == Pieces(sympy.sqrt(2) * X + 1)


def test_names_of_parts_are_new() -> None:
    taken = sympy.Symbol("c_1", positive=True)
    shared = taken * X / 3 + X**2 + taken**3
    long = sympy.exp(-shared) + sympy.sqrt(shared) + 1 / (shared + 1)
    found = pieces(long)
    assert found.parts
    assert "c_1" not in {str(part) for part, _ in found.parts}


def test_what_a_maximum_runs_over_stays_inside() -> None:
    m = sympy.Symbol("m", positive=True, integer=True)
    term = (m * X + 1) / (m * X + 2) + sympy.sqrt(m * X + 1) + (m * X + 2) ** 3 + sympy.exp(m * X + 1)
    found = pieces(MaxOver(term, m, sympy.Integer(1), sympy.Integer(9)) + X)
    assert not any(m in part.free_symbols for _, part in found.parts)


def test_a_huge_sum_is_cut() -> None:
    found = pieces(sympy.sqrt(sympy.Add(*(symbol**2 for symbol in sympy.symbols("K:5000", positive=True)))))
    assert sum(part.count_ops() for _, part in found.parts) + found.whole.count_ops() < 100
    assert "⋯" in "".join(text(part) for _, part in found.parts) + text(found.whole)
