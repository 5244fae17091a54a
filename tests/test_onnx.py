"""The ONNX front end: bounds that it leads to, what it refuses and in which words, files that are no models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import log, sqrt
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from lipcompile.derivation import Derivation
from lipcompile.diagnostics import Diagnostic, InputError, Severity
from lipcompile.frontends import onnx_model
from lipcompile.frontends.options import Loaded, ModelOptions
from lipcompile.ops.record import Constraint
from lipcompile.pipeline import check
from tests.onnx_models import Array, floats, ints, model, node, save

UNIT = ModelOptions(input_norm=Fraction(1))
W, B = floats(4, 6, scale=0.1), floats(4, scale=0.1)


def load(made: onnx.ModelProto, folder: Path, options: ModelOptions = UNIT) -> Loaded:
    return onnx_model.load(save(made, folder), options)


def derived(made: onnx.ModelProto, folder: Path, options: ModelOptions = UNIT) -> Derivation:
    derivation = check(str(save(made, folder)), options)
    assert derivation.analysis is not None, derivation.diagnostics
    return derivation


def gradients(derivation: Derivation) -> dict[str, float]:
    assert derivation.analysis is not None
    found = {name: bound.value for name, bound in derivation.analysis.parameters.items()}
    return {name: value for name, value in found.items() if value is not None}


def errors(loaded: Loaded) -> list[Diagnostic]:
    return [d for d in loaded.diagnostics if d.severity == Severity.ERROR]


# Bounds, against derivations by hand


def test_two_dense_layers(tmp_path: Path) -> None:
    """X_0 = 1, u = B = 1: X(h) = X(r) = 2 and L = 1, so K = X_0, 1 of layer 1 and X(r), 1 of layer 2."""
    nodes = [
        node("Gemm", "x fc1.weight fc1.bias", "h", transB=1),
        node("Relu", "h", "r"),
        node("Gemm", "r fc2.weight fc2.bias", "y", transB=1),
    ]
    weights = {
        "fc1.weight": W,
        "fc1.bias": B,
        "fc2.weight": floats(1, 4, scale=0.1),
        "fc2.bias": floats(1, scale=0.1),
    }
    found = gradients(derived(model(nodes, ("n", 6), weights, metadata={"lipcompile.loss": "hinge"}), tmp_path))
    expected = {"fc1.weight": 1.0, "fc1.bias": 1.0, "fc2.weight": 2.0, "fc2.bias": 1.0}
    assert found == pytest.approx(expected, rel=1e-12)


def test_a_convolution_over_an_image(tmp_path: Path) -> None:
    """3x3, stride 1: an entry is read 9 times, so κ = 3·X_0; the bias reaches 16 pixels, κ = 4."""
    nodes = [
        node("Conv", "x c.weight c.bias", "h", pads=[1, 1, 1, 1]),
        node("Flatten", "h", "f"),
        node("Gemm", "f w", "y"),
    ]
    weights = {
        "c.weight": floats(2, 1, 3, 3, scale=0.1),
        "c.bias": floats(2, scale=0.1),
        "w": floats(32, 1, scale=0.1),
    }
    found = gradients(
        derived(model(nodes, ("n", 1, 4, 4), weights, metadata={"lipcompile.loss": "hinge"}), tmp_path)
    )
    assert found == pytest.approx({"c.weight": 3.0, "c.bias": 4.0, "Gemm_y.weight": 1 + 4.0}, rel=1e-12)


def test_activations_that_do_not_fix_zero(tmp_path: Path) -> None:
    """Softplus adds √n·ln 2 to the norm, a residual sums: X(s) = 1 + 2·ln 2, X(y) = X(s) + 1, K = X(y)."""
    nodes = [node("Softplus", "x", "s"), node("Add", "s x", "a"), node("Gemm", "a w", "y")]
    found = gradients(
        derived(model(nodes, ("n", 4), {"w": floats(4, 1)}, metadata={"lipcompile.loss": "hinge"}), tmp_path)
    )
    assert found == pytest.approx({"Gemm_y.weight": 2 + 2 * log(2)}, rel=1e-12)


def test_tied_layers_get_the_sum_of_their_bounds(tmp_path: Path) -> None:
    """One weight in two layers: K = L·(X_0 + u·…) = 1·1 + 1·1 behind a 1-Lipschitz activation."""
    nodes = [node("Gemm", "x w", "h"), node("Relu", "h", "r"), node("Gemm", "r w", "s"), node("Gemm", "s v", "y")]
    weights = {"w": floats(6, 6, scale=0.1), "v": floats(6, 1, scale=0.1)}
    found = gradients(derived(model(nodes, ("n", 6), weights, metadata={"lipcompile.loss": "hinge"}), tmp_path))
    assert found == pytest.approx({"Gemm_h.weight": 2.0, "Gemm_y.weight": 1.0}, rel=1e-12)


def test_average_and_max_pools(tmp_path: Path) -> None:
    """Max over 2 of stride 1 is √2-Lipschitz on three entries, a global mean over 2 entries 1/√2."""
    nodes = [
        node("MaxPool", "x", "h", kernel_shape=[2], strides=[1]),
        node("GlobalAveragePool", "h", "g"),
        node("Flatten", "g", "y"),
    ]
    derivation = derived(model(nodes, ("n", 1, 3)), tmp_path)
    assert derivation.analysis is not None
    by_name = {layer.name: layer.lipschitz.value for layer in derivation.analysis.layers}
    assert by_name == pytest.approx({"MaxPool_h": sqrt(2), "GlobalAveragePool_g": 1 / sqrt(2), "Flatten_y": 1.0})


def test_maxmin_is_one_lipschitz(tmp_path: Path) -> None:
    nodes = [
        node("Split", "x", "a b", axis=1),
        node("Max", "a b", "c"),
        node("Min", "a b", "d"),
        node("Concat", "c d", "y", axis=1),
    ]
    derivation = derived(model(nodes, ("n", 6)), tmp_path)
    assert derivation.analysis is not None
    assert derivation.analysis.lipschitz.value == pytest.approx(1.0)


# Names, constraints, metadata


def test_names_come_from_modules_then_from_nodes(tmp_path: Path) -> None:
    nodes = [
        node("MatMul", "x onnx::MatMul_3", "m"),
        node("Add", "net.0.bias m", "h"),
        node("Gemm", "h V", "g", transB=1),
        helper.make_node("Gemm", ["g", "V2"], ["y"]),
    ]
    weights = {"onnx::MatMul_3": W.T.copy(), "net.0.bias": B, "V": floats(4, 4), "V2": floats(4, 2)}
    graph = load(model(nodes, ("n", 6), weights), tmp_path).graph
    assert graph is not None
    assert list(graph.parameters) == ["net_0.weight", "net_0.bias", "Gemm_g.weight", "gemm.weight"]


def test_keep_certifies_the_norm_of_the_map_itself(tmp_path: Path) -> None:
    nodes = [node("Conv", "x k b", "h", pads=[1, 1, 1, 1]), node("Flatten", "h", "f"), node("Gemm", "f w", "y")]
    kernel, weight, bias = floats(3, 2, 3, 3), floats(48, 2), floats(3)
    options = ModelOptions(constraint="keep")
    graph = load(model(nodes, ("n", 2, 4, 4), {"k": kernel, "w": weight, "b": bias}), tmp_path, options).graph
    assert graph is not None
    bounds = {name: float(p.constraint.bound) for name, p in graph.parameters.items()}  # type: ignore[arg-type]
    assert np.linalg.norm(weight, 2) < bounds["Gemm_y.weight"] < np.linalg.norm(weight, 2) * 1.00001
    assert np.linalg.norm(bias) < bounds["Conv_h.bias"] < np.linalg.norm(bias) * 1.00001
    assert bounds["Conv_h.weight"] < 3 * np.linalg.norm(kernel)
    assert not load(
        model(nodes, ("n", 2, 4, 4), {"k": kernel, "w": weight, "b": bias}), tmp_path, options
    ).diagnostics


def test_keep_of_zeros_is_zero(tmp_path: Path) -> None:
    made = model([node("Gemm", "x w b", "y")], ("n", 6), {"w": W.T.copy(), "b": np.zeros(4, np.float32)})
    graph = load(made, tmp_path, ModelOptions(constraint="keep")).graph
    assert graph is not None
    assert graph.parameters["Gemm_y.bias"].constraint == Constraint("ball", Fraction(0))


@pytest.mark.parametrize(
    "constraint", [None, Constraint("frobenius", Fraction(1)), Constraint("orthogonal", Fraction(1))]
)
def test_weights_outside_their_constraints_are_announced(constraint: Constraint | None, tmp_path: Path) -> None:
    weights = {"fc.weight": floats(4, 6, scale=3), "fc.bias": floats(4, scale=9)}
    made = model([node("Gemm", "x fc.weight fc.bias", "y", transB=1)], ("n", 6), weights)
    loaded = load(made, tmp_path, ModelOptions(constraint=constraint))
    assert loaded.graph is not None
    assert [(d.code, d.severity, d.node) for d in loaded.diagnostics] == [("LIP305", Severity.WARNING, "fc")] * 2
    assert "`fc.weight`" in loaded.diagnostics[0].message
    assert "--constraint keep" in loaded.diagnostics[0].help
    assert "--bias-bound" in loaded.diagnostics[1].help


def test_weights_inside_their_constraints_are_not(tmp_path: Path) -> None:
    square = np.linalg.qr(floats(6, 6).astype(np.float64))[0].astype(np.float32)
    made = model([node("Gemm", "x w b", "y")], ("n", 6), {"w": square, "b": floats(6, scale=4)})
    assert load(made, tmp_path, ModelOptions(bias_bound=Fraction(40))).diagnostics == ()


def test_initial_values_are_exact(tmp_path: Path) -> None:
    half = floats(6, 4).astype(np.float16)
    nodes = [
        node("Gemm", "x w", "h"),
        node("Cast", "v", "d", to=TensorProto.FLOAT),
        node("Gemm", "h d", "y", alpha=0.1),
    ]
    graph = load(model(nodes, ("n", 6), {"w": half, "v": floats(4, 4)}), tmp_path).graph
    assert graph is not None
    first, second = graph.parameters.values()
    assert first.initial is not None
    assert second.initial is not None
    assert (half == first.initial.T).all()
    assert (floats(4, 4).astype(np.float64) * float(np.float32(0.1)) == second.initial.T).all()


def test_options_override_metadata(tmp_path: Path) -> None:
    made = model(
        [node("Relu", "x", "y")], ("n", 6), metadata={"lipcompile.input_norm": "2.5", "lipcompile.loss": "hinge"}
    )
    graph = load(
        model([node("Relu", "x", "y")], ("n", 6), metadata={"lipcompile.input_norm": "2.5"}),
        tmp_path,
        ModelOptions(),
    ).graph
    assert graph is not None
    assert graph.input.norm == Fraction(5, 2)
    refused = load(made, tmp_path)
    assert [d.code for d in refused.diagnostics] == ["LIP211"]
    chosen = load(made, tmp_path, ModelOptions(input_norm=Fraction(3), loss="cross_entropy:temperature=2")).graph
    assert chosen is not None
    assert chosen.input.norm == 3
    assert chosen.loss is not None
    assert chosen.loss.attributes.temperature == 2


@pytest.mark.parametrize("metadata", [{"lipcompile.input_norm": "much"}, {"lipcompile.loss": "unheard"}])
def test_unusable_metadata(metadata: Mapping[str, str], tmp_path: Path) -> None:
    with pytest.raises(InputError):
        load(model([node("Relu", "x", "y")], ("n", 6), metadata=metadata), tmp_path, ModelOptions())


def test_equal_tensors_that_the_exporter_merged_are_parameters_of_their_own(tmp_path: Path) -> None:
    nodes = [
        node("Identity", "a.bias", "b.bias"),
        node("Gemm", "x a.weight a.bias", "h"),
        node("Gemm", "h b.weight b.bias", "y"),
    ]
    weights = {
        "a.weight": floats(6, 6, scale=0.1),
        "b.weight": floats(6, 6, scale=0.1),
        "a.bias": np.zeros(6, np.float32),
    }
    loaded = load(model(nodes, ("n", 6), weights), tmp_path)
    assert loaded.graph is not None
    assert list(loaded.graph.parameters) == ["a.weight", "a.bias", "b.weight", "b.bias"]
    assert [(d.code, d.severity) for d in loaded.diagnostics] == [("LIP309", Severity.NOTE)]


def test_a_number_in_the_graph_is_not_trained(tmp_path: Path) -> None:
    nodes = [node("Constant", "", "c", value_float=5.0), node("Add", "x c", "h"), node("Add", "h b", "y")]
    loaded = load(model(nodes, ("n", 6), {"b": floats(6, scale=0.1)}), tmp_path)
    assert loaded.graph is not None
    assert [p.trainable for p in loaded.graph.parameters.values()] == [False, True]
    assert loaded.diagnostics == ()
    frozen = loaded.graph.parameters["Add_h.bias"]
    assert 5 <= float(frozen.constraint.bound) < 5.0001  # type: ignore[arg-type]


def test_a_number_may_be_added_at_several_places(tmp_path: Path) -> None:
    nodes = [
        node("Constant", "", "c", value_float=5.0),
        node("Add", "x c", "h"),
        node("Gemm", "h w", "g"),
        node("Add", "g c", "y"),
    ]
    derived(model(nodes, ("n", 6), {"w": floats(6, 2, scale=0.1)}), tmp_path)


def test_a_transposition_that_changes_nothing(tmp_path: Path) -> None:
    nodes = [node("Transpose", "w", "v", perm=[0, 1]), node("Gemm", "x v", "h"), node("Gemm", "h w", "y")]
    assert "LIP308" in [d.code for d in load(model(nodes, ("n", 6), {"w": floats(6, 6)}), tmp_path).diagnostics]


def test_onnx_models_have_nothing_to_set(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        load(model([node("Relu", "x", "y")], ("n", 6)), tmp_path, ModelOptions(bindings={"n": Fraction(1)}))


# Refusals: code and a word of the reason

BN = {"g": np.ones(6, np.float32), "e": floats(6), "m": floats(6), "v": np.ones(6, np.float32)}
SQUARE = {"w": floats(6, 6)}
SHAPE = [node("Shape", "x", "s")]
CAST = node("Cast", "i", "y", to=1)
CEIL = {"ceil_mode": 1}
FOREIGN_ADD = node("Add", "h b", "y", domain="com.example")
TWO_LAYERS = [node("Gemm", "x v", "h"), node("Gemm", "h w", "y")]
ONE_AXIS_TWICE = {"a": ints(0, 1), "e": ints(9, 9), "b": ints(1, -1)}
TWO_AXES = {"a": ints(0, 1), "e": ints(9, 9), "b": ints(1, 2), "c": ints(2, 1)}
EVERY_SECOND = {"a": ints(0), "e": ints(9), "b": ints(1), "c": ints(2)}
Case = tuple[str, str, Sequence[onnx.NodeProto], Sequence[int | str | None], Mapping[str, Array]]

REFUSED: list[Case] = [
    ("LIP100", "did you mean `Relu`", [node("Rely", "x", "y")], ("n", 6), {}),
    ("LIP100", "unbounded", [node("Exp", "x", "y")], ("n", 6), {}),
    ("LIP100", "not Lipschitz", [node("Div", "w x", "y")], ("n", 6), SQUARE),
    ("LIP110", "not yet", [node("LayerNormalization", "x w", "y")], ("n", 6), {"w": floats(6)}),
    ("LIP109", "com.example", [node("Mystery", "x", "y", domain="com.example")], ("n", 6), {}),
    ("LIP101", "couples", [node("BatchNormalization", "x g e m v", "y _ _", training_mode=1)], ("n", 6), BN),
    ("LIP101", "couples", [node("BatchNormalization", "x g e m v", "y a b", training_mode=1)], ("n", 6), BN),
    ("LIP110", "folded", [node("BatchNormalization", "x g e m v", "y")], ("n", 6), BN),
    ("LIP214", "the loss contains it", [node("Softmax", "x", "y")], ("n", 6), {}),
    ("LIP110", "not yet", [node("Softmax", "x", "h"), node("Relu", "h", "y")], ("n", 6), {}),
    ("LIP108", "mixes", [node("Gemm", "x w", "y", transA=1)], (6, 6), SQUARE),
    ("LIP108", "mixes", [node("Gemm", "w x", "y")], (6, 6), SQUARE),
    ("LIP108", "mixes", [node("MatMul", "w x", "y")], (6, 6), SQUARE),
    ("LIP110", "token mixing", [node("MatMul", "w x", "y")], ("n", 6, 2), SQUARE),
    ("LIP110", "two tensors", [node("MatMul", "x x", "y")], ("n", 6, 6), {}),
    ("LIP110", "depends on the example", [node("Gemm", "x w x", "y")], ("n", 6), SQUARE),
    ("LIP108", "example to example", [node("Gemm", "x w b", "y")], ("n", 6), {**SQUARE, "b": floats(3, 6)}),
    ("LIP108", "example to example", [node("Add", "x b", "y")], ("n", 6), {"b": floats(3, 6)}),
    ("LIP108", "batch axis", [node("Flatten", "x", "y", axis=0)], ("n", 2, 3), {}),
    ("LIP108", "batch axis", [node("Flatten", "x", "y", axis=2)], ("n", 2, 3), {}),
    ("LIP108", "batch axis", [node("Reshape", "x s", "y")], ("n", 6), {"s": ints(-1, 3)}),
    ("LIP108", "batch axis", [node("Reshape", "x s", "y")], ("n", 6), {"s": ints(6, -1)}),
    ("LIP108", "batch axis", [node("Reshape", "x s", "y")], (4, 6), {"s": ints(6, 4)}),
    ("LIP108", "batch axis", [node("Reshape", "x s", "y")], (1, 6), {"s": ints(6)}),
    ("LIP108", "batch axis", [node("Reshape", "x s", "y", allowzero=1)], ("n", 6), {"s": ints(0, 6)}),
    ("LIP102", "do not fit", [node("Reshape", "x s", "y")], ("n", 6), {"s": ints(0, 4, -1)}),
    ("LIP108", "batch", [*SHAPE, node("Mul", "s s", "t"), node("Reshape", "x t", "y")], ("n", 1), {}),
    ("LIP108", "batch axis", [node("Transpose", "x", "y")], ("n", 6), {}),
    ("LIP108", "batch axis", [node("Concat", "x x", "y", axis=0)], ("n", 6), {}),
    ("LIP108", "batch axis", [node("Concat", "x x", "y", axis=-2)], ("n", 6), {}),
    ("LIP108", "batch axis", [node("Split", "x", "y z", axis=0)], (4, 6), {}),
    ("LIP108", "batch axis", [node("Squeeze", "x a", "y")], (1, 6), {"a": ints(0)}),
    ("LIP108", "batch of one", [node("Squeeze", "x", "y")], (1, 6), {}),
    ("LIP108", "batch axis", [node("Unsqueeze", "x a", "y")], ("n", 6), {"a": ints(0)}),
    ("LIP108", "batch axis", [node("Slice", "x a b a", "y")], ("n", 6), {"a": ints(0), "b": ints(1)}),
    ("LIP108", "batch axis", [node("Gather", "x a", "y")], ("n", 6), {"a": ints(0)}),
    ("LIP108", "batch axis", [node("TopK", "x k", "y i", axis=0)], (6, 6), {"k": ints(6)}),
    ("LIP108", "batch axis", [node("ReduceMean", "x", "y", axes=[0])], ("n", 6), {}),
    ("LIP108", "batch axis", [node("ReduceMean", "x", "y")], ("n", 6), {}),
    ("LIP108", "to the batch", [node("Pad", "x p", "y")], ("n", 2, 3), {"p": ints(1, 0, 0, 0, 0, 0)}),
    ("LIP108", "mixes", [node("Unsqueeze", "x a", "u"), node("Add", "u x", "y")], ("n", 6), {"a": ints(1)}),
    ("LIP110", "one per entry", [node("Mul", "x b", "y")], ("n", 6), {"b": floats(6)}),
    ("LIP110", "two tensors", [node("Mul", "x x", "y")], ("n", 6), {}),
    ("LIP104", "zero", [node("Div", "x c", "y")], ("n", 6), {"c": np.array(0, np.float32)}),
    ("LIP304", "NaN", [node("Mul", "x c", "y")], ("n", 6), {"c": np.array(np.inf, np.float32)}),
    ("LIP304", "NaN", [node("Gemm", "x w", "y")], ("n", 6), {"w": np.full((6, 6), np.nan, np.float32)}),
    ("LIP304", "NaN", [node("Gemm", "x w b", "y")], ("n", 6), {**SQUARE, "b": np.full(6, np.inf, np.float32)}),
    ("LIP303", "shape", [node("Gemm", "x w", "y")], ("n", 5), SQUARE),
    ("LIP110", "padding", [node("AveragePool", "x", "y", kernel_shape=[2], pads=[1, 0])], ("n", 1, 6), {}),
    ("LIP110", "ceil_mode", [node("MaxPool", "x", "y", kernel_shape=[2], strides=[3], **CEIL)], ("n", 1, 6), {}),
    ("LIP103", "padding", [node("MaxPool", "x", "y", kernel_shape=[1], pads=[1, 0])], ("n", 1, 6), {}),
    ("LIP110", "p=1", [node("LpPool", "x", "y", kernel_shape=[2], p=1)], ("n", 1, 6), {}),
    ("LIP110", "MaxMin", [node("Max", "x x", "y")], ("n", 6), {}),
    ("LIP110", "MaxMin", [node("ReduceMax", "x", "h", axes=[1]), node("Relu", "h", "y")], ("n", 2, 3), {}),
    ("LIP110", "steps", [node("Slice", "x a e b c", "h"), node("Relu", "h", "y")], ("n", 6), EVERY_SECOND),
    ("LIP110", "whole axis", [node("TopK", "x k", "y i")], ("n", 6), {"k": ints(3)}),
    ("LIP110", "second output", [node("MaxPool", "x", "h i", kernel_shape=[2]), CAST], ("n", 1, 6), {}),
    ("LIP110", "consecutive", [node("Gather", "x i", "y", axis=1)], ("n", 6), {"i": ints(3, 1)}),
    ("LIP110", "zeros", [node("Pad", "x p", "y", mode="reflect")], ("n", 1, 3), {"p": ints(0, 0, 1, 0, 0, 1)}),
    ("LIP308", "another way", [node("Gemm", "x w", "h"), node("Gemm", "h w", "y", transB=1)], ("n", 6), SQUARE),
    ("LIP308", "another way", [node("Transpose", "w", "v"), *TWO_LAYERS], ("n", 6), SQUARE),
    ("LIP308", "another way", [node("Mul", "w c", "v"), *TWO_LAYERS], ("n", 6), SQUARE | {"c": floats(1)}),
    ("LIP109", "com.example", [node("MatMul", "x w", "h"), FOREIGN_ADD], ("n", 6), SQUARE | {"b": floats(6)}),
    ("LIP110", "step", [node("Slice", "x a e b c", "y")], ("n", 6, 4), TWO_AXES),
    ("LIP102", "twice", [node("Slice", "x a e b", "y")], ("n", 6), ONE_AXIS_TWICE),
    ("LIP107", "does not depend", [node("Abs", "w", "y")], ("n", 6), SQUARE),
    ("LIP106", "axis 2", [node("Relu", "x", "y")], ("n", 3, "length"), {}),
    ("LIP106", "no batch axis", [node("Relu", "x", "y")], (), {}),
]  # fmt: skip


@pytest.mark.parametrize("case", REFUSED, ids=[f"{code} {nodes[-1].op_type}" for code, _, nodes, _, _ in REFUSED])
def test_refusals(case: Case, tmp_path: Path) -> None:
    code, word, nodes, shape, weights = case
    loaded = load(model(nodes, shape, weights), tmp_path)
    assert loaded.graph is None
    found = errors(loaded)
    assert [d.code for d in found] == [code]
    assert word in f"{found[0].message} {found[0].help}"
    assert found[0].location is not None
    assert found[0].location.file.endswith("model.onnx")


def test_a_trained_dropout_is_a_dropout(tmp_path: Path) -> None:
    weights = {"r": np.array(0.25, np.float32), "t": np.array(True)}
    graph = load(model([node("Dropout", "x r t", "y")], ("n", 6), weights), tmp_path).graph
    assert graph is not None
    assert graph.nodes[0].attributes.probability == Fraction(1, 4)


def test_all_problems_in_one_run_with_names_and_paths(tmp_path: Path) -> None:
    """The shape behind each refused node is inferred, so that the next problem is found."""
    nodes = [
        node("Conv", "x conv1.weight", "c", pads=[1, 1, 1, 1]),
        node("BatchNormalization", "c bn1.weight bn1.bias bn1.mean bn1.var", "b _ _", training_mode=1),
        node("Gelu", "b", "g"),
        node("Transpose", "g", "t", perm=[1, 0, 2, 3]),
        node("Exp", "g", "e"),
        node("GlobalAveragePool", "e", "y"),
    ]
    ones = np.ones(2, np.float32)
    weights = {"conv1.weight": floats(2, 1, 3, 3), **{f"bn1.{k}": ones for k in ("weight", "bias", "mean", "var")}}
    loaded = load(model(nodes, ("n", 1, 4, 4), weights, opset=20), tmp_path)
    assert [(d.code, d.node, d.op) for d in errors(loaded)] == [
        ("LIP101", "bn1", "BatchNormalization"),
        ("LIP110", "Gelu_g", "Gelu"),
        ("LIP108", "Transpose_t", "Transpose"),
        ("LIP100", "Exp_e", "Exp"),
    ]
    assert errors(loaded)[0].path == ("x", "conv1")


def test_what_hangs_off_an_unknown_operator_is_skipped(tmp_path: Path) -> None:
    nodes = [node("Mystery", "x", "h", domain="com.example"), node("Exp", "h", "y")]
    assert [d.code for d in load(model(nodes, ("n", 6)), tmp_path).diagnostics] == ["LIP109"]


def test_several_inputs_and_outputs(tmp_path: Path) -> None:
    made = model([node("Relu", "x", "y"), node("Abs", "x", "z")], ("n", 6), outputs=("y", "z"))
    found = load(made, tmp_path).diagnostics
    assert [d.code for d in found] == ["LIP107"]
    assert "`y`, `z`" in found[0].message
    made = model([node("Add", "x u", "y")], ("n", 6))
    made.graph.input.append(helper.make_tensor_value_info("u", TensorProto.FLOAT, ("n", 6)))
    found = load(made, tmp_path).diagnostics
    assert [d.code for d in found] == ["LIP105"]
    assert "`x`, `u`" in found[0].message


def test_weights_listed_as_inputs_are_weights(tmp_path: Path) -> None:
    made = model([node("Gemm", "x w", "y")], ("n", 6), SQUARE)
    made.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, (6, 6)))
    assert load(made, tmp_path).graph is not None


def test_tokens_are_no_vectors(tmp_path: Path) -> None:
    made = model([node("Cast", "x", "y", to=TensorProto.FLOAT)], ("n", 6), kind=TensorProto.INT64)
    assert [d.code for d in load(made, tmp_path).diagnostics] == ["LIP105"]


def test_a_function_of_the_file_is_inlined(tmp_path: Path) -> None:
    body = [node("Relu", "a", "r"), node("Neg", "r", "b")]
    function = helper.make_function("com.example", "Twist", ["a"], ["b"], body, [helper.make_opsetid("", 17)])
    made = model([node("Twist", "x", "y", domain="com.example")], ("n", 6))
    made.functions.append(function)
    graph = load(made, tmp_path).graph
    assert graph is not None
    assert [n.op.name for n in graph.nodes] == ["relu", "add"]


# Files


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
