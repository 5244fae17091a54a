"""The clip in front of an exported file, as the importer reads it where no certificate helps; and what is none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, NodeProto, numpy_helper

from lipcompile.core.derivation import Derivation
from lipcompile.emitters.onnx.emit import save, to_onnx
from lipcompile.frontends.options import ModelOptions
from lipcompile.pipeline import check
from tests.emitters.test_emit import derive

Change = Callable[[ModelProto], object]


def exported(folder: Path) -> ModelProto:
    derivation = derive(folder, "input x: tensor[2, 3], norm <= 2\n flatten dense(3)\n loss nll")
    assert derivation.analysis is not None
    return to_onnx(derivation.analysis.graph, clip_input=True)


def read(model: ModelProto, folder: Path) -> Derivation:
    path = folder / "m.onnx"
    save(model, path)
    return check(str(path), ModelOptions())


def of_type(model: ModelProto, op_type: str) -> NodeProto:
    """The first node of a type: the clip stands in front."""
    found: NodeProto = next(node for node in model.graph.node if node.op_type == op_type)
    return found


def put(model: ModelProto, name: str, value: object) -> None:
    """Give a constant another value."""
    (node,) = [node for node in model.graph.node if node.op_type == "Constant" and node.output[0] == name]
    old = numpy_helper.to_array(node.attribute[0].t)
    node.attribute[0].t.CopyFrom(numpy_helper.from_array(np.array(value, dtype=old.dtype)))


def last(model: ModelProto) -> NodeProto:
    """The Where that ends the clip."""
    found: NodeProto = [node for node in model.graph.node if node.op_type == "Where"][-1]
    return found


def another_numerator(model: ModelProto) -> None:
    extra = onnx.helper.make_node("Constant", [], ["other"], value=numpy_helper.from_array(np.array(3.0)))
    model.graph.node.insert(0, extra)
    of_type(model, "Div").input[0] = "other"


def test_the_clip_of_the_declared_ball_is_the_domain(tmp_path: Path) -> None:
    derivation = read(exported(tmp_path), tmp_path)
    assert derivation.analysis is not None
    assert [node.op.name for node in derivation.analysis.graph.nodes] == ["flatten", "dense"]


@pytest.mark.parametrize(("norm", "kept"), [("1", True), ("2", False), ("3", True)])
def test_the_clip_of_another_ball_is_one_more_node(norm: str, kept: bool, tmp_path: Path) -> None:
    model = exported(tmp_path)
    next(entry for entry in model.metadata_props if entry.key == "lipcompile.input_norm").value = norm
    derivation = read(model, tmp_path)
    assert derivation.analysis is not None
    names = [node.op.name for node in derivation.analysis.graph.nodes]
    assert names == ["clip_norm", "flatten", "dense"][0 if kept else 1 :]
    # K = X: the loss is 1-Lipschitz, and what the layer reads is as long as both balls allow.
    assert derivation.analysis.total.value == pytest.approx(min(int(norm), 2), rel=1e-12)


LOOKALIKES: dict[str, Change] = {
    "the other way round": lambda model: setattr(of_type(model, "Less"), "op_type", "Greater"),
    "a step": lambda model: put(model, of_type(model, "Where").input[1], 2.0),
    "another numerator": another_numerator,
    "no projection, but a jump": lambda model: put(model, last(model).input[1], 1.0),
    "another test": lambda model: setattr(of_type(model, "IsNaN"), "op_type", "IsInf"),
    "a test of something else": lambda model: of_type(model, "IsNaN").input.__setitem__(0, "x"),
    "something else put out": lambda model: last(model).input.__setitem__(2, "x"),
    "a part of the axes": lambda model: put(model, of_type(model, "ReduceSum").input[1], [2]),
    "the batch too": lambda model: put(model, of_type(model, "ReduceSum").input[1], [0, 1, 2]),
    "another sum": lambda model: setattr(of_type(model, "ReduceSum"), "op_type", "ReduceMean"),
    "a cube": lambda model: of_type(model, "Mul").input.__setitem__(1, of_type(model, "Where").input[1]),
    "a negative radius": lambda model: put(model, of_type(model, "Less").input[1], -2.0),
}


@pytest.mark.parametrize("what", LOOKALIKES)
def test_what_is_no_clip_is_refused(what: str, tmp_path: Path) -> None:
    model = exported(tmp_path)
    before = model.SerializeToString()
    LOOKALIKES[what](model)
    assert model.SerializeToString() != before
    derivation = read(model, tmp_path)
    assert not derivation.ok
    assert derivation.analysis is None
