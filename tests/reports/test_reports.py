"""Reports: the JSON schema, formulas, rounding, and how diagnostics are drawn."""

from __future__ import annotations

import copy
import io
import json
import math
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import sympy
from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

from lipcompile.diagnostics import Diagnostic, Location, Severity
from lipcompile.frontends.options import ModelOptions
from lipcompile.numbers.rounding import upward
from lipcompile.pipeline import check
from lipcompile.reports import terminal
from lipcompile.reports.console import plain, show
from lipcompile.reports.formulas import latex, legible, text
from lipcompile.reports.json_report import report
from lipcompile.reports.messages import messages

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.lip"))
SCHEMA = json.loads(files("lipcompile.reports").joinpath("report.schema.json").read_text(encoding="utf-8"))

# hinge is 1-Lipschitz; so are the layers: K = ‖input‖ for weights, 1 for the bias, and nothing for what is frozen.
MODEL = """
model m {
    input x: tensor[4], norm <= 0.5
    a = dense(4, bias=0.25)
    frozen { dense(4) }
    dense(1)
    loss hinge
}
"""


def report_of(folder: Path, program: str, **options: Any) -> dict[str, Any]:
    path = folder / "m.lip"
    path.write_text(program)
    return report(check(str(path), ModelOptions(**options)))


def valid(found: Any) -> bool:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    return bool(jsonschema.Draft202012Validator(SCHEMA).is_valid(found))


# The JSON report


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_reports_of_examples_follow_the_schema(path: Path) -> None:
    assert valid(report(check(str(path))))


def test_the_report_holds_what_the_rules_say(tmp_path: Path) -> None:
    found = report_of(tmp_path, MODEL)
    assert valid(found)
    bounds = {entry["name"]: entry["gradient_bound"]["value"] for entry in found["parameters"]}
    assert bounds == {"a.weight": 0.5, "a.bias": 1.0, "dense.weight": 0.0, "dense_2.weight": 0.75}
    assert [entry["trainable"] for entry in found["parameters"]] == [True, True, False, True]
    assert [entry["constraint"] for entry in found["parameters"]] == [
        "spectral<=1",
        "norm<=0.25",
        "spectral<=1",
        "spectral<=1",
    ]
    assert found["model"]["parameters"] == 16 + 4 + 16 + 4
    exact = math.sqrt(0.5**2 + 1 + 0.75**2)
    assert exact <= found["total"]["gradient_bound"]["value"] <= exact * (1 + 1e-15)
    meaning = "bound of the input norm"
    assert found["symbols"] == [{"name": "X_0", "meaning": meaning, "formula": None, "latex": None, "value": 0.5}]


def test_values_agree_with_their_formulas(tmp_path: Path) -> None:
    found = report_of(tmp_path, MODEL.replace("loss hinge", "loss squared_error(target_norm=2)"))
    known = {symbol["name"]: Fraction(symbol["value"]) for symbol in found["symbols"]}
    bounds = [entry["gradient_bound"] for entry in found["parameters"]] + [found["total"]["gradient_bound"]]
    for bound in bounds:
        formula: Any = sympy.parse_expr(bound["formula"])
        value = float(formula.subs(known))
        assert value <= bound["value"] <= value * (1 + 1e-14)


def test_an_open_model_has_formulas_and_no_numbers(tmp_path: Path) -> None:
    found = report_of(tmp_path, "model m { input x: tensor[4]\n dense(2) }")
    assert valid(found)
    assert found["ok"]
    assert found["parameters"][0]["gradient_bound"] == {"formula": "L*X_0", "latex": "L X_{0}", "value": None}
    assert {symbol["name"]: symbol["value"] for symbol in found["symbols"]} == {"X_0": None, "L": None}
    assert found["total"]["lipschitz"]["value"] == 1.0


def test_a_rejected_model_has_every_key_too(tmp_path: Path) -> None:
    found = report_of(tmp_path, "model m { input x: tensor[4], norm <= 1\n dnse(2) }")
    assert valid(found)
    assert not found["ok"]
    assert found["parameters"] == []
    assert found["total"]["gradient_bound"] == {"formula": None, "latex": None, "value": None}
    (diagnostic,) = found["diagnostics"]
    assert diagnostic["location"] == {"file": str(tmp_path / "m.lip"), "line": 2, "column": 2, "end_column": 6}


