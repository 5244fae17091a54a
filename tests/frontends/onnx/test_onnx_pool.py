"""Pools as ONNX runtime computes them: ceil_mode, divisors, p-norms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from lipcompile.frontends.onnx import model as onnx_model
from tests.frontends.onnx.onnx_models import Array, model, node, save
from tests.frontends.onnx.test_onnx_semantics import FLAT, KEEP, emitted

SIDES = {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 0, 1, 1]}
CEIL = {**SIDES, "ceil_mode": 1}
POOLS: dict[str, tuple[str, dict[str, Any]]] = {
    "max": ("MaxPool", CEIL),
    "average": ("AveragePool", CEIL),
    "average, padding counted": ("AveragePool", {**CEIL, "count_include_pad": 1}),
    "average, same size": ("AveragePool", {"kernel_shape": [3, 2], "auto_pad": "SAME_LOWER"}),
    "l1": ("LpPool", {**CEIL, "p": 1}),
    "l2": ("LpPool", {**CEIL, "p": 2}),
    "l3, dilated": ("LpPool", {**SIDES, "p": 3, "dilations": [1, 2]}),
    "global l1": ("GlobalLpPool", {"p": 1}),
    "global l2": ("GlobalLpPool", {}),
    "global l5": ("GlobalLpPool", {"p": 5}),
}


def runtime(made: onnx.ModelProto, x: Array) -> Array:
    session = onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x": x})[0])


@pytest.mark.parametrize("name", POOLS)
@pytest.mark.parametrize("sizes", [(5, 6), (6, 5), (7, 4)])
def test_pools_agree_with_the_runtime(name: str, sizes: tuple[int, int], tmp_path: Path) -> None:
    operator, attributes = POOLS[name]
    made = model([node(operator, "x", "h", **attributes), FLAT], ("batch", 2, *sizes), opset=18)
    module = emitted(onnx_model.load(save(made, tmp_path), KEEP), tmp_path)
    x = np.random.default_rng(0).standard_normal((3, 2, *sizes)).astype(np.float32)
    np.testing.assert_allclose(
        module(torch.from_numpy(x)).detach().numpy(), runtime(made, x), rtol=2e-5, atol=2e-6
    )
