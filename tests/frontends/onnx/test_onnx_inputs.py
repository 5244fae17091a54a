"""The inputs of a file: several, of tokens, with open sizes, with the batch elsewhere than in front."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from math import exp
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper

from lipcompile.diagnostics import Severity
from lipcompile.frontends.onnx import model as onnx_model
from lipcompile.frontends.options import Loaded
from lipcompile.pipeline import derive
from tests.frontends.onnx.onnx_models import Array, floats, ints, model, node, save
from tests.frontends.onnx.test_onnx_semantics import KEEP, emitted


def with_inputs(made: onnx.ModelProto, **more: tuple[int, tuple[int | str, ...]]) -> onnx.ModelProto:
    """Add inputs to a model of `x`: kind and shape by name."""
    for name, (kind, shape) in more.items():
        made.graph.input.append(helper.make_tensor_value_info(name, kind, shape))
    return made


def codes(loaded: Loaded) -> list[str]:
    return [d.code for d in loaded.diagnostics if d.severity == Severity.ERROR]


def run(path: Path, **inputs: Array) -> Array:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, inputs)[0])


def test_several_inputs_are_consecutive_parts_of_one(tmp_path: Path) -> None:
    nodes = [
        node("Flatten", "x", "fx"),
        node("Concat", "fx u", "both", axis=1),
        node("Gemm", "both w b", "y"),
    ]
    made = model(nodes, ("n", 2, 3), {"w": floats(10, 3), "b": floats(3)})
    path = save(with_inputs(made, u=(TensorProto.FLOAT, ("n", 4))), tmp_path)
    loaded = onnx_model.load(path, KEEP)
    assert loaded.graph is not None
    assert loaded.graph.input.shape == (10,)
    (note,) = [d for d in loaded.diagnostics if d.code == "LIP113"]
    assert note.severity == Severity.NOTE
    assert "`x` [2, 3], `u` [4]" in note.message
    x, u = floats(5, 2, 3), floats(5, 4, seed=1)
    joined = torch.from_numpy(np.concatenate([x.reshape(5, 6), u], 1))
    with torch.no_grad():
        found = emitted(loaded, tmp_path)(joined).numpy()
    np.testing.assert_allclose(found, run(path, x=x, u=u), rtol=1e-5, atol=1e-6)


def test_the_norm_of_several_inputs_bounds_them_together(tmp_path: Path) -> None:
    """y = 3x + 4u of inputs with ‖(x, u)‖ <= 1: the norm of y is 5, and so is the Lipschitz constant."""
    nodes = [node("Concat", "x u", "both", axis=1), node("Gemm", "both w", "y")]
    made = model(nodes, ("n", 1), {"w": np.array([[3, 0], [4, 0]], np.float32)})
    path = save(with_inputs(made, u=(TensorProto.FLOAT, ("n", 1))), tmp_path)
    options = replace(KEEP, input_norm=Fraction(1), loss="cross_entropy")
    derivation = derive(onnx_model.load(path, options), options)
    assert derivation.analysis is not None
    steepest = 2**0.5 / (1 + exp(-(2**0.5) * 5))  # of the cross entropy of two logits of norm 5
    assert float(derivation.analysis.total.value or 0) == pytest.approx(steepest, rel=1e-5)
    assert float(derivation.analysis.lipschitz.value or 0) == pytest.approx(5, rel=1e-5)


def test_tokens_select_rows_of_a_table(tmp_path: Path) -> None:
    nodes = [
        node("Cast", "x", "ids", to=TensorProto.INT64),
        node("Gather", "emb.weight ids", "rows"),
        node("ReduceMean", "rows", "mean", axes=[1], keepdims=0),
        node("Gemm", "mean w", "y"),
    ]
    made = model(nodes, ("n", 5), {"emb.weight": floats(7, 4), "w": floats(4, 3)}, kind=TensorProto.INT32)
    path = save(made, tmp_path)
    loaded = onnx_model.load(path, replace(KEEP, input_norm=None))
    assert loaded.graph is not None
    assert loaded.graph.input.tokens
    assert [n.op.name for n in loaded.graph.nodes] == ["embedding", "reduce_mean", "dense"]
    rows = np.linalg.norm(floats(7, 4).astype(float), axis=1).max()
    bound = loaded.graph.parameters["emb.table"].constraint.bound
    assert rows <= float(bound) <= rows * (1 + 1e-5)  # type: ignore[arg-type]
    x = np.random.default_rng(0).integers(0, 7, size=(6, 5)).astype(np.int32)
    with torch.no_grad():
        found = emitted(loaded, tmp_path)(torch.from_numpy(x).long()).numpy()
    np.testing.assert_allclose(found, run(path, x=x), rtol=1e-5, atol=1e-6)


def test_tokens_and_numbers_together_are_refused(tmp_path: Path) -> None:
    made = model([node("Gemm", "x w", "y")], ("n", 6), {"w": floats(6, 2)})
    path = save(with_inputs(made, ids=(TensorProto.INT64, ("n", 3))), tmp_path)
    assert codes(onnx_model.load(path, KEEP)) == ["LIP105"]


def test_open_sizes_are_asked_for_and_taken(tmp_path: Path) -> None:
    nodes = [node("Conv", "x k", "c"), node("GlobalAveragePool", "c", "p"), node("Flatten", "p", "y")]
    path = save(model(nodes, ("n", 2, "height", "width"), {"k": floats(4, 2, 3, 3)}), tmp_path)
    asked = onnx_model.load(path, KEEP)
    assert codes(asked) == ["LIP106"]
    assert "--input-shape 2,32,32" in asked.diagnostics[0].help
    given = replace(KEEP, input_shape={"": (2, 8, 9)})
    loaded = onnx_model.load(path, given)
    assert loaded.graph is not None
    assert loaded.graph.input.shape == (2, 8, 9)


@pytest.mark.parametrize("shape", [{"": (3, 8, 9)}, {"": (2, 8)}, {"": (2, 0, 8)}, {"z": (2, 8, 8)}])
def test_shapes_that_do_not_fit(shape: dict[str, tuple[int, ...]], tmp_path: Path) -> None:
    path = save(model([node("Relu", "x", "y")], ("n", 2, "height", "width")), tmp_path)
    assert codes(onnx_model.load(path, replace(KEEP, input_shape=shape))) == ["LIP106"]


def test_a_batch_behind_the_sequence(tmp_path: Path) -> None:
    """[steps, batch, features], as recurrent networks take it: the file names the axis."""
    nodes = [
        node("MatMul", "x w", "h"),
        node("ReduceMean", "h", "y", axes=[0], keepdims=0),
    ]
    path = save(model(nodes, (5, "batch", 3), {"w": floats(3, 2)}), tmp_path)
    loaded = onnx_model.load(path, KEEP)
    assert loaded.graph is not None
    assert loaded.graph.input.shape == (5, 3)
    x = floats(5, 4, 3)
    with torch.no_grad():
        found = emitted(loaded, tmp_path)(torch.from_numpy(x.swapaxes(0, 1).copy())).numpy()
    np.testing.assert_allclose(found, run(path, x=x), rtol=1e-5, atol=1e-6)


def test_a_constant_for_each_example_is_refused(tmp_path: Path) -> None:
    """A table of as many rows as the batch has examples would treat them differently."""
    path = save(model([node("Add", "x c", "y")], (4, 3), {"c": floats(4, 3)}), tmp_path)
    assert codes(onnx_model.load(path, KEEP)) == ["LIP108"]


def test_sizes_computed_from_the_batch(tmp_path: Path) -> None:
    """batch + 1 is no size of any example; batch·2/2 is the batch."""
    head = [node("Shape", "x", "s"), node("Gather", "s zero", "b")]
    weights = {"zero": ints(0), "one": ints(1), "two": ints(2), "rest": ints(-1)}
    halved = [*head, node("Mul", "b two", "d"), node("Div", "d two", "e"), node("Concat", "e rest", "t", axis=0)]
    good = model([*halved, node("Reshape", "x t", "y")], ("n", 2, 3), weights)
    assert onnx_model.load(save(good, tmp_path), KEEP).graph is not None
    more = [*head, node("Add", "b one", "e"), node("Concat", "e rest", "t", axis=0)]
    bad = model([*more, node("Reshape", "x t", "y")], ("n", 2, 3), weights)
    assert codes(onnx_model.load(save(bad, tmp_path), KEEP)) == ["LIP108"]
    less = [*head, node("Mod", "b two", "e"), node("Concat", "e rest", "t", axis=0)]
    odd = model([*less, node("Reshape", "x t", "y")], ("n", 2, 3), weights)
    assert "LIP108" in codes(onnx_model.load(save(odd, tmp_path), KEEP))
