"""Formulas as MathML: what is written, seen as a tree by another parser."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from itertools import pairwise
from typing import Any

import pytest
from sympy import Eq, Function, ImmutableMatrix, Max, Min, Piecewise, Rational, Symbol, exp, oo, sqrt

from lipcompile.numbers.symbolic import MaxOver
from lipcompile.reports.formulas import concise
from lipcompile.reports.mathml import mathml


def symbol(name: str) -> Any:
    return Symbol(name, positive=True)


X, A, T = symbol("X_0"), symbol("alpha"), symbol("t")
M = Symbol("m", positive=True, integer=True)


def tree(expression: Any) -> ET.Element:
    return ET.fromstring(mathml(expression))


def words(expression: Any) -> str:
    """What a reader sees, line by line, without the invisible signs."""
    return "".join(tree(expression).itertext()).replace("\N{INVISIBLE TIMES}", " ")


@pytest.mark.parametrize(
    ("expression", "seen"),
    [
        (3 * X * symbol("L"), "3 L X0"),
        (2 * symbol("b") * sqrt(5), "2 5 b"),  # the root is an element
        (Min(X, A), "min(X0,α)"),
        (Max(X, A, T), "max(X0,α,t)"),
        (1 - X, "1−X0"),
        (oo, "∞"),
        (exp(X), "eX0"),
        (Function("unheard_of")(X), "unheard_of(X0)"),
        (MaxOver(M * X, M, 1, 9), "max1≤m≤9(X0 m)"),
        (symbol("K_conv_1.weight"), "Kconv_1.weight"),
        (symbol("⋯"), "⋯"),
    ],
)
def test_what_is_seen(expression: Any, seen: str) -> None:
    assert words(expression) == seen


def test_a_name_has_a_subscript() -> None:
    found = tree(symbol("X_fc1"))[0]
    assert (found.tag, [child.tag for child in found], [child.text for child in found]) == (
        "msub",
        ["mi", "mi"],
        ["X", "fc1"],
    )


def test_a_number_behind_a_number_has_a_dot_between() -> None:
    """2·3^t: set side by side, the two would read as 23^t."""
    assert words(2 * 3**T) == "2·3t"


def test_cases_are_rows_with_their_conditions() -> None:
    found = tree(Piecewise((T, Eq(A, 1)), (A**T, True)))
    rows = [["".join(cell.itertext()) for cell in row.iter("mtd")] for row in found.iter("mtr")]
    assert rows == [["t", "if\N{NO-BREAK SPACE}α=1"], ["αt", "otherwise"]]


def test_cases_inside_a_formula_are_fenced_on_both_sides() -> None:
    cases = Piecewise((T, Eq(A, 1)), (X, True))
    alone, inside = (next(tree(e).iter("mtable")).get("style", "") for e in (cases, 2 * cases))
    assert "border-right" not in alone
    assert "border-right" in inside


def test_names_are_escaped() -> None:
    assert "<script" not in mathml(symbol("X_<script>alert(1)</script>"))
    assert words(symbol("a<b&c")) == "a<b&c"


@pytest.mark.parametrize(
    "expression", [ImmutableMatrix([[1, X]]), Symbol(""), Symbol("_"), X**-T, Rational(3, 7) ** T]
)
def test_whatever_is_printed_is_well_formed(expression: Any) -> None:
    assert tree(expression).tag == "math"


def test_what_is_left_out_of_a_sum_is_said_once() -> None:
    """Twenty terms of six operations each are too long: some end, some go, and no ⋯ stands beside another."""
    letters = [symbol(f"x{i}") for i in range(21)]
    shown = words(concise(sum(3 * a**2 * (a * b + 2) ** 2 for a, b in pairwise(letters))))
    assert "⋯" in shown
    assert not any(twice in shown for twice in ("⋯+⋯", "⋯ ⋯", "⋯,⋯"))
