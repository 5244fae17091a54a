"""Pictures for slides: what they say, that they are slides, and that they are the same each time."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import pytest

import lipcompile
from lipcompile.__main__ import run
from lipcompile.core.derivation import Analysis
from lipcompile.reports.html.plots import Colours, Plot, Series, draw
from lipcompile.reports.picture import save

ROOT = Path(__file__).parents[2]


def analysis(name: str) -> Analysis:
    found = lipcompile.check(str(ROOT / "examples" / name)).analysis
    assert found is not None
    return found


def words(name: str, tmp_path: Path) -> list[str]:
    path = tmp_path / "picture.svg"
    save(analysis(name), path)
    return [found.strip() for found in re.findall(r"<text[^>]*>([^<]*)</text>", path.read_text())]


def test_norms_cotangents_and_bounds_stand_along_the_graph(tmp_path: Path) -> None:
    """mnist.lip: ‖x‖ <= 1 through orthogonal layers, and a clip at 0.1 behind the logits: K = 0.1 of each of three
    weights, √3·0.1 = 0.1732… of all. The patches of the strided convolution do not overlap.
    """
    found = words("mnist.lip", tmp_path)
    assert "mnist" in found
    assert any(text.startswith("gradient of one example ≤ 0.1733") for text in found)
    assert found.count("K ≤ 0.1001") == 3
    assert found.count("33%") == 3
    assert "↓ 1    ↑ 0.1001" in found


def test_curves_are_drawn_over_an_open_depth(tmp_path: Path) -> None:
    found = words("deep.lip", tmp_path)
    assert "depth, copies of repeat_1" in found
    assert "× depth" in found
    assert "K is a formula" in found


def test_a_picture_is_a_slide_and_the_same_each_time(tmp_path: Path) -> None:
    one, two = tmp_path / "one.png", tmp_path / "two.png"
    for path in (one, two):
        save(analysis("residual.lip"), path)
    width, height = struct.unpack(">II", one.read_bytes()[16:24])
    assert width / height == pytest.approx(16 / 9, rel=0.01)
    assert one.read_bytes() == two.read_bytes()


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    model = str(ROOT / "examples" / "mlp.lip")
    assert run(["show", model]) == 0
    assert [path.suffix for path in tmp_path.iterdir()] == [".svg"]
    assert run(["show", model, "-o", "x.pdf"]) == 2
    assert run(["show", model, "--loss", "bce", "-o", "x.svg"]) == 1
    assert "error[LIP211]" in capsys.readouterr().err
    assert not Path("x.svg").exists()


def test_curves_are_within_their_axes() -> None:
    """Scores that hardly differ, and scores below 0: the axis begins at 0 or below them, and has room above."""
    from matplotlib.figure import Figure

    for low, high, bottom in ((0.88, 0.89, 0.0), (-0.5, 0.7, -0.5)):
        axes = Figure().add_subplot()
        draw(
            axes, Plot("", "", "", "", "", [Series("", [(1.0, low), (2.0, high)])]), Colours("k", "k", "k", ("k",))
        )
        assert axes.get_ylim()[0] == bottom
        assert axes.get_ylim()[1] > high + 0.04 * (high - bottom)
