"""Files that are no ONNX models, or damaged ones: a diagnostic, never a traceback."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from lipcompile.diagnostics import Diagnostic, InputError
from lipcompile.frontends.onnx import model as onnx_model
from lipcompile.frontends.options import Loaded, ModelOptions
from tests.frontends.onnx.onnx_models import floats, ints, model, node, save

SQUARE = {"w": floats(6, 6)}


def broken(content: bytes, folder: Path) -> Diagnostic:
    path = folder / "broken.onnx"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        onnx_model.load(path, ModelOptions())
    return caught.value.diagnostics[0]


def outcome(path: Path) -> tuple[str, Loaded | None]:
    try:
        return "", onnx_model.load(path, ModelOptions())
    except InputError as error:
        return error.diagnostics[0].code, None


@pytest.mark.parametrize(
    ("content", "code", "word"),
    [
        (b"", "LIP002", "empty"),
        (b"model m { input x: tensor[4] }\n", "LIP002", "text"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n", "LIP002", "Git LFS"),
        (b"PK\x03\x04rest", "LIP002", "zip archive"),
        (b"\x80\x02}q\x00.", "LIP002", "pickle"),
        (bytes(range(128, 256)) * 4, "LIP002", "not an ONNX model"),
        (b"\x08\x08", "LIP002", "no graph"),
        (b"\x00" * 64, "LIP002", "not an ONNX model"),
    ],
)
def test_files_that_are_no_models(content: bytes, code: str, word: str, tmp_path: Path) -> None:
    found = broken(content, tmp_path)
    assert found.code == code
    assert word in found.message
    assert found.help


def test_every_truncation_is_unusable_or_complete(tmp_path: Path) -> None:
    """Cut between two fields, a model may lack its metadata: nothing else can be missing unnoticed."""
    made = model([node("Gemm", "x w", "y")], ("n", 6), SQUARE, metadata={"lipcompile.loss": "cross_entropy"})
    whole = save(made, tmp_path).read_bytes()
    path = tmp_path / "cut.onnx"
    for length in range(1, len(whole)):
        path.write_bytes(whole[:length])
        code, loaded = outcome(path)
        assert loaded is None or (loaded.graph is not None and list(loaded.graph.parameters) == ["Gemm_y.weight"])
        assert loaded is not None or code in ("LIP002", "LIP003")


def test_random_damage_never_gives_a_traceback(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    nodes = [node("Conv", "x k", "h"), node("Reshape", "h s", "f"), node("Gemm", "f w", "y")]
    weights = {"k": floats(2, 1, 3, 3), "s": ints(0, -1), "w": floats(8, 2)}
    whole = save(model(nodes, ("n", 1, 4, 4), weights), tmp_path).read_bytes()
    path = tmp_path / "damaged.onnx"
    for _ in range(300):
        damaged = bytearray(whole)
        for position in rng.integers(0, len(whole), int(rng.integers(1, 4))):
            damaged[position] = rng.integers(0, 256)
        path.write_bytes(damaged)
        code, loaded = outcome(path)
        assert loaded is not None or code.startswith("LIP0")


def test_an_invalid_model_says_what_the_checker_says(tmp_path: Path) -> None:
    made = model([node("Relu", "nowhere", "y")], ("n", 6))
    found = broken(made.SerializeToString(), tmp_path)
    assert found.code == "LIP003"
    assert "nowhere" in found.message


@pytest.mark.parametrize(("opset", "word"), [(6, "opset_version"), (999, "upgrade onnx")])
def test_operator_sets_out_of_range(opset: int, word: str, tmp_path: Path) -> None:
    found = broken(model([node("Relu", "x", "y")], ("n", 6), opset=opset).SerializeToString(), tmp_path)
    assert found.code == "LIP007"
    assert str(opset) in found.message
    assert word in found.help


def test_weights_beside_the_file(tmp_path: Path) -> None:
    made = model([node("Gemm", "x w", "y")], ("n", 6), {"w": floats(6, 6)})
    path = tmp_path / "model.onnx"
    onnx.save(made, str(path), save_as_external_data=True, location="model.data", size_threshold=0)
    loaded = onnx_model.load(path, ModelOptions())
    assert loaded.graph is not None
    assert loaded.graph.parameters["Gemm_y.weight"].initial is not None
    (tmp_path / "model.data").unlink()
    with pytest.raises(InputError) as caught:
        onnx_model.load(path, ModelOptions())
    assert caught.value.diagnostics[0].code == "LIP004"


def test_a_path_that_cannot_be_read(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none.onnx"):
        with pytest.raises(InputError) as caught:
            onnx_model.load(path, ModelOptions())
        assert caught.value.diagnostics[0].code == "LIP001"
