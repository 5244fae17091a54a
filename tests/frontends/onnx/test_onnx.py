"""The ONNX front end: the bounds that it leads to, names, constraints and what a file declares."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from math import log, sqrt
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from lipcompile.core.derivation import Derivation
from lipcompile.core.record import Constraint
from lipcompile.diagnostics import InputError, Severity
from lipcompile.frontends.onnx import model as onnx_model
from lipcompile.frontends.options import Loaded, ModelOptions
from lipcompile.pipeline import check
from tests.frontends.onnx.onnx_models import floats, model, node, save
from tests.overlaps import attained, line

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
    """3x3, stride 1, on 4x4: κ is at least 2.309·X_0, by ascents, and at most 2.402; the bias has κ = √16."""
    nodes = [
        node("Conv", "x c.weight c.bias", "h", pads=[1, 1, 1, 1]),
        node("Flatten", "h", "f"),
        node("Gemm", "f w", "y"),
    ]
    weights = {
        "c.weight": floats(2, 1, 3, 3, scale=0.1),
        "c.bias": np.array([0.3, -0.4], np.float32),
        "w": floats(32, 1, scale=0.1),
    }
    found = gradients(
        derived(model(nodes, ("n", 1, 4, 4), weights, metadata={"lipcompile.loss": "hinge"}), tmp_path)
    )
    assert attained(line(4, 3, padding=1)) <= found.pop("c.weight") <= 2.402
    assert found == pytest.approx({"c.bias": 4.0, "Gemm_y.weight": 1 + 4 * 0.5}, rel=1e-5)


@pytest.mark.parametrize(("stored", "bound"), [(0, 0.25), (0.1, 0.25), (0.5, 0.5), (2, 1)])
def test_the_default_of_a_bias_has_room_for_its_values(stored: float, bound: float, tmp_path: Path) -> None:
    """The bias stands at P = 16 positions, so 1/√P = 1/4; it is scaled down only from a norm above 1."""
    weights = {"k": floats(1, 1, 1, 1, scale=0.1), "b": np.array([stored], np.float32)}
    loaded = load(model([node("Conv", "x k b", "y")], ("n", 1, 4, 4), weights), tmp_path)
    assert loaded.graph is not None
    found = loaded.graph.parameters["Conv_y.bias"].constraint.bound
    assert isinstance(found, Fraction)
    assert float(found) == pytest.approx(bound, rel=1e-5)
    assert [warning.code for warning in loaded.diagnostics] == ["LIP305"] * (stored > 1)


def test_alike_biases_share_the_largest_of_their_bounds(tmp_path: Path) -> None:
    """Three on 16 positions, of which one has no twin: it has two channels."""
    nodes = [
        node("Conv", "x k a", "h"),
        node("Conv", "h k2 b", "g"),
        node("Conv", "g k3 c", "y"),
    ]
    weights = {f"k{index}": floats(1, 1, 1, 1, scale=0.1) for index in ("", "2")}
    weights |= {"k3": floats(2, 1, 1, 1, scale=0.1), "c": np.array([0.8, 0], np.float32)}
    weights |= {"a": np.array([0.3], np.float32), "b": np.array([-0.5], np.float32)}
    graph = load(model(nodes, ("n", 1, 4, 4), weights), tmp_path).graph
    assert graph is not None
    found = [parameter.constraint.bound for name, parameter in graph.parameters.items() if name.endswith("bias")]
    assert [float(bound) for bound in found if isinstance(bound, Fraction)] == pytest.approx(
        [0.5, 0.5, 0.8], rel=1e-5
    )


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
