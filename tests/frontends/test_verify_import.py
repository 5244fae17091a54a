"""Imports are held against their originals: right ones agree, wrong ones are refused, nothing is left behind."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from lipcompile_torch.deploy import deployment
from onnx import TensorProto
from torch import nn

from lipcompile import __main__, pipeline
from lipcompile.cli.shared.verdicts import verified
from lipcompile.core.backend import find
from lipcompile.diagnostics import Diagnostic
from lipcompile.frontends.onnx import nodes as visit
from lipcompile.frontends.onnx.file import session
from lipcompile.frontends.onnx.operators import IMPORTERS
from lipcompile.frontends.options import ModelOptions, parse_loss
from lipcompile.frontends.torch import module as torch_module
from tests.frontends.onnx.onnx_models import floats, model, node, save

Capture = pytest.CaptureFixture[str]
Array = Any
ONE = Fraction(1)


def network(folder: Path, *extra: onnx.NodeProto, last: str = "h", **given: Any) -> Path:
    """x [batch, 6] -> Gemm -> extra -> Gemm, whose weights are far outside of their default constraints."""
    weights = {
        "first.weight": floats(8, 6, seed=1, scale=2.0),
        "first.bias": floats(8, seed=2),
        "second.weight": floats(3, 8, seed=3, scale=2.0),
        "second.bias": floats(3, seed=4),
    }
    nodes = [
        node("Gemm", "x first.weight first.bias", "h", transB=1),
        *extra,
        node("Gemm", f"{last} second.weight second.bias", "y", transB=1),
    ]
    return save(model(nodes, given.pop("shape", ["batch", 6]), weights, **given), folder)


def check(path: Path, **options: Any) -> tuple[Diagnostic, Any]:
    """What the check of an import says, and the derivation."""
    chosen = ModelOptions(**options)
    loaded = pipeline.load(str(path), chosen)
    derivation = verified(loaded, pipeline.derive(loaded, chosen), find())
    (found,) = [one for one in derivation.diagnostics if one.code in ("LIP320", "LIP321")]
    return found, derivation


@pytest.mark.parametrize(
    "options",
    [
        {},  # neither norm nor loss
        {"input_norm": ONE, "loss": "cross_entropy"},
        {"input_norm": Fraction(1000), "loss": "cross_entropy", "constraint": "keep"},
        {"input_norm": ONE, "loss": "absolute_error", "freeze": ("first.*",)},
    ],
)
def test_a_right_import_agrees(tmp_path: Path, options: dict[str, Any]) -> None:
    found, derivation = check(network(tmp_path, node("Relu", "h", "r"), last="r"), **options)
    assert (found.code, found.severity) == ("LIP321", "note")
    assert "what onnxruntime computes" in found.message
    assert derivation.ok


def wrong(monkeypatch: pytest.MonkeyPatch, op_type: str, importer: Callable[..., Any]) -> None:
    table = MappingProxyType({**IMPORTERS, op_type: importer})
    monkeypatch.setattr(visit, "IMPORTERS", table)


@pytest.fixture
def wrong_relu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever imports Relu takes it for Abs."""
    wrong(monkeypatch, "Relu", IMPORTERS["Abs"])


@pytest.mark.usefixtures("wrong_relu")
def test_a_wrong_import_is_refused_and_nothing_is_written(tmp_path: Path, capsys: Capture) -> None:
    path = network(tmp_path, node("Relu", "h", "r"), last="r")
    output = tmp_path / "out.py"
    common = [str(path), "--input-norm", "1", "--loss", "cross_entropy"]
    assert __main__.run(["compile", *common, "-o", str(output)]) == 1
    err = capsys.readouterr().err
    assert "error[LIP320]" in err
    assert "report" in err
    assert not output.exists()
    assert __main__.run(["compile", *common, "-o", str(output), "--no-verify-import"]) == 0
    assert output.exists()


