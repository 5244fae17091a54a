"""Diagnostics that are alike are told once, with their number."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lipcompile.diagnostics import Diagnostic, Location, Severity
from lipcompile.pipeline import check
from lipcompile.reports.console import plain
from lipcompile.reports.json_report import report
from lipcompile.reports.messages import alike, messages

HERE = Location("m.lip", 3, 5)


def steep(node: str, location: Location | None = HERE, severity: Severity = Severity.WARNING) -> Diagnostic:
    return Diagnostic("LIP112", f"`{node}` stretches", "floor", severity, node, "layer_norm", location)


def told(found: Sequence[Diagnostic]) -> list[str]:
    return plain(*messages(found, lambda _: None)).splitlines()


def test_copies_of_a_layer_are_one_message() -> None:
    assert told([steep("n"), steep("n_2"), steep("n_3")]) == [
        "warning[LIP112]: `n` stretches",
        " --> m.lip:3:5",
        "  = help: floor",
        "  = run lipcompile fix m.lip -o FILE --also norm",
        "  = and 2 more like it, `n_2` to `n_3`",
    ]
    assert told([steep("n"), steep("n_2")])[-1] == "  = and 1 more like it, `n_2`"
    assert told([steep("n")])[-1] == "  = run lipcompile fix m.lip -o FILE --also norm"


def test_what_differs_is_told_apart() -> None:
    other = Location("m.lip", 4, 5)
    found = [steep("a"), steep("b", other), steep("c", severity=Severity.NOTE), steep("d")]
    assert [[one.node for one in group] for group in alike(found)] == [["a", "d"], ["b"], ["c"]]


def test_errors_without_a_line_are_all_told() -> None:
    """A warning of an imported model is told once; each error is a place to fix."""
    file = Location("m.onnx")
    warnings = [steep("a", file), steep("b", file)]
    errors = [steep("a", file, Severity.ERROR), steep("b", file, Severity.ERROR)]
    assert [len(group) for group in alike([*warnings, *errors])] == [2, 1, 1]


def test_json_keeps_all(tmp_path: Path) -> None:
    path = tmp_path / "m.lip"
    blocks = "repeat 3 { dense(4) layer_norm(eps=0.00001) }"
    path.write_text(f"model m {{ input x: tensor[4], norm <= 1\n {blocks} dense(1) loss hinge }}")
    derivation = check(str(path))
    codes = [entry["code"] for entry in report(derivation)["diagnostics"]]
    assert codes == ["LIP112", "LIP112", "LIP112", "LIP310"]
    text = told(derivation.diagnostics)
    assert sum("LIP112" in line for line in text) == 1
    assert " = and 2 more like it, `layer_norm_2` to `layer_norm_3`" in "\n".join(text)
