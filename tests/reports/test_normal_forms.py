"""Formulas in one form, and the names of the total beside it."""

from __future__ import annotations

import json
import math
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import sympy

import lipcompile
from lipcompile.__main__ import run
from lipcompile.numbers import Symbol, combine
from lipcompile.reports import html
from lipcompile.reports.document import document
from lipcompile.reports.formulas import count, latex, legible, text
from lipcompile.reports.mathml import mathml

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.lip"))
n, x = (sympy.Symbol(name, positive=True) for name in "nx")


def test_a_power_of_a_number_has_one_form() -> None:
    assert text(2 ** (2 * n) * x) == "4**n*x"
    assert text(sympy.Rational(1, 2) ** (3 * n)) == "(1/8)**n"
    assert text(x ** (2 * n)) == "x**(2*n)"
    assert latex(2 ** (2 * n)) == "4^{n}"
    assert ">4<" in mathml(2 ** (2 * n))


def test_fractions_of_many_digits_are_decimals_for_the_eye() -> None:
    assert legible(sympy.Rational(377, 1000) * x - sympy.Rational(123457, 10**6)) == "-0.123457 + 0.377*x"
    assert legible(x / 3 + sympy.Rational(1, 800)) == "x/3 + 1/800"
    assert text(sympy.Rational(377, 1000) * x) == "377*x/1000"


def test_what_is_rounded_up_does_not_enter_differences() -> None:
    """142129/12000000 = 0.01184408333…: rounded up it may stand before brackets, and not before the 8 in them."""
    formula = sympy.Rational(142129, 12 * 10**6) * (12 * x - 8)
    assert (
        legible(sympy.Mul(sympy.Rational(142129, 12 * 10**6), 12 * x - 8, evaluate=False))
        == "0.01184409*(12*x - 8)"
    )
    numbers = [float(part) for part in re.findall(r"-?\d+\.\d+", legible(formula).replace(" - ", " -"))]
    assert all(part >= true for part, true in zip(sorted(numbers), (-0.0947526667, 0.142129), strict=False))


def test_an_open_number_of_parameters_is_multiplied_out() -> None:
    depth = Symbol("depth", "")
    twice = combine("*", depth, Fraction(4096))
    size = combine("+", combine("+", Fraction(2688), twice), twice)
    assert count(size) == "8192*depth + 2688"


FUNCTIONS: dict[str, Any] = {"sqrt": math.sqrt, "exp": math.exp, "Min": min, "Max": max, "inf": math.inf}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_the_total_is_defined_by_the_names_beside_it(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Python computes the formulas, the names first, in their order, and gets the certified number."""
    run(["check", str(path), "--format", "json"])
    total = json.loads(capsys.readouterr().out)["total"]
    known: dict[str, Any] = {}
    for symbol in total["symbols"]:
        computable = symbol["formula"] is not None and "max[" not in symbol["formula"]
        value = eval(symbol["formula"], {**FUNCTIONS, **known}) if computable else symbol["value"]
        known[symbol["name"]] = value or 1.0
    for bound in (total["lipschitz"], total["gradient_bound"]):
        found = eval(bound["formula"].replace("∞", "inf"), {**FUNCTIONS, **known})
        assert bound["value"] is None or found == pytest.approx(bound["value"], rel=1e-9)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_terminals_give_the_formulas_of_their_names(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(["check", str(path)])
    assert "shown by --verbose" not in capsys.readouterr().out


def test_pages_set_the_order_of_growth() -> None:
    page = html.render(document(lipcompile.check(str(ROOT / "examples" / "deep.lip"))))
    assert re.search(r"grows as <span class=\"number\">O\(<math", page)
    assert "**" not in re.sub(r"<pre.*?</pre>", "", page, flags=re.DOTALL)


def test_many_names_of_the_total_are_defined_once(tmp_path: Path) -> None:
    path = tmp_path / "large.lip"
    layers = "repeat 200 { residual(add) { dense(8); groupsort(2) } }"
    path.write_text(f"model m {{ input x: tensor[8], norm <= 1 {layers} dense(3) }}")
    found = lipcompile.report(lipcompile.check(str(path)))
    assert found["total"]["symbols"] is None
    assert len(found["symbols"]) > 32
    schema = json.loads((ROOT / "lipcompile" / "reports" / "report.schema.json").read_text())
    jsonschema.validate(found, schema)