@pytest.mark.usefixtures("wrong_relu")
def test_check_does_it_when_asked(tmp_path: Path, capsys: Capture) -> None:
    path = str(network(tmp_path, node("Relu", "h", "r"), last="r"))
    for options, code in (([], 0), (["--no-verify-import"], 0), (["--verify-import"], 1)):
        assert __main__.run(["check", path, "--format", "json", *options]) == code
        answer = json.loads(capsys.readouterr().out)
        assert answer["ok"] is (code == 0)
        assert ("LIP320" in {found["code"] for found in answer["diagnostics"]}) is (code == 1)


def test_what_was_not_imported_is_left_alone(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "m.lip"
    path.write_text("model m {\n input x: tensor[4], norm <= 1\n dense(2)\n loss cross_entropy\n}")
    assert __main__.run(["check", str(path), "--verify-import"]) == 0
    assert "LIP32" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("extra", "given"),
    [
        ([node("Relu", "h", "r")], {"shape": [5, 6]}),  # a batch of fixed size
        ([node("Relu", "h", "r")], {"shape": [1, 6]}),
        ([node("Relu", "h", "r")], {"shape": [11, 6]}),
        ([node("Dropout", "h", "r", ratio=0.9)], {"opset": 10}),
        ([node("Tanh", "h", "r")], {"opset": 7}),
    ],
)
def test_what_files_look_like(tmp_path: Path, extra: list[onnx.NodeProto], given: dict[str, Any]) -> None:
    found, _ = check(network(tmp_path, *extra, last="r", **given), input_norm=Fraction(10))
    assert found.code == "LIP321"
    assert "computes what" in found.message


def test_a_file_that_draws_in_each_run_is_not_held_against_its_runs(tmp_path: Path) -> None:
    drops = [
        node("Constant", "", "ones", value_floats=[1.0] * 8),
        node("Shape", "h", "s"),
        node("Expand", "ones s", "o"),
        node("RandomUniformLike", "o", "u"),
        node("Constant", "", "kept", value_float=0.5),
        node("Less", "u kept", "l"),
        node("Cast", "l", "c", to=1),
        node("Mul", "h c", "r"),
    ]
    found, derivation = check(network(tmp_path, *drops, last="r"), input_norm=Fraction(10))
    assert (found.code, found.severity) == ("LIP321", "note")
    assert "draws random numbers in each run" in found.message
    assert derivation.ok


@pytest.mark.parametrize(("kind", "name"), [(TensorProto.FLOAT16, "float16"), (TensorProto.DOUBLE, "float64")])
def test_other_precisions(tmp_path: Path, kind: int, name: str) -> None:
    made = model([node("Gemm", "x w", "y", transB=1)], ["batch", 6], {"w": floats(3, 6).astype(name)}, kind=kind)
    made.graph.output[0].type.tensor_type.elem_type = kind
    found, _ = check(save(made, tmp_path), input_norm=ONE)
    assert "computes what onnxruntime computes" in found.message


def test_a_log_softmax_at_the_end_is_part_of_the_loss(tmp_path: Path) -> None:
    nodes = [node("Gemm", "x w", "h", transB=1), node("LogSoftmax", "h", "y", axis=-1)]
    path = save(model(nodes, ["batch", 6], {"w": floats(3, 6)}), tmp_path)
    found, derivation = check(path, input_norm=ONE, loss="nll")
    assert "LIP215" in {one.code for one in derivation.diagnostics}
    assert found.code == "LIP321"


@pytest.mark.parametrize("classes", [2, 3])
def test_a_log_softmax_over_channels_is_part_of_the_loss_of_pixels(tmp_path: Path, classes: int) -> None:
    """With as many classes as rows and columns, too."""
    nodes = [node("Conv", "x w", "h"), node("LogSoftmax", "h", "y", axis=1)]
    path = save(model(nodes, ["batch", 2, 3, 3], {"w": floats(classes, 2, 1, 1)}), tmp_path)
    found, derivation = check(path, input_norm=ONE, loss="pixel_cross_entropy")
    assert "LIP215" in {one.code for one in derivation.diagnostics}
    assert found.code == "LIP321"


