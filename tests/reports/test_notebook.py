"""Derivations as notebooks show them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from lipcompile.core.derivation import Derivation
from lipcompile.pipeline import check
from tests.reports.html_pages import parsed

MODEL = (
    "model m { input x: tensor[4], norm <= 0.5 a = dense(4, bias=0.25) frozen { dense(4) } dense(1) loss hinge }"
)


def derivation(folder: Path, program: str) -> Derivation:
    path = folder / "m.lip"
    path.write_text(program)
    return check(str(path))


def html(found: Derivation) -> str:
    return found._repr_html_() or ""


def test_an_accepted_model_shows_its_bounds(tmp_path: Path) -> None:
    page = parsed(html(derivation(tmp_path, MODEL)))
    assert "m: accepted" in page.text
    assert "R1Lipschitz lossholdshinge is Lipschitz in the output" in page.text
    # √(0.25 + 1 + 0.5625) = 1.34629…
    assert "1.3462913" in page.text
    assert "not trained" in page.text
    assert len(list(page.all("math"))) == 4
    assert not list(page.all("script", "style", "link", "img"))


def test_a_rejected_model_shows_why(tmp_path: Path) -> None:
    page = parsed(html(derivation(tmp_path, "model m { input x: tensor[4], norm <= 1\n dnse(2) loss hinge }")))
    assert "m: rejected" in page.text
    assert "LIP011unknown layer dnse" in page.text
    assert "parameter" not in page.text


def test_nothing_hostile_becomes_markup(tmp_path: Path) -> None:
    found = derivation(tmp_path, MODEL)
    page = html(replace(found, source=replace(found.source, name="<script>alert(1)</script>")))
    assert "<script" not in page
    assert "&lt;script&gt;" in page


def test_the_table_of_a_large_model_is_small(tmp_path: Path) -> None:
    layers = " ".join(f"dense(4, bias=0.0{i + 1})" for i in range(60))
    found = html(derivation(tmp_path, f"model m {{ input x: tensor[4], norm <= 1 {layers} dense(1) loss hinge }}"))
    assert "101 more parameters" in parsed(found).text
    assert len(found) < 50_000


def test_in_plain_text_a_derivation_is_one_line(tmp_path: Path) -> None:
    """The gradients of dense(4, bias=0.25) and dense(1) have norms up to 1·0.5, 1·1 and (0.5 + 0.25)·1."""
    found = derivation(tmp_path, MODEL)
    assert found.analysis is not None
    value = found.analysis.total.value
    assert value is not None
    assert abs(value - 1.8125**0.5) < 1e-12
    assert repr(found) == f"<Derivation of m: accepted, gradient bound {value!r}>"
    assert len(repr(found.analysis.graph)) < 80
    refused = derivation(tmp_path, "model m { input x: tensor[4], norm <= 1\n dnse(2) loss hinge }")
    assert repr(refused) == "<Derivation of m: rejected, error LIP011>"
