"""Activations from ONNX: computed as the reference does, or refused."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

from lipcompile.core.record import Constraint
from lipcompile.frontends.onnx import model as onnx_model
from lipcompile.frontends.options import ModelOptions
from tests.frontends.onnx.onnx_models import Array, floats, model, node, save
from tests.frontends.onnx.test_onnx_semantics import agree

FLAT = node("Flatten", "h", "y")
Weights = dict[str, Array]


def number(value: float) -> Array:
    return np.array(value, np.float32)


CASES: dict[str, tuple[onnx.NodeProto, int, Weights]] = {
    "elu": (node("Elu", "x", "h"), 17, {}),
    "elu, alpha": (node("Elu", "x", "h", alpha=2.5), 22, {}),
    "celu": (node("Celu", "x", "h", alpha=0.3), 17, {}),
    "selu": (node("Selu", "x", "h"), 17, {}),
    "gelu": (node("Gelu", "x", "h"), 20, {}),
    "gelu, approximate": (node("Gelu", "x", "h", approximate="tanh"), 20, {}),
    "swish": (node("Swish", "x", "h"), 24, {}),
    "mish": (node("Mish", "x", "h"), 18, {}),
    "hard swish": (node("HardSwish", "x", "h"), 17, {}),
    "hard sigmoid": (node("HardSigmoid", "x", "h"), 17, {}),
    "hard sigmoid of torch": (node("HardSigmoid", "x", "h", alpha=1 / 6, beta=0.25), 17, {}),
    "softsign": (node("Softsign", "x", "h"), 17, {}),
    "clip": (node("Clip", "x a b", "h"), 17, {"a": number(-0.5), "b": number(0)}),
    "clip below": (node("Clip", "x a", "h"), 17, {"a": number(-0.5)}),
    "clip above": (node("Clip", "x _ b", "h"), 17, {"b": number(0.25)}),
    "clip at zero": (node("Clip", "x a", "h"), 13, {"a": number(0)}),
    "clip, infinite": (node("Clip", "x a b", "h"), 17, {"a": number(-np.inf), "b": number(np.inf)}),
    "clip, no bounds": (node("Clip", "x", "h"), 17, {}),
    "clip, largest float": (node("Clip", "x a b", "h"), 17, {"a": number(-3.4028235e38), "b": number(0.5)}),
    "clip by attributes": (node("Clip", "x", "h", min=0.0, max=0.75), 7, {}),
    "prelu of channels": (node("PRelu", "x s", "h"), 17, {"s": floats(4, 1, 1)}),
    "prelu of channels, with the batch": (node("PRelu", "x s", "h"), 17, {"s": floats(1, 4, 1, 1)}),
    "prelu of columns": (node("PRelu", "x s", "h"), 17, {"s": floats(6)}),
    "prelu of rows": (node("PRelu", "x s", "h"), 9, {"s": floats(5, 1)}),
    "prelu, shared": (node("PRelu", "x s", "h"), 17, {"s": floats(1, 1, 1)}),
    "sign": (node("Sign", "x", "h"), 17, {}),
    "shrink": (node("Shrink", "x", "h", lambd=0.75), 17, {}),
}


@pytest.mark.parametrize("case", CASES)
def test_imports_agree_with_the_reference(case: str, tmp_path: Path) -> None:
    made, opset, weights = CASES[case]
    agree(model([made, FLAT], ("n", 4, 5, 6), weights, opset=opset), tmp_path)


REFUSED: list[tuple[str, str, onnx.NodeProto, int, Weights]] = [
    ("LIP100", "jumps", node("ThresholdedRelu", "x", "y"), 17, {}),
    ("LIP102", "none or tanh", node("Gelu", "x", "y", approximate="sigmoid"), 20, {}),
    ("LIP110", "bias", node("Shrink", "x", "y", bias=0.25), 17, {}),
    ("LIP104", "alpha", node("Celu", "x", "y", alpha=-1.0), 17, {}),
    ("LIP104", "offset", node("HardSigmoid", "x", "y", beta=-1.0), 17, {}),
    ("LIP104", "low", node("Clip", "x a b", "y"), 17, {"a": number(1), "b": number(0)}),
    ("LIP304", "NaN", node("Clip", "x a", "y"), 17, {"a": number(np.nan)}),
    ("LIP304", "NaN", node("Clip", "x a", "y"), 17, {"a": number(np.inf)}),
    ("LIP110", "constant", node("Clip", "x x", "y"), 17, {}),
    ("LIP110", "constant", node("PRelu", "x x", "y"), 17, {}),
    ("LIP110", "one axis", node("PRelu", "x s", "y"), 17, {"s": floats(2, 6)}),
    ("LIP102", "do not fit", node("PRelu", "x s", "y"), 17, {"s": floats(5)}),
    ("LIP108", "from example to example", node("PRelu", "x s", "y"), 17, {"s": floats(3, 1, 1)}),
    # Longer shapes would put an axis before the batch.
    ("LIP102", "does not fit", node("PRelu", "x s", "y"), 17, {"s": floats(1, 1, 1, 1)}),
    ("LIP102", "must be a single number", node("Clip", "x a", "y"), 17, {"a": floats(1, 1, 1, 1)}),
    ("LIP102", "does not fit", node("Pow", "x e", "y"), 17, {"e": np.full((1, 1, 1, 1), 2, np.float32)}),
]


@pytest.mark.parametrize("case", REFUSED, ids=[f"{c} {made.op_type}" for c, _, made, _, _ in REFUSED])
def test_refusals(case: tuple[str, str, onnx.NodeProto, int, Weights], tmp_path: Path) -> None:
    code, word, made, opset, weights = case
    path = save(model([made], ("n", 2, 6), weights, opset=opset), tmp_path)
    loaded = onnx_model.load(path, ModelOptions(input_norm=Fraction(1)))
    (found,) = (d for d in loaded.diagnostics if d.severity == "error")
    assert (found.code, word in f"{found.message} {found.help}") == (code, True)


def test_a_slope_outside_its_box_is_told(tmp_path: Path) -> None:
    slope = np.array([0.5, -3.0], np.float32)
    path = save(model([node("PRelu", "x s", "y")], ("n", 2), {"s": slope}), tmp_path)
    loaded = onnx_model.load(path, ModelOptions())
    assert loaded.graph is not None
    (parameter,) = loaded.graph.parameters.values()
    assert parameter.constraint == Constraint("box", Fraction(1))
    assert [d.code for d in loaded.diagnostics] == ["LIP305"]
    kept = onnx_model.load(path, ModelOptions(constraint="keep"))
    assert kept.graph is not None
    (parameter,) = kept.graph.parameters.values()
    assert 3 <= parameter.constraint.bound <= Fraction(3.00001)  # type: ignore[operator]
    assert kept.diagnostics == ()


class Net(torch.nn.Module):
    """Activations as torch writes them."""

    def __init__(self) -> None:
        super().__init__()
        self.prelu = torch.nn.PReLU(6, init=-0.5)
        self.first, self.second = torch.nn.Linear(6, 6), torch.nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> Any:
        x = torch.nn.functional.elu(self.first(x), 0.5)
        x = torch.nn.functional.hardtanh(self.prelu(x), -0.25, 0.5)
        return torch.nn.functional.relu6(torch.nn.functional.selu(torch.nn.functional.hardsigmoid(self.second(x))))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the tracing exporter needs nothing beside torch
def test_an_export_of_torch(tmp_path: Path) -> None:
    torch.manual_seed(0)
    path, axes = tmp_path / "net.onnx", {"x": {0: "n"}}
    example = (torch.randn(2, 6),)
    torch.onnx.export(Net().eval(), example, str(path), dynamo=False, input_names=["x"], dynamic_axes=axes)
    loaded = agree(onnx.load(path), tmp_path)
    assert loaded.graph is not None
    names = [n.op.name for n in loaded.graph.nodes if not n.op.name.startswith("dense")]
    assert names == ["elu", "prelu", "hardtanh", "hard_sigmoid", "selu", "hardtanh"]