def test_a_log_softmax_of_another_axis_is_no_part_of_the_loss(tmp_path: Path) -> None:
    nodes = [node("Conv", "x w", "h"), node("LogSoftmax", "h", "y", axis=-1)]
    path = save(model(nodes, ["batch", 2, 3, 3], {"w": floats(3, 2, 1, 1)}), tmp_path)
    found, derivation = check(path, input_norm=ONE, loss="pixel_cross_entropy")
    assert "LIP215" not in {one.code for one in derivation.diagnostics}
    assert found.code == "LIP321"


def test_the_reference_stands_in_for_onnxruntime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("not today\nnor tomorrow")

    monkeypatch.setattr(session, "_on_processor", broken)
    path = network(tmp_path, node("Relu", "h", "r"), last="r")
    found, _ = check(path, input_norm=ONE)
    assert "what the ONNX reference computes" in found.message
    monkeypatch.setattr(session, "_by_reference", broken)
    found, derivation = check(path, input_norm=ONE)
    assert found.code == "LIP321"
    assert "could not be checked: onnxruntime: not today; the ONNX reference: not today" in found.message
    assert derivation.ok


def test_a_gpu_that_onnxruntime_does_not_reach_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    found, _ = check(network(tmp_path, node("Relu", "h", "r"), last="r"), input_norm=ONE)
    assert "what onnxruntime computes" in found.message
    assert capfd.readouterr() == ("", "")


def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = network(tmp_path, node("Relu", "h", "r"), last="r")
    modules, files = set(sys.modules), set(tmp_path.rglob("*"))
    check(path, input_norm=ONE)
    assert "emitted" not in set(sys.modules) - modules
    assert set(tmp_path.rglob("*")) == files


# Modules of torch


