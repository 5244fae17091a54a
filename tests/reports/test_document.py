"""What a report shows: tables of bounded size, and rows that stand for copies."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import sympy

from lipcompile.core.derivation import Block, Bound, Derivation
from lipcompile.pipeline import check
from lipcompile.reports.document import Curve, Document, Privacy, document
from lipcompile.reports.formulas import ELLIPSIS, concise, text
from lipcompile.reports.rows import first_copies, together

# hinge is 1-Lipschitz and so are the layers: K is the norm of the input for a weight, and 1 for a bias.
COPIES = 40
CHAIN = f"""
model m {{
    input x: tensor[4], norm <= 0.5
    repeat {COPIES} {{ dense(4, bias=0.25) }}
    dense(1)
    loss hinge
}}
"""


def derivation(folder: Path, program: str) -> Derivation:
    path = folder / "m.lip"
    path.write_text(program)
    return check(str(path))


def shown(folder: Path, program: str, limit: int = 100) -> Document:
    return document(derivation(folder, program), limit=limit)


def irregular(layers: int) -> str:
    """Constraints that all differ: nothing repeats."""
    chain = " ".join(f"dense(4, constraint=spectral(1.{i:03}7), bias=0.1)" for i in range(layers))
    return f"model m {{ input x: tensor[4], norm <= 1 {chain} loss hinge }}".replace(" loss", " dense(1) loss")


def test_shares_are_those_of_the_squares(tmp_path: Path) -> None:
    found = shown(tmp_path, "model m { input x: tensor[4], norm <= 0.5 a = dense(1, bias=0.25) loss hinge }")
    assert [row.share for row in found.parameters.shown] == pytest.approx([0.25 / 1.25, 1 / 1.25])
    assert [row.layer for row in found.parameters.shown] == ["a", "a"]


def test_what_is_not_trained_has_no_bound_and_no_share(tmp_path: Path) -> None:
    found = shown(tmp_path, "model m { input x: tensor[4], norm <= 1 frozen { dense(2) } dense(1) loss hinge }")
    first, second = found.parameters.shown
    assert (first.bound, first.share) == (None, None)
    assert second.share == 1
    assert [found.size, found.trained] == [10, 2]


def test_shares_need_every_number(tmp_path: Path) -> None:
    found = shown(tmp_path, "model m { input x: tensor[4] dense(2) dense(1) loss hinge }")
    assert [row.share for row in found.parameters.shown] == [None, None]
    assert not found.dominating.shown


def test_a_small_model_shows_every_layer(tmp_path: Path) -> None:
    found = shown(tmp_path, CHAIN)
    assert {row.copies for row in found.layers.shown} == {1}
    assert len(found.layers.shown) == COPIES + 1
    assert found.layers.left_out == found.parameters.left_out == 0


def test_a_row_of_copies_holds_of_all_of_them(tmp_path: Path) -> None:
    found = shown(tmp_path, CHAIN, limit=10)
    layer, head = found.layers.shown
    weight, bias, last = found.parameters.shown
    assert [row.copies for row in (layer, head, weight, bias, last)] == [COPIES, 1, COPIES, COPIES, 1]
    # Copy t reads a norm of 0.5 + 0.25·(t - 1).
    norms = [0.5 + 0.25 * t for t in range(COPIES + 1)]
    squares = [norm**2 for norm in norms]
    whole = sum(squares) + COPIES
    assert weight.bound == Bound(ELLIPSIS, norms[-2])
    assert bias.bound == Bound(sympy.Integer(1), 1.0)
    assert [row.share for row in found.parameters.shown] == pytest.approx(
        [sum(squares[:-1]) / whole, COPIES / whole, squares[-1] / whole]
    )
    assert layer.bounds.output_norm == Bound(ELLIPSIS, norms[-1])
    assert layer.bounds.lipschitz.expression == 1
    assert found.layers.left_out == found.parameters.left_out == 0


def test_of_what_does_not_repeat_the_ends_and_the_largest_are_shown(tmp_path: Path) -> None:
    layers = 60
    found = shown(tmp_path, irregular(layers), limit=10)
    names = [row.node.name for row in found.layers.shown]
    assert names == [f"dense{'' if i == 1 else f'_{i}'}" for i in (*range(1, 6), *range(layers - 3, layers + 2))]
    assert found.layers.left_out == layers + 1 - 10
    kept = {row.parameter.name for row in found.parameters.shown}
    assert len(kept) == 10
    assert found.parameters.left_out == 2 * layers + 1 - 10
    bounds = found.derivation.analysis.parameters if found.derivation.analysis else {}
    smallest = min(bounds[name].value or 0.0 for name in kept)
    assert all((bound.value or 0.0) <= smallest for name, bound in bounds.items() if name not in kept)


def test_symbols_are_those_that_formulas_mention_and_not_too_many(tmp_path: Path) -> None:
    found = shown(tmp_path, irregular(60), limit=10)
    names = [row.name for row in found.symbols.shown]
    assert len(names) == 10
    assert "X_0" in names
    every = found.derivation.analysis.definitions if found.derivation.analysis else ()
    assert found.symbols.left_out == len(every) - 10
    assert names == [definition.name for definition in every if definition.name in names]


def test_a_rejected_model_has_requirements_and_diagnostics_alone(tmp_path: Path) -> None:
    found = shown(tmp_path, "model m { input x: tensor[4], norm <= 1\n dnse(2) loss hinge }")
    assert [row.state for row in found.requirements] == ["not reached", "not reached", "fails"]
    assert [row.number for row in found.requirements] == ["R1", "R2", "R3"]
    assert [diagnostic.code for diagnostic in found.diagnostics.shown] == ["LIP011"]
    assert not any(rows.shown for rows in (found.layers, found.parameters, found.symbols, found.blocks))


def test_diagnostics_are_not_too_many(tmp_path: Path) -> None:
    layers = "dnse(2) " * 30
    found = shown(tmp_path, f"model m {{ input x: tensor[4], norm <= 1 {layers} loss hinge }}", limit=10)
    assert (len(found.diagnostics.shown), found.diagnostics.left_out) == (10, 20)


def test_names_of_depth_are_told_apart(tmp_path: Path) -> None:
    found = shown(tmp_path, CHAIN)
    assert [row.name for row in found.depth_symbols.shown] == ["T"]
    assert "T" not in {row.name for row in found.symbols.shown}


def test_curves_as_rows() -> None:
    curves = Curve("rdp", ((1, 0.5), (9, 2.0))), Curve("pld", ((1, 0.25),), "too little noise")
    privacy = Privacy(1.0, 0.5, 9, 1e-5, "add_remove", curves)
    assert privacy.rows() == [(1, (0.5, 0.25)), (9, (2.0, None))]


# Copies


def block(*layers: tuple[str, ...]) -> Block:
    one = Bound(sympy.Integer(1), 1.0)
    n = sympy.Symbol("n")
    return Block("b", layers, n, n, len(layers), "critical", one, one, one, n, n, {}, n, exact=True)


def test_copies_in_copies_lead_to_the_very_first() -> None:
    outer = block(("a1", "a2", "e"), ("b1", "b2", "f"))
    inner = block(("a1",), ("a2",))
    expected = {"a2": "a1", "b1": "a1", "b2": "a1", "f": "e"}
    assert first_copies([outer, inner]) == expected
    assert first_copies([inner, outer]) == expected


def test_together() -> None:
    x, y = sympy.symbols("x y")
    assert together([Bound(x, 1.0), Bound(x, 3.0), Bound(x, 2.0)]) == Bound(x, 3.0)
    assert together([Bound(x, 1.0), Bound(y, 3.0)]) == Bound(ELLIPSIS, 3.0)
    assert together([Bound(x, 1.0), Bound(x, None)]) == Bound(x, None)


# Formulas of bounded length


def test_a_short_formula_is_left_alone() -> None:
    x = sympy.Symbol("X_0", positive=True)
    assert concise(sympy.sqrt(2) * x + 1) == sympy.sqrt(2) * x + 1


def test_a_long_formula_keeps_its_form() -> None:
    terms = sympy.symbols("a:5000", positive=True)
    root = sympy.sqrt(sympy.Add(*(term**2 for term in terms)))
    assert text(concise(3 * root)).startswith("3*sqrt(a0**2 + ")
    assert text(concise(3 * root)).count("⋯") == 1
    assert concise(root).count_ops() < 100


@pytest.mark.parametrize("kind", [sympy.Max, sympy.Min])
def test_long_extremes_and_cases_are_cut_too(kind: type) -> None:
    found = kind(*sympy.symbols("a:300", positive=True), evaluate=False)
    cases = sympy.Piecewise((found, sympy.Symbol("b") > 1), (1, True))
    assert "⋯" in text(concise(cases))
    assert concise(cases).count_ops() < 100
    assert len(concise(cases).args) == 2


def test_the_order_of_what_is_kept_is_always_the_same() -> None:
    terms = [math.prod(pair) for pair in zip(sympy.symbols("a:300"), sympy.symbols("b:300"), strict=True)]
    assert text(concise(sympy.Add(*terms))) == text(concise(sympy.Add(*reversed(terms))))
