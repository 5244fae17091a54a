"""Reports of models whose gradients a clip bounds, and of findings that are alike."""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest

from lipcompile.core.derivation import Source
from lipcompile.diagnostics import Diagnostic, Severity
from lipcompile.frontends.options import ModelOptions
from lipcompile.pipeline import check
from lipcompile.reports import html, latex, markdown
from lipcompile.reports.document import Document, document
from lipcompile.reports.messages import findings

MODEL = (
    "model m { input x: tensor[4]\n repeat 3 { residual(add) { dense(4); relu } } dense(2) loss cross_entropy }"
)


@pytest.mark.parametrize("made", [html.render, markdown.render, latex.render])
def test_shares_and_growth_are_of_theorems_alone(made: Callable[[Document], str], tmp_path: Path) -> None:
    """A clip bounds all parameters together by 1, at any depth: each by itself had a share of 100 %."""
    path = tmp_path / "m.lip"
    path.write_text(MODEL)
    found = document(check(str(path), ModelOptions(bounds="clip")))
    assert found.dominating.shown == ()
    text = made(found)
    assert "a clip bounds all of its group together" in text
    for wrong in ("Largest", "The percentage", "Depth", "expansive", "Lipschitz constant, input"):
        assert wrong not in text
    assert not re.search(r"· [0-9.]+%", text)
    proved = document(check(str(path), ModelOptions(input_norm=Fraction(1))))
    assert "Depth" in made(proved)


def test_a_group_of_a_clip_counts_once_among_the_shares(tmp_path: Path) -> None:
    """The clip bounds both parameters of a by 1/2 together. The bound of b is the norm of tanh, 2."""
    path = tmp_path / "m.lip"
    path.write_text(
        "model m { input x: tensor[4], norm <= 1 a = dense(4, bias=0.5, clip=0.5) tanh b = dense(1) loss hinge }"
    )
    found = document(check(str(path)))
    assert [row.share for row in found.parameters.shown] == [None, None, pytest.approx(4 / 4.25)]
    assert f"{400 / 4.25:.0f}%" in html.render(found)


def test_findings_that_are_alike_are_one_behind_the_errors() -> None:
    warned = [
        Diagnostic("LIP305", f"`{n}` is outside", "keep", Severity.WARNING, node=n, op="conv") for n in "abc"
    ]
    error = Diagnostic("LIP311", "the bound is of no use")
    first, second = findings([*warned, error], Source("m", "m.onnx", "onnx", ""))
    assert (first["code"], first["more"]) == ("LIP311", "")
    assert (second["code"], second["more"]) == ("LIP305", "and 2 more like it, `b` to `c`")