class Net(nn.Module):
    """Dropout, in training mode; a branch that tracing does not see."""

    def __init__(self, *, sly: bool = False) -> None:
        super().__init__()
        self.sly = sly
        self.body = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Tanh(), nn.Linear(8, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.body(x)
        # What torch.export gives has another class than what a program gives.
        return 2 * y if self.sly and type(x) is torch.Tensor else y


def of_module(module: nn.Module, example: Any = (6,), **options: Any) -> Diagnostic:
    chosen = ModelOptions(**options)
    loaded = torch_module.from_example(module, example, chosen)
    derivation = verified(loaded, pipeline.derive(loaded, chosen), find())
    assert derivation.analysis is None or derivation.ok
    return derivation.diagnostics[-1]


def test_a_module_is_its_own_original() -> None:
    module = Net()
    found = of_module(module, input_norm=ONE, loss="cross_entropy")
    assert "what the torch module computes" in found.message
    assert all(part.training for part in module.modules())


def test_what_tracing_does_not_see_is_found() -> None:
    assert of_module(Net(sly=True)).code == "LIP320"


def test_several_inputs() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = nn.Linear(4, 3), nn.Linear(6, 3)

        def forward(self, x: torch.Tensor, *, y: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.left(x) + self.right(y.flatten(1))
            return out

    example = {"x": torch.zeros(2, 4), "y": torch.zeros(2, 2, 3)}
    assert "computes what" in of_module(Both(), example, input_norm=ONE).message


def test_tokens() -> None:
    module = nn.Sequential(nn.Embedding(7, 4), nn.Flatten(), nn.Linear(12, 2))
    assert "computes what" in of_module(module, (3,), loss="cross_entropy").message


# The measure itself


@dataclasses.dataclass
class Subject:
    """A small emitted program, and what it computes at its imported weights, by hand."""

    program: Any
    weight: Array

    def original(self, x: Array) -> Array:
        return x @ self.weight.T


@pytest.fixture
def subject(tmp_path: Path) -> Subject:
    weight = floats(3, 6, scale=5.0)
    path = save(model([node("Gemm", "x w", "y", transB=1)], ["batch", 6], {"w": weight}), tmp_path)
    derivation = pipeline.check(str(path), ModelOptions(input_norm=ONE, loss="cross_entropy"))
    from lipcompile.core.backend import program

    module = program(Path("subject.py"), find().emit(derivation))
    return Subject(module.Model, weight.astype(np.float64))


def test_weights_are_compared_before_projection(subject: Subject) -> None:
    assert np.linalg.norm(subject.weight, 2) > 2
    found = deployment.agreement_with_original(subject.program, subject.original)
    assert found.agrees
    assert found.examples == 8
    assert found.relative < 1e-6
    projected = subject.program()
    (weight,) = projected.state_dict().values()
    assert np.linalg.norm(weight.numpy(), 2) <= 1


@pytest.mark.parametrize("share", [1e-3, -1e-3, 1.0])
def test_a_small_difference_counts(subject: Subject, share: float) -> None:
    found = deployment.agreement_with_original(subject.program, lambda x: subject.original(x) * (1 + share))
    assert not found.agrees
    assert found.relative == pytest.approx(abs(share) / (1 + share), rel=1e-2)


def test_rounding_does_not(subject: Subject) -> None:
    noise = np.random.default_rng(0)

    def rounded(x: Array) -> Array:
        y = subject.original(x)
        return y * (1 + 3e-7 * noise.uniform(-1, 1, y.shape))

    assert deployment.agreement_with_original(subject.program, rounded).agrees


def constant(value: float, x: Array) -> Array:
    return np.full((len(x), 3), value)


def test_what_is_no_number_never_agrees(subject: Subject) -> None:
    for value in (np.nan, np.inf):
        found = deployment.agreement_with_original(subject.program, partial(constant, value))
        assert not found.agrees


@pytest.mark.parametrize("wrong", [False, True])
def test_examples_without_a_finite_output_are_left_out(subject: Subject, wrong: bool) -> None:
    """As of a transformer for a text of padding alone."""

    def original(x: Array) -> Array:
        y = subject.original(x) * (1.001 if wrong else 1)
        y[::2] = np.nan
        return y

    found = deployment.agreement_with_original(subject.program, original)
    assert (found.examples, found.agrees) == (4, not wrong)


def test_a_module_without_a_finite_output_could_not_be_checked() -> None:
    class Nothing(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) + torch.log(-(x * x).sum(1, keepdim=True) - 1)

    found = of_module(Nothing(6, 3), bounds="clip")
    assert (found.code, "could not be checked" in found.message) == ("LIP321", True)


def test_other_shapes_are_told(subject: Subject) -> None:
    with pytest.raises(deployment.ShapeError, match=r"returns shape \[8, 2\]"):
        deployment.agreement_with_original(subject.program, lambda x: subject.original(x)[:, :2])


def test_examples_lie_in_the_domain(subject: Subject) -> None:
    seen: list[Array] = []

    def original(x: Array) -> Array:
        seen.append(x)
        return subject.original(x)

    for batch in (None, 3, 16):
        seen.clear()
        deployment.agreement_with_original(subject.program, original, batch=batch)
        assert {len(x) for x in seen} == {batch or 8}
        norms = np.linalg.norm(np.concatenate(seen), axis=1)
        assert norms.max() <= 1
        assert norms.max() > 0.99
        assert norms.min() < 0.02


def test_a_difference_at_one_size_of_inputs_is_found(subject: Subject) -> None:
    def original(x: Array) -> Array:
        small = np.linalg.norm(x, axis=1, keepdims=True) < 0.02
        return subject.original(x) * np.where(small, 1.1, 1)

    assert not deployment.agreement_with_original(subject.program, original).agrees


def test_losses_without_a_shape_complete_a_module() -> None:
    assert parse_loss("absolute_error").loss.target == "numbers of the shape of the output"
