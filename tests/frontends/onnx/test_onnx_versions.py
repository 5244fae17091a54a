"""One network in every operator set from 7 on: what was an attribute once is an operand later."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, defs, helper, numpy_helper

from lipcompile.diagnostics import InputError
from lipcompile.frontends.onnx import model as onnx_model
from lipcompile.frontends.options import ModelOptions
from tests.frontends.onnx.onnx_models import Array, floats, ints, model, node, save
from tests.frontends.onnx.test_onnx_semantics import KEEP, agree, emitted

WEIGHTS: Mapping[str, Array] = {
    "w": floats(4, 1, 3, 3),
    **{name: np.abs(floats(4, seed=seed)) + 0.5 for seed, name in enumerate(("g", "e", "m", "v"))},
}


# Before, the reference implementation of BatchNormalization is wrong or fails; behind, onnxruntime lacks sets.
BY_REFERENCE = 14


class Network:
    """Writes a network in the forms of one operator set."""

    def __init__(self, version: int) -> None:
        self.version = version
        self.nodes: list[onnx.NodeProto] = []
        self.weights = dict(WEIGHTS)

    def add(
        self, since: int, op_type: str, inputs: str, outputs: str, given: Mapping[str, Any], **more: Any
    ) -> None:
        """Add a node whose `given` are attributes before the operator set `since`, and operands from it on."""
        named = inputs.split()
        if self.version < since:
            more |= {name: value for name, value in given.items() if value is not None}
        else:
            for name, value in given.items():
                stored = f"{name}_{len(self.nodes)}"
                named.append("_" if value is None else stored)
                if value is not None:
                    kind = np.float32 if isinstance(value, float) else np.int64
                    self.weights[stored] = np.array(value, kind)
        self.nodes.append(node(op_type, " ".join(named), outputs, **more))

    def made(self) -> onnx.ModelProto:
        """The whole network: [n, 6, 5] to [n, 3]."""
        self.add(13, "Unsqueeze", "x", "a", {"axes": [1]})
        self.add(99, "Conv", "a w", "b", {"pads": [1, 1, 1, 1]})
        self.add(99, "BatchNormalization", "b g e m v", "c", {}, epsilon=0.25)
        self.add(11, "Clip", "c", "d", {"min": -1.0, "max": 2.0})
        self.add(99, "Dropout", "d", "f", {})
        self.add(11, "Pad", "f", "h", {"pads": [0, 0, 1, 0, 0, 0, 0, 2]})
        self.add(10, "Slice", "h", "i", {"starts": [1, -6], "ends": [9, -1], "axes": [2, 3]})
        self.add(13, "Split", "i", "j k", {"split": [3, 1]}, axis=1)
        self.add(18, "ReduceMean", "j", "l", {"axes": [3]}, keepdims=1)
        self.add(13, "ReduceSum", "l", "o", {"axes": [2]}, keepdims=1)
        self.larger()
        self.add(13, "Squeeze", "q", "r", {"axes": [2]})
        self.add(99, "Flatten", "r", "s", {"axis": 1})
        self.add(10, "TopK", "s", "y t", {"k": 3 if self.version < 10 else [3]}, axis=-1)
        return model(self.nodes, ("n", 6, 5), self.weights, opset=self.version)

    def larger(self) -> None:
        """Enlarge the last axis twice, by Upsample and by Resize; set 10 has neither that is understood."""
        if self.version == 10:
            self.add(99, "Identity", "o", "q", {})
        elif self.version < 10:
            self.weights["scales"] = np.array([1, 1, 1, 2], np.float32)
            attributes = {"scales": [1.0, 1.0, 1.0, 2.0]} if self.version < 9 else {}
            self.nodes.append(
                node("Upsample", "o" if attributes else "o scales", "q", mode="nearest", **attributes)
            )
        else:
            self.weights["scales"] = np.array([1, 1, 1, 2], np.float32)
            rule = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
            self.weights["roi"] = np.zeros(0, np.float32)
            self.nodes.append(node("Resize", "o roi scales", "q", mode="nearest", **rule))


@pytest.mark.parametrize("version", range(7, defs.onnx_opset_version() + 1))
def test_one_network_in_every_operator_set(version: int, tmp_path: Path) -> None:
    made = Network(version).made()
    if version >= BY_REFERENCE:
        agree(made, tmp_path)
        return
    module = emitted(onnx_model.load(save(made, tmp_path), KEEP), tmp_path)
    session = onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    x = np.random.default_rng(1).standard_normal((3, 6, 5)).astype(np.float32)
    np.testing.assert_allclose(
        module(torch.from_numpy(x)).detach().numpy(), session.run(["y"], {"x": x})[0], rtol=2e-5, atol=2e-6
    )


@pytest.mark.parametrize("version", [6, defs.onnx_opset_version() + 1])
def test_other_operator_sets_are_refused(version: int, tmp_path: Path) -> None:
    made = model([node("Relu", "x", "y")], ("n", 4), opset=7)
    made.opset_import[0].version = version
    with pytest.raises(InputError) as raised:
        onnx_model.load(save(made, tmp_path), ModelOptions())
    assert [found.code for found in raised.value.diagnostics] == ["LIP007"]


# Weights


def stored(array: Array, kind: int) -> onnx.TensorProto:
    return helper.make_tensor("w", kind, array.shape, array.reshape(-1).tolist())


@pytest.mark.parametrize("kind", [TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE])
def test_weights_of_every_precision(kind: int, tmp_path: Path) -> None:
    made = model([node("Cast", "w", "v", to=TensorProto.FLOAT), node("Gemm", "x v", "y")], ("n", 4))
    made.graph.initializer.append(stored(floats(4, 3), kind))
    loaded = agree(made, tmp_path)
    assert loaded.graph is not None
    (parameter,) = loaded.graph.parameters.values()
    exact = numpy_helper.to_array(made.graph.initializer[0]).astype(np.float64)
    assert parameter.initial is not None
    np.testing.assert_array_equal(parameter.initial.T, exact.astype(np.float32))


@pytest.mark.parametrize("kind", [TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE])
def test_whole_networks_of_every_precision(kind: int, tmp_path: Path) -> None:
    made = model([node("Gemm", "x w", "y")], ("n", 4), kind=kind)
    made.graph.initializer.append(stored(floats(4, 3), kind))
    loaded = onnx_model.load(save(made, tmp_path), ModelOptions())
    assert loaded.graph is not None
    (parameter,) = loaded.graph.parameters.values()
    exact = numpy_helper.to_array(made.graph.initializer[0])
    assert parameter.initial is not None
    np.testing.assert_array_equal(parameter.initial.T, exact.astype(parameter.initial.dtype))


def test_weights_listed_as_inputs_are_no_inputs(tmp_path: Path) -> None:
    made = model([node("Gemm", "x w", "y")], ("n", 4), {"w": floats(4, 3)})
    made.graph.input.insert(0, helper.make_tensor_value_info("w", TensorProto.FLOAT, (4, 3)))
    loaded = onnx_model.load(save(made, tmp_path), ModelOptions())
    assert loaded.graph is not None
    assert (loaded.graph.input.name, len(loaded.graph.parameters)) == ("x", 1)


@pytest.mark.parametrize("form", ["Constant", "Identity", "Transpose", "ConstantOfShape"])
def test_weights_in_every_guise(form: str, tmp_path: Path) -> None:
    value = np.full((4, 3), 0.25, np.float32)
    filled = numpy_helper.from_array(np.array([0.25], np.float32))
    first = {
        "Constant": node("Constant", "", "v", value=numpy_helper.from_array(value)),
        "Identity": node("Identity", "w", "v"),
        "Transpose": node("Transpose", "t", "v"),
        "ConstantOfShape": node("ConstantOfShape", "s", "v", value=filled),
    }[form]
    weights = {"w": value, "t": value.T.copy(), "s": ints(4, 3)}
    used = {name: array for name, array in weights.items() if name in first.input}
    agree(model([first, node("Gemm", "x v", "y")], ("n", 4), used), tmp_path)


def test_fillings_of_one_shape_are_two_weights(tmp_path: Path) -> None:
    filled = {"value": numpy_helper.from_array(np.array([0.5], np.float32))}
    nodes = [
        node("ConstantOfShape", "s", "v", **filled),
        node("ConstantOfShape", "s", "w", **filled),
        node("Gemm", "x v", "h"),
        node("Gemm", "h w", "y"),
    ]
    loaded = agree(model(nodes, ("n", 3), {"s": ints(3, 3)}), tmp_path)
    assert loaded.graph is not None
    assert [p.trainable for p in loaded.graph.parameters.values()] == [True, True]


def test_zeros_of_the_shape_of_a_weight_are_not_that_weight(tmp_path: Path) -> None:
    nodes = [
        node("Shape", "w", "s"),
        node("Slice", "s a e", "t"),
        node("ConstantOfShape", "t", "z"),
        node("Add", "x z", "h"),
        node("Gemm", "h w", "y"),
    ]
    loaded = agree(model(nodes, ("n", 3), {"w": floats(3, 2), "a": ints(0), "e": ints(1)}), tmp_path)
    assert loaded.graph is not None
    assert sorted(p.shape for p in loaded.graph.parameters.values()) == [(2, 3), (3,)]


# Control flow and functions


def branch(name: str) -> onnx.GraphProto:
    return helper.make_graph(
        [node("Relu", "x", name)], name, [], [helper.make_tensor_value_info(name, TensorProto.FLOAT, None)]
    )


def test_a_choice_is_refused(tmp_path: Path) -> None:
    made = node("If", "c", "y", then_branch=branch("p"), else_branch=branch("q"))
    path = save(model([made], ("n", 4), {"c": np.array(True)}), tmp_path)
    found = onnx_model.load(path, ModelOptions()).diagnostics
    assert [d.code for d in found if d.severity == "error"] == ["LIP100"]


@pytest.mark.parametrize(("domain", "code"), [("", "LIP109"), ("com.example", None)])
def test_a_function_means_its_body_whatever_its_name(domain: str, code: str | None, tmp_path: Path) -> None:
    body = [node("Tanh", "a", "b")]
    function = helper.make_function(domain, "Relu", ["a"], ["b"], body, [helper.make_opsetid("", 17)])
    made = model([node("Relu", "x", "y", domain=domain)], ("n", 4))
    made.functions.append(function)
    if code is None:
        loaded = onnx_model.load(save(made, tmp_path), ModelOptions())
        assert loaded.graph is not None
        assert [used.op.name for used in loaded.graph.nodes] == ["tanh"]
        return
    with pytest.raises(InputError) as raised:
        onnx_model.load(save(made, tmp_path), ModelOptions())
    assert [d.code for d in raised.value.diagnostics] == [code]


@pytest.mark.parametrize("is_called", [True, False])
@pytest.mark.parametrize(
    ("standard", "own", "told"), [(13, 1, "set 13, and the model for 17"), (17, 2, "set 2 of")]
)
def test_a_function_for_another_operator_set_is_refused_for_that(
    standard: int, own: int, told: str, is_called: bool, tmp_path: Path
) -> None:
    sets = [helper.make_opsetid("", standard), helper.make_opsetid("com.example", own)]
    function = helper.make_function("com.example", "Bent", ["a"], ["b"], [node("Tanh", "a", "b")], sets)
    made = model([node("Bent", "x", "y", domain="com.example") if is_called else node("Tanh", "x", "y")], ("n", 4))
    made.opset_import.append(helper.make_opsetid("com.example", 1))
    made.functions.append(function)
    if not is_called:
        assert onnx_model.load(save(made, tmp_path), ModelOptions()).graph is not None
        return
    with pytest.raises(InputError, match=f"the function `Bent` is written for operator {told}") as raised:
        onnx_model.load(save(made, tmp_path), ModelOptions())
    assert [d.code for d in raised.value.diagnostics] == ["LIP110"]


def steep(name: str, body: onnx.NodeProto, defaults: Sequence[onnx.AttributeProto] = ()) -> onnx.FunctionProto:
    sets = [helper.make_opsetid("", 17), helper.make_opsetid("com.example", 1)]
    names = [] if defaults else ["slope"]
    return helper.make_function("com.example", name, ["a"], ["b"], [body], sets, names, defaults)


def handed_on(inner: onnx.NodeProto, name: str) -> onnx.NodeProto:
    inner.attribute.append(
        onnx.AttributeProto(name=name, ref_attr_name="slope", type=onnx.AttributeProto.FLOAT),
    )
    return inner


@pytest.mark.parametrize(("given", "slope"), [({}, 5), ({"slope": 3.0}, 3)])
def test_attributes_of_functions_have_their_default_values(
    given: dict[str, float], slope: int, tmp_path: Path
) -> None:
    """The inliner of onnx leaves them out: the slope would be that of any LeakyRelu, 1/100."""
    function = steep(
        "Steep", handed_on(node("LeakyRelu", "a", "b"), "alpha"), [helper.make_attribute("slope", 5.0)]
    )
    outer = steep("Outer", node("Steep", "a", "b", domain="com.example", **given))
    made = model([node("Outer", "x", "y", domain="com.example")], ("n", 4))
    made.functions.extend([function, outer])
    loaded = onnx_model.load(save(made, tmp_path), ModelOptions())
    assert loaded.graph is not None
    assert [(used.op.name, used.attributes.slope) for used in loaded.graph.nodes] == [("leaky_relu", slope)]


def test_an_attribute_that_is_handed_on_and_may_be_missing_is_refused(tmp_path: Path) -> None:
    function = steep(
        "Steep", handed_on(node("LeakyRelu", "a", "b"), "alpha"), [helper.make_attribute("slope", 5.0)]
    )
    outer = steep("Outer", handed_on(node("Steep", "a", "b", domain="com.example"), "slope"))
    made = model([node("Outer", "x", "y", domain="com.example")], ("n", 4))
    made.functions.extend([function, outer])
    with pytest.raises(InputError) as raised:
        onnx_model.load(save(made, tmp_path), ModelOptions())
    assert [d.code for d in raised.value.diagnostics] == ["LIP110"]


@pytest.mark.parametrize("version", [10, 13, 18, 19, 21])
def test_stored_numbers_of_a_few_bits_are_read(version: int, tmp_path: Path) -> None:
    """(q - zero point)·scale: one of each for all columns before operator set 13, then one a column."""
    columns = 1 if version < 13 else 4
    scales, points = np.array([0.5, 0.25, 2, 1], np.float32)[:columns], np.array([3, 0, -2, 1], np.int8)[:columns]
    stored = np.arange(24, dtype=np.int8).reshape(6, 4) - 12
    axis = {} if version < 13 else {"axis": 1}
    weights: dict[str, Array] = {"q": stored, "s": np.squeeze(scales), "z": np.squeeze(points)}
    made = [node("DequantizeLinear", "q s z", "w", **axis), node("MatMul", "x w", "y")]
    graph = onnx_model.load(save(model(made, ("n", 6), weights, opset=version), tmp_path), KEEP).graph
    assert graph is not None
    (weight,) = (one.initial for one in graph.parameters.values())
    np.testing.assert_array_equal(weight, ((stored.astype(np.float32) - points) * scales).T)