def test_the_schema_is_strict(tmp_path: Path) -> None:
    found = report_of(tmp_path, MODEL)
    changes: list[Callable[[Any], object]] = [
        lambda r: r.update(extra=1),
        lambda r: r.pop("depth"),
        lambda r: r["parameters"][0].pop("constraint"),
        lambda r: r["parameters"][0]["gradient_bound"].update(value="1"),
        lambda r: r["model"].update(sha256="0"),
        lambda r: r["layers"][0].update(name=None),
    ]
    for change in changes:
        broken = copy.deepcopy(found)
        change(broken)
        assert not valid(broken)


# Formulas and numbers


@given(st.floats(min_value=0, allow_nan=False, allow_infinity=False), st.integers(0, 12))
def test_round_up_is_never_below_and_by_less_than_one_digit_above(value: float, digits: int) -> None:
    shown = Decimal(upward(value, digits))
    unit = Decimal(1).scaleb(shown.adjusted() - digits) if "e" in upward(value, digits) else Decimal(1)
    step = unit if "e" in upward(value, digits) else Decimal(1).scaleb(-digits)
    assert Decimal(value) <= shown < Decimal(value) + step


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0, "0.0000000"),
        (1.0, "1.0000000"),
        (math.sqrt(2), "1.4142136"),
        (0.1, "0.1000001"),  # the double is a little more than one tenth
        (0.99999999999, "1.0000000"),
        (1e-12, "1.0000000e-12"),
        (9.9999999999e10, "1.0000000e+11"),
    ],
)
def test_round_up_by_example(value: float, shown: str) -> None:
    assert upward(value) == shown


def test_formulas_in_text_and_latex() -> None:
    x, loss, hidden = (sympy.Symbol(name, positive=True) for name in ("X_0", "L", "X_fc_1"))
    assert text(3 * loss * x) == "3*L*X_0"
    assert text(sympy.sqrt(2) * x) == "sqrt(2)*X_0"
    assert latex(sympy.sqrt(2) * x) == r"\sqrt{2} X_{0}"
    assert latex(hidden) == r"X_{\mathrm{fc\_1}}"
    assert latex(sympy.Symbol("depth")) == r"\mathrm{depth}"


def test_constants_are_not_rounded_up_where_that_makes_a_formula_smaller() -> None:
    """In differences, inverses and conditions: 1 - r^n with a larger r is below what it stands for."""
    x, n = sympy.symbols("x n", positive=True)
    long = sympy.Rational(123456789, 10**9)
    case = sympy.Piecewise((n, sympy.Eq(x, long)), (long * x, True))
    assert legible(3 * (1 - long**n)) == "3 - 3*(123456789/1000000000)**n"
    assert legible(1 / (x + long)) == "1/(x + 123456789/1000000000)"
    assert legible(long ** (1 - n)) == "(123456789/1000000000)**(1 - n)"
    assert legible(long * x - 1) == "0.1234568*x - 1"
    assert legible(case) == "Piecewise((n, Eq(x, 123456789/1000000000)), (0.1234568*x, True))"


def test_a_fraction_times_a_long_root_is_one_number() -> None:
    """√1977403641 = 44468.0068…, so a ten-thousandth of it is 4.4468006…; in a difference it stays as it is."""
    x, y = sympy.symbols("x y", positive=True)
    number = sympy.sqrt(1977403641) / 10000
    assert legible(number * x) == "4.446801*x"
    assert legible(number * x + y) == "4.446801*x + y"
    assert legible(y - number * x) == "-sqrt(1977403641)*0.0001*x + y"
    assert legible(sympy.sqrt(2) * x / 3) == "sqrt(2)*x/3"


def test_long_constants_are_shown_short_and_rounded_up() -> None:
    constant, x = sympy.Rational(18664216801881, 10**13), sympy.Symbol("X_0", positive=True)
    assert text(constant * x) == "18664216801881*X_0/10000000000000"
    assert legible(constant * x) == "1.866422*X_0"
    assert legible(x / 3) == "X_0/3"


def test_very_long_formulas_are_cut_for_the_eye_only() -> None:
    long = sum(sympy.Symbol(f"x_{i}") for i in range(500))
    assert legible(long).endswith("…")
    assert len(text(long)) > 1000


# Diagnostics


def drawn(found: Diagnostic, source: str | None) -> list[str]:
    return plain(*messages([found], lambda _: source)).splitlines()


def at(line: int, column: int, length: int = 1, message: str = "wrong") -> Diagnostic:
    return Diagnostic("LIP010", message, location=Location("m.lip", line, column, length))


