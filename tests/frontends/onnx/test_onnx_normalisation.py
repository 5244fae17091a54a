"""Norms, factors and softmax of ONNX files: the same numbers as the reference, and what is trained of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np
import onnx
import pytest

from lipcompile.diagnostics import Severity
from lipcompile.frontends.onnx import model as onnx_model
from lipcompile.frontends.options import Loaded, ModelOptions
from lipcompile.pipeline import derive
from tests.frontends.onnx.onnx_models import Array, floats, model, node, save
from tests.frontends.onnx.test_onnx_semantics import agree

IMAGE, TOKENS = (4, 3, 5), (3, 6)
FLAT = node("Flatten", "h", "y")
PER_CHANNEL = {"s": 1 + floats(4), "b": floats(4, seed=1)}
STATISTICS = {"g": floats(4, seed=2), "e": floats(4, seed=3), "m": floats(4), "v": np.abs(floats(4, seed=5)) + 0.1}

# Nodes, the shape of an example, weights, the operator set.
Case = tuple[Sequence[onnx.NodeProto], tuple[int, ...], Mapping[str, Array], int]
CASES: dict[str, Case] = {
    "layer norm": (
        [node("LayerNormalization", "x s b", "h", epsilon=0.1), FLAT],
        TOKENS,
        {"s": 1 + floats(6), "b": floats(6, seed=1)},
        17,
    ),
    "layer norm of several axes": (
        [node("LayerNormalization", "x s b", "h", axis=2, epsilon=0.1), FLAT],
        IMAGE,
        {"s": 1 + floats(3, 5), "b": floats(3, 5, seed=1)},
        17,
    ),
    "layer norm without a shift": (
        [node("LayerNormalization", "x s", "h", axis=-3, epsilon=0.1), FLAT],
        IMAGE,
        {"s": floats(4, 3, 5)},
        17,
    ),
    "rms norm": ([node("RMSNormalization", "x s", "h", epsilon=0.1), FLAT], TOKENS, {"s": floats(6)}, 23),
    "group norm": (
        [node("GroupNormalization", "x s b", "h", num_groups=2, epsilon=0.1), FLAT],
        IMAGE,
        PER_CHANNEL,
        21,
    ),
    "instance norm": ([node("InstanceNormalization", "x s b", "h", epsilon=0.1), FLAT], IMAGE, PER_CHANNEL, 17),
    "local response": ([node("LRN", "x", "h", size=3, alpha=0.7, beta=0.6, bias=1.3), FLAT], IMAGE, {}, 17),
    "batch norm that nothing folds": (
        [node("BatchNormalization", "x g e m v", "h", epsilon=0.1), FLAT],
        IMAGE,
        STATISTICS,
        17,
    ),
    "softmax": ([node("Softmax", "x", "a"), node("Softmax", "a", "h", axis=1), FLAT], TOKENS, {}, 17),
    "softmax of an old operator set": ([node("Softmax", "x", "h"), node("Relu", "h", "y")], (6,), {}, 11),
    "log-softmax": ([node("LogSoftmax", "x", "h", axis=2), FLAT], IMAGE, {}, 17),
    "factors of one axis": ([node("Mul", "s x", "h"), FLAT], IMAGE, {"s": floats(4, 1, 1)}, 17),
    "factors of neighbouring axes": ([node("Mul", "x s", "h"), FLAT], IMAGE, {"s": floats(1, 4, 3, 1)}, 17),
}


@pytest.mark.parametrize("name", CASES)
def test_an_imported_norm_computes_what_the_file_computes(tmp_path: Path, name: str) -> None:
    nodes, shape, weights, opset = CASES[name]
    # As many examples as channels: the reference's LRN counts the first and means the second.
    agree(model(nodes, ("n", *shape), weights, opset=opset), tmp_path, batch=4)


@pytest.mark.parametrize("op", ["LayerNormalization", "RMSNormalization"])
@pytest.mark.parametrize("shape", [(6, 1), (1, 6, 1), (6, 1, 1)], ids=str)
def test_factors_of_other_axes_than_those_of_the_norm_are_refused(
    tmp_path: Path, op: str, shape: tuple[int, ...]
) -> None:
    """They broadcast against the axis of tokens, or, of batches of six, against that of the examples."""
    made = model([node(op, "x s", "h"), FLAT], ("n", 6, 6), {"s": floats(*shape)}, opset=23)
    found = onnx_model.load(save(made, tmp_path), ModelOptions(input_norm=Fraction(1))).diagnostics
    assert [(one.code, "expected [6]" in one.message) for one in found] == [("LIP102", True)]


def load(
    nodes: Sequence[onnx.NodeProto], folder: Path, weights: Mapping[str, Array], loss: str | None = None
) -> Loaded:
    made = model(nodes, ("n", 6), weights)
    return onnx_model.load(save(made, folder), ModelOptions(input_norm=Fraction(1), loss=loss))


def test_gains_and_shifts_are_trained_and_fixed_statistics_are_not(tmp_path: Path) -> None:
    nodes = [
        node("LayerNormalization", "x ln.weight ln.bias", "h", epsilon=0.1),
        node("BatchNormalization", "h g e m v", "y"),
    ]
    ones, numbers = np.ones(6, np.float32), floats(6)
    statistics = {"g": ones, "e": numbers, "m": numbers, "v": ones}
    loaded = load(nodes, tmp_path, {"ln.weight": ones, "ln.bias": numbers, **statistics})
    assert loaded.graph is not None
    trained = {name: parameter.trainable for name, parameter in loaded.graph.parameters.items()}
    assert list(trained.values()) == [True, True, False, False]


def test_gains_and_shifts_that_do_nothing_and_are_no_weights_are_left_out(tmp_path: Path) -> None:
    nodes = [node("LayerNormalization", "x s b", "y", epsilon=0.1)]
    loaded = load(nodes, tmp_path, {"s": np.ones(6, np.float32), "b": np.zeros(6, np.float32)})
    assert loaded.graph is not None
    assert [found.op.name for found in loaded.graph.nodes] == ["layer_norm"]


def test_an_ordinary_norm_is_warned_of(tmp_path: Path) -> None:
    nodes = [node("Gemm", "x w", "h"), node("LayerNormalization", "h s", "y")]
    loaded = load(nodes, tmp_path, {"w": floats(6, 6), "s": floats(6)}, "cross_entropy")
    derivation = derive(loaded, ModelOptions())
    assert derivation.ok
    warned = [found.message for found in derivation.diagnostics if found.code == "LIP112"]
    assert len(warned) == 1
    assert "316.2" in warned[0]


@pytest.mark.parametrize("loss", ["nll", "cross_entropy"])
def test_a_last_log_softmax_joins_its_loss(tmp_path: Path, loss: str) -> None:
    nodes = [node("Gemm", "x w", "h"), node("LogSoftmax", "h", "y")]
    derivation = derive(load(nodes, tmp_path, {"w": floats(6, 6)}, loss), ModelOptions())
    assert derivation.analysis is not None
    assert [found.op.name for found in derivation.analysis.graph.nodes] == ["dense"]
    assert [found.code for found in derivation.diagnostics if found.severity == Severity.NOTE] == ["LIP215"]
