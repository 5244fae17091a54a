"""Colour spaces from .lip to the emitted module, its certificate and ONNX; what they refuse."""

from __future__ import annotations

import colorsys
import json
from functools import partial
from pathlib import Path

import pytest
import torch
from lipcompile_torch.nn import functional as lf
from lipcompile_verify import emitted, files
from lipcompile_verify.document import ForeignError

from lipcompile.certificates import certificate
from lipcompile.emitters.torch.emit import emit
from lipcompile.exporting import export_onnx
from lipcompile.ops.colour.rules import MATRICES, SQUARES
from lipcompile.pipeline import check
from tests.emitters.test_emit import assert_within_bounds, build, derive

LAYERS = ("colour_space(space=grayscale)", "colour_space(space=yiq)", "colour_space(space=yuv)", "hsv")


def model(layer: str, size: str = "3, 4, 5", before: str = "") -> str:
    return f"input x: tensor[{size}], norm <= 6\n {before} {layer} flatten dense(3) loss cross_entropy"


@pytest.mark.parametrize("layer", LAYERS)
def test_bounds_hold_in_the_emitted_module(tmp_path: Path, layer: str) -> None:
    assert_within_bounds(build(derive(tmp_path, model(layer)), tmp_path), "cross_entropy")


@pytest.mark.parametrize("space", MATRICES)
def test_the_norm_of_a_matrix_is_bounded_closely(space: str) -> None:
    """By the singular values of numpy's arithmetic; the verifier proves it without rounding."""
    rows = torch.tensor([[float(entry) for entry in row] for row in MATRICES[space]], dtype=torch.float64)
    square = float(torch.linalg.matrix_norm(rows, 2)) ** 2
    assert square * (1 - 1e-12) <= float(SQUARES[space]) <= square * (1 + 1e-6)


def test_hues_are_those_of_the_standard_library() -> None:
    """Pixels of eight bits, grey and pure ones among them, and what is outside of [0, 1]."""
    levels = torch.tensor([0.0, 1 / 255, 0.3, 254 / 255, 1.0], dtype=torch.float64)
    pixels = torch.cartesian_prod(levels, levels, levels)
    expected = [colorsys.rgb_to_hsv(*pixel) for pixel in pixels.tolist()]
    found = lf.hsv(pixels.T.reshape(1, 3, 5, 25)).flatten(2)[0].T
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))
    beyond = lf.hsv(torch.tensor([9.0, -1.0, 0.5]).reshape(1, 3, 1, 1)).flatten()
    torch.testing.assert_close(beyond, torch.tensor(colorsys.rgb_to_hsv(1.0, 0.0, 0.5)))


@pytest.mark.parametrize("pixel", [(1.0, 0.0, 1e-30), (1e-9, 0.0, 1e-9), (1e-45, 0.0, 0.0), (0.5, 0.5, 0.5)])
def test_no_entry_is_above_one(pixel: tuple[float, float, float]) -> None:
    found = lf.hsv(torch.tensor(pixel).reshape(1, 3, 1, 1))
    assert ((found >= 0) & (found <= 1)).all()


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("size", ["3, 4", "1, 4, 5", "4, 4, 5"])
def test_what_is_no_image_in_colours_is_refused(tmp_path: Path, layer: str, size: str) -> None:
    path = tmp_path / "model.lip"
    path.write_text(f"model net {{ {model(layer, size)} }}")
    assert [diagnostic.code for diagnostic in check(str(path)).diagnostics] == ["LIP102"]


def test_nothing_before_hues_is_trained(tmp_path: Path) -> None:
    path = tmp_path / "model.lip"
    path.write_text(f"model net {{ {model('hsv', before='conv2d(3, kernel=1)')} }}")
    assert "LIP111" in [diagnostic.code for diagnostic in check(str(path)).diagnostics]
    trained = model("colour_space(space=yiq)", before="conv2d(3, kernel=1)")
    assert_within_bounds(build(derive(tmp_path, trained), tmp_path), "cross_entropy")


@pytest.mark.parametrize("layer", LAYERS)
def test_an_exported_file_computes_the_same(tmp_path: Path, layer: str) -> None:
    assert export_onnx(build(derive(tmp_path, model(layer)), tmp_path), tmp_path / "m.onnx").ok


def test_the_verifier_reads_the_space_back_and_no_other(tmp_path: Path) -> None:
    derivation = derive(tmp_path, model("colour_space(space=yiq)"))
    document, text = json.loads(json.dumps(certificate(derivation))), emit(derivation)
    derive_again = partial(files.derived, document)
    emitted.check(text.encode(), document, derive_again)
    with pytest.raises(ForeignError):
        emitted.check(text.replace("'yiq'", "'yuv'").encode(), document, derive_again)