def caret(found: Diagnostic, source: str) -> str:
    """Return what stands above the carets."""
    shown, marks = drawn(found, source)[3:5]
    width = max(len(shown), len(marks))
    return "".join(c for c, m in zip(shown.ljust(width), marks.ljust(width), strict=True) if m == "^")


def test_the_caret_stands_under_the_place() -> None:
    assert drawn(at(2, 5, 3), "first\nabc def ghi\n") == [
        "error[LIP010]: wrong",
        " --> m.lip:2:5",
        "  |",
        "2 | abc def ghi",
        "  |     ^^^",
        "  |",
        "",
        "for more, run lipcompile explain LIP010",
    ]


def test_the_caret_knows_tabs_line_ends_and_long_lines() -> None:
    assert caret(at(1, 3, 2), "\t\tab") == "ab"
    assert caret(at(1, 3, 2), "ab\r\n") == " "
    assert caret(at(1, 5001, 5), "x" * 5000 + "wrong" + "x" * 5000) == "wrong"
    assert caret(at(1, 8, 999), "before wrong") == "wrong"


def test_wide_characters_take_two_cells() -> None:
    shown, marks = drawn(at(1, 3), "模型x")[3:5]
    assert marks.index("^") - marks.index("|") == 2 + 4
    assert shown.endswith("模型x")


@pytest.mark.parametrize("source", [None, "", "one line"])
def test_a_place_without_its_text_is_still_named(source: str | None) -> None:
    assert drawn(at(7, 1), source)[:2] == ["error[LIP010]: wrong", " --> m.lip:7:1"]


def test_nodes_are_shown_with_op_and_path() -> None:
    found = Diagnostic(
        "LIP101",
        "mixes",
        "fold it",
        node="bn1",
        op="BatchNormalization",
        location=Location("m.onnx"),
        path=("x", "conv1"),
    )
    assert drawn(found, None)[:4] == [
        "error[LIP101]: mixes",
        " --> m.onnx: node `bn1` (BatchNormalization)",
        "  = path: x → conv1 → bn1",
        "  = help: fold it",
    ]


def test_what_a_terminal_would_obey_is_escaped() -> None:
    found = Diagnostic("LIP100", "unsupported op \x1b[31mred", node="a\nb")
    shown = plain(*messages([found], lambda _: None))
    assert "\x1b" not in shown
    assert r"unsupported op \x1b[31mred" in shown
    assert r"`a\nb`" in shown


def test_notes_do_not_point_to_explanations() -> None:
    found = Diagnostic("LIP201", "open", severity=Severity.NOTE)
    assert drawn(found, None) == ["note[LIP201]: open"]


# Colour


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_colour_is_for_terminals_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    found = Diagnostic("LIP010", "wrong")
    streams = io.StringIO(), Terminal()
    for stream in streams:
        show(stream, *messages([found], lambda _: None))
    assert "\x1b" not in streams[0].getvalue()
    assert "\x1b[1;31merror" in streams[1].getvalue()


def test_no_color_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    stream = Terminal()
    show(stream, *messages([Diagnostic("LIP010", "wrong")], lambda _: None))
    assert "\x1b[1;31m" not in stream.getvalue()
    assert "31m" not in stream.getvalue()


def test_colour_is_not_forced_upon_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "20")
    stream = io.StringIO()
    show(stream, Text("a long line that no terminal of twenty columns would hold", style="red"))
    assert stream.getvalue() == "a long line that no terminal of twenty columns would hold\n"


def test_the_layout_does_not_depend_on_the_width(monkeypatch: pytest.MonkeyPatch) -> None:
    derivation = check(str(EXAMPLES[0]))
    outputs = set()
    for columns in ("20", "300"):
        monkeypatch.setenv("COLUMNS", columns)
        outputs.add(plain(*terminal.report(derivation, lambda _: None, verbose=True)))
    assert len(outputs) == 1


def test_names_that_no_shown_formula_mentions_are_left_to_verbose(tmp_path: Path) -> None:
    path = tmp_path / "recurrent.lip"
    path.write_text("model m { input x: tensor[8, 4], norm <= 4 lstm(3) dense(2) loss cross_entropy }")
    derivation = check(str(path))
    brief = plain(*terminal.report(derivation, lambda _: None))
    full = plain(*terminal.report(derivation, lambda _: None, verbose=True))
    assert "G_lstm_input " in brief
    assert "G_lstm_sum3 " not in brief
    assert "G_lstm_sum3 " in full
    assert "--verbose shows" in brief
    assert "--verbose" not in full
