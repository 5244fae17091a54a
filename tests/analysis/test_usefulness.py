"""The note on a bound that no training can work with (LIP310)."""

from __future__ import annotations

from pathlib import Path

import pytest

from lipcompile.diagnostics import Diagnostic
from lipcompile.pipeline import check

# hinge has L = 1: K of the last weight is c·X_0, of the first c.
MODEL = (
    "model m {{ input x: {source}\n a = dense(4, constraint=spectral({c})) {between} b = dense(1) loss hinge }}"
)


def notes(folder: Path, c: str, source: str = "tensor[4], norm <= 1", between: str = "") -> list[Diagnostic]:
    path = folder / "m.lip"
    path.write_text(MODEL.format(c=c, source=source, between=between))
    derivation = check(str(path))
    assert derivation.ok
    return [found for found in derivation.diagnostics if found.code == "LIP310"]


def test_a_million_times_the_unit_is_vacuous(tmp_path: Path) -> None:
    """√(1 + c²) exceeds 10^6 from c = 10^6 on."""
    assert notes(tmp_path, "999999") == []
    (found,) = notes(tmp_path, "1000000")
    assert found.severity == "note"
    assert "more than 10^6 times L·max(1, X_0)" in found.message
    assert "`b.weight` contributes 100% of the squared bound" in found.message
    assert "ranks the changes" in found.help
    assert found.node == "b"
    assert found.location is not None
    assert found.location.line == 2


def test_a_large_input_is_no_fault_of_the_network(tmp_path: Path) -> None:
    """X_0·√(1 + c²) against 10^6·X_0; below X_0 = 1 the unit stays L."""
    assert notes(tmp_path, "999999", "tensor[4], norm <= 1000") == []
    assert notes(tmp_path, "1000000", "tensor[4], norm <= 1000") != []
    assert notes(tmp_path, "1000000", "tensor[4], norm <= 0.5") == []


def test_tokens_have_no_norm(tmp_path: Path) -> None:
    """The table has κ = √4 and c behind it; the last layer reads 2·c."""
    source, c = "tokens[4]\n embedding(9, 4) flatten", ("353000", "354000")  # c·√(2² + 2²) = 10^6 at 353553
    assert [len(notes(tmp_path, bound, source)) for bound in c] == [0, 1]


@pytest.mark.parametrize("source", ["tensor[4]", "tensor[4], norm <= radius"])
def test_nothing_is_said_of_what_is_not_known(tmp_path: Path, source: str) -> None:
    assert notes(tmp_path, "1e300", source) == []


def test_beyond_doubles(tmp_path: Path) -> None:
    (found,) = notes(tmp_path, "1e300", between="dense(4, constraint=spectral(1e300))")
    assert "too large for a double" in found.message


def test_copies_dominate_together(tmp_path: Path) -> None:
    (found,) = notes(tmp_path, "1", between="repeat 24 { residual(add) { dense(4) } }")
    assert "and its 23 copies contribute" in found.message
    assert "`lipcompile fix MODEL -o FILE` reduces it; `lipcompile report`" in found.help  # by means


def test_what_is_not_fixed_is_not_said_to_be(tmp_path: Path) -> None:
    """No change that is made unasked lowers the constraint of a weight."""
    (found,) = notes(tmp_path, "1000000")
    assert found.help == "`lipcompile report` ranks the changes that make it smaller"
