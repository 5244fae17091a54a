"""Emitted modules compute what the imported ONNX file computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch

from lipcompile.core.backend import instantiate
from lipcompile.diagnostics import Severity
from lipcompile.emitters.torch.emit import emit
from lipcompile.frontends.options import ModelOptions
from lipcompile.pipeline import check

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.onnx"))


def module_of(path: Path, options: ModelOptions, folder: Path) -> Any:
    derivation = check(str(path), options)
    assert derivation.ok, derivation.diagnostics
    assert not [d for d in derivation.diagnostics if d.severity == Severity.WARNING]
    return instantiate(folder / "emitted.py", emit(derivation))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
@pytest.mark.parametrize("constraint", [None, "keep"])
def test_imported_weights_are_the_starting_point(tmp_path: Path, path: Path, constraint: Any) -> None:
    model = module_of(path, ModelOptions(constraint=constraint), tmp_path).eval()
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    x = np.random.default_rng(0).normal(size=(16, *model.input_shape)).astype(np.float32)
    x *= model.input_norm / np.linalg.norm(x.reshape(16, -1), axis=1).max()  # inside the declared ball
    (expected,) = session.run(None, {session.get_inputs()[0].name: x})
    with torch.no_grad():
        found = model(torch.from_numpy(x)).numpy()
    assert np.abs(found - expected).max() <= 1e-5
