"""RNN, GRU and LSTM of ONNX files against onnxruntime, and those that torch's exporters write."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from lipcompile_torch.nn.own_losses import OneByOneWarning

import lipcompile
from lipcompile.frontends.onnx import model as onnx_model
from lipcompile.frontends.options import Loaded
from lipcompile.ops.recurrent.onnx_read import MOST_STEPS
from tests.frontends.onnx.onnx_models import Array, floats, ints, model, node, save
from tests.frontends.onnx.test_onnx_attention import assert_refused
from tests.frontends.onnx.test_onnx_semantics import KEEP, emitted
from tests.nights import by_day

STEPS, FEATURES, WIDTH = 4, 3, 5
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
DIRECTIONS = {"forward": 1, "reverse": 1, "bidirectional": 2}
FLAT = node("Flatten", "z", "y")
# How an output is brought to a vector, with the batch in front.
ENDS = {
    "Y": [node("Transpose", "Y", "z", perm=(2, 0, 1, 3)), FLAT],
    "Y_h": [node("Transpose", "Y_h", "z", perm=(1, 0, 2)), FLAT],
    "Y_c": [node("Transpose", "Y_c", "z", perm=(1, 0, 2)), FLAT],
}
START = node("Transpose", "x", "s", perm=(1, 0, 2))


def stored(kind: str, directions: int, features: int = FEATURES, width: int = WIDTH) -> dict[str, Array]:
    """Weights and biases of a cell."""
    gates = GATES[kind] * width
    shapes = {"W": (directions, gates, features), "R": (directions, gates, width), "B": (directions, 2 * gates)}
    return {name: floats(*shape, seed=seed, scale=0.6) for seed, (name, shape) in enumerate(shapes.items())}


def cell(
    kind: str,
    output: str = "Y",
    operands: str = "s W R B",
    weights: Mapping[str, Array] | None = None,
    directions: int = 1,
    **attributes: Any,
) -> onnx.ModelProto:
    """A cell over x [batch, steps, features], of whose outputs one is used."""
    names = " ".join(name if name == output else "_" for name in ("Y", "Y_h", "Y_c")[: 3 if kind == "LSTM" else 2])
    attributes = {"hidden_size": WIDTH} | attributes
    nodes = [START, node(kind, operands, names, **attributes), *ENDS[output]]
    return model(nodes, ["batch", STEPS, FEATURES], {**stored(kind, directions), **(weights or {})})


def agree(made: onnx.ModelProto, folder: Path, batch: int = 3) -> Loaded:
    """Assert that the emitted module computes what onnxruntime does; return what was loaded."""
    loaded = onnx_model.load(save(made, folder), KEEP)
    module = emitted(loaded, folder)
    x = np.random.default_rng(1).standard_normal((batch, *module.input_shape)).astype(np.float32)
    session = onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, {session.get_inputs()[0].name: x})
    np.testing.assert_allclose(module(torch.from_numpy(x)).detach().numpy(), expected, rtol=2e-5, atol=2e-6)
    return loaded


@pytest.mark.parametrize("output", ENDS)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("kind", GATES)
def test_a_cell_computes_what_onnxruntime_does(kind: str, direction: str, output: str, tmp_path: Path) -> None:
    if output == "Y_c" and kind != "LSTM":
        return
    count = DIRECTIONS[direction]
    loaded = agree(cell(kind, output, directions=count, direction=direction), tmp_path)
    assert loaded.graph is not None
    matrices = 3 if kind == "GRU" else 2  # of a GRU, the matrix of the reset state is one of its own
    assert len(loaded.graph.parameters) == count * (matrices + 1)


@pytest.mark.parametrize("operands", ["s W R B", "s W R"])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_a_gru_may_reset_behind_its_matrix(direction: str, operands: str, tmp_path: Path) -> None:
    count = DIRECTIONS[direction]
    made = cell("GRU", operands=operands, directions=count, direction=direction, linear_before_reset=1)
    loaded = agree(made, tmp_path)
    assert loaded.graph is not None
    names = set(loaded.graph.parameters)
    assert len(names) == count * (4 if "B" in operands else 2), names


@pytest.mark.parametrize("kind", GATES)
def test_a_cell_without_biases(kind: str, tmp_path: Path) -> None:
    agree(cell(kind, operands="s W R"), tmp_path)


@pytest.mark.parametrize("kind", GATES)
def test_a_cell_of_one_number_is_trained(kind: str, tmp_path: Path) -> None:
    nodes = [START, node(kind, "s W R B", "Y", hidden_size=1), *ENDS["Y"]]
    loaded = agree(model(nodes, ["batch", 2, 1], stored(kind, 1, 1, 1)), tmp_path)
    assert loaded.graph is not None
    assert all(parameter.trainable for parameter in loaded.graph.parameters.values())


def test_what_changes_nothing_may_be_given(tmp_path: Path) -> None:
    """A batch of 3 whose states begin at 0, peepholes of 0, full lengths, and the usual activations by name."""
    zeros: dict[str, Array] = {"h": np.zeros((1, 3, WIDTH), np.float32), "c": np.zeros((1, 3, WIDTH), np.float32)}
    extra = {**zeros, "p": np.zeros((1, 3 * WIDTH), np.float32), "n": np.full(3, STEPS, np.int32)}
    made = cell("LSTM", operands="s W R B n h c p", weights=extra, activations=["Sigmoid", "Tanh", "Tanh"])
    made.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 3
    agree(made, tmp_path)


@pytest.mark.parametrize("output", by_day({"Y_h"}, ["Y", "Y_h"]))
@pytest.mark.parametrize("kind", GATES)
def test_the_batch_may_stand_in_front(kind: str, output: str, tmp_path: Path) -> None:
    """Layout 1, which onnxruntime does not have: the same as layout 0 between two transpositions."""
    usual = cell(kind, output, directions=2, direction="bidirectional")
    names = " ".join(name if name == output else "_" for name in ("Y", "Y_h"))
    turned = node(
        kind, "x W R B", names.replace(output, "z"), hidden_size=WIDTH, direction="bidirectional", layout=1
    )
    made = model([turned, FLAT], ["batch", STEPS, FEATURES], stored(kind, 2))
    x = torch.randn(3, STEPS, FEATURES)
    results = []
    for index, one in enumerate((usual, made)):
        (folder := tmp_path / str(index)).mkdir()
        results.append(emitted(onnx_model.load(save(one, folder), KEEP), folder)(x))
    assert torch.equal(*results)


def test_one_weight_serves_two_layers(tmp_path: Path) -> None:
    """Two layers with equal operands are tied: one parameter each, of all steps of both."""
    weights = stored("RNN", 1, WIDTH)
    nodes = [START, node("RNN", "s W R B", "a", hidden_size=WIDTH), node("Squeeze", "a one", "b")]
    nodes += [node("RNN", "b W R B", "Y", hidden_size=WIDTH), *ENDS["Y"]]
    loaded = agree(model(nodes, ["batch", STEPS, WIDTH], {**weights, "one": ints(1)}), tmp_path)
    assert loaded.graph is not None
    assert len(loaded.graph.parameters) == 3


def test_a_weight_that_others_use_as_well_is_refused(tmp_path: Path) -> None:
    """A tensor that is a recurrent layer's, in parts, and a dense layer's, as a whole."""
    weights = stored("RNN", 1, WIDTH) | {"shape": ints(WIDTH, WIDTH)}
    nodes = [START, node("Reshape", "W shape", "M"), node("RNN", "s W R B", "_ h", hidden_size=WIDTH)]
    dense = node("MatMul", "x M", "d")
    end = [node("Transpose", "h", "t", perm=(1, 0, 2)), node("Add", "t d", "z"), FLAT]
    for order in ([dense, *nodes[1:]], [*nodes[1:], dense]):
        listed = [nodes[0], *sorted(order, key=lambda one: one.op_type != "Reshape"), *end]
        made = model(listed, ["batch", STEPS, WIDTH], weights)
        assert_refused(made, tmp_path, ["the stored tensor `W` is used here in another way"])


LONG = np.full(1, STEPS - 1, np.int32)


@pytest.mark.parametrize(
    ("kind", "operands", "attributes", "message"),
    [
        ("RNN", "s W R", {"activations": ["Relu"]}, "RNN with the activations relu is not yet supported"),
        (
            "LSTM",
            "s W R",
            {"activations": ["Sigmoid", "Tanh", "Relu"]},
            "with the activations sigmoid, tanh, relu",
        ),
        ("LSTM", "s W R", {"clip": 1.0}, "clip of LSTM is not yet supported"),
        ("LSTM", "s W R", {"input_forget": 1}, "input_forget of LSTM is not yet supported"),
        ("LSTM", "s W R B _ one", {}, "the initial state of LSTM other than 0"),
        ("LSTM", "s W R B _ _ one", {}, "the initial memory of LSTM other than 0"),
        ("LSTM", "s W R B _ _ _ one", {}, "the peephole weights of LSTM other than 0"),
        ("GRU", "s W R B short", {}, "sequences of different lengths"),
        ("GRU", "s W R _ _ x", {}, "the initial state of GRU is no state of each example"),
        ("GRU", "s W R", {"layout": 1}, "GRU treats axis 0 as the batch axis, but it is not"),
        ("GRU", "flat W R", {}, "GRU needs sequences [steps, features], not [12]"),
        ("GRU", "s W W", {}, "the recurrence weights of GRU have the shape [1, 15, 3], which does not fit"),
        ("GRU", "s W R", {"hidden_size": 4}, "the recurrence weights of GRU have the shape [1, 15, 5]"),
        ("GRU", "s W R W", {}, "the biases of GRU have the shape [1, 15, 3]"),
        ("GRU", "s W R", {"direction": "bidirectional"}, "have the shape [1, 15, 3], which does not fit"),
        ("GRU", "s W R", {"direction": "sideways"}, "GRU has no direction `sideways`"),
    ],
)
def test_what_the_cells_do_not_compute_is_refused(
    kind: str, operands: str, attributes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    extra = {"one": np.ones((1, 1, WIDTH), np.float32), "short": LONG}
    made = cell(kind, operands=operands, weights=extra, **attributes)
    made.graph.node.insert(0, node("Flatten", "x", "flat"))
    assert_refused(made, tmp_path, [message])


def test_a_batch_where_the_steps_should_be_is_refused(tmp_path: Path) -> None:
    """The model would take examples for steps."""
    nodes = [node("GRU", "x W R", "_ h", hidden_size=WIDTH), node("Flatten", "h", "y")]
    made = model(nodes, ["batch", STEPS, FEATURES], stored("GRU", 1))
    loaded = onnx_model.load(save(made, tmp_path), KEEP)
    assert "GRU treats axis 1 as the batch axis, but it is not" in loaded.diagnostics[0].message


def test_too_many_steps_are_refused(tmp_path: Path) -> None:
    made = cell("RNN")
    made.graph.input[0].type.tensor_type.shape.dim[1].dim_value = MOST_STEPS + 1
    assert_refused(made, tmp_path, [f"RNN over {MOST_STEPS + 1} steps is not yet supported"])


# Torch


class Net(torch.nn.Module):
    """A recurrent layer and a linear one behind its last step."""

    def __init__(self, layer: torch.nn.Module, width: int) -> None:
        super().__init__()
        self.layer, self.head = layer, torch.nn.Linear(width, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map [batch, steps, features] to [batch, 2]."""
        logits: torch.Tensor = self.head(self.layer(x)[0][:, -1])
        return logits


LAYERS: Mapping[str, Callable[[], torch.nn.Module]] = {
    "rnn": lambda: torch.nn.RNN(FEATURES, WIDTH, batch_first=True),
    "gru": lambda: torch.nn.GRU(FEATURES, WIDTH, batch_first=True),
    "lstm": lambda: torch.nn.LSTM(FEATURES, WIDTH, batch_first=True),
    "without biases": lambda: torch.nn.GRU(FEATURES, WIDTH, batch_first=True, bias=False),
    "two layers": lambda: torch.nn.LSTM(FEATURES, WIDTH, num_layers=2, batch_first=True),
    "both directions": lambda: torch.nn.LSTM(FEATURES, WIDTH, batch_first=True, bidirectional=True),
}


# The newer exporter writes a plain RNN step by step, in matrix products: no node is left to import.
EXPORTS = [
    *((name, False) for name in LAYERS),
    ("both directions", True),
    *(pytest.param(name, True, marks=pytest.mark.nightly) for name in ("gru", "two layers")),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "dynamo"), EXPORTS)
def test_what_torch_exports(name: str, dynamo: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = Net(LAYERS[name](), WIDTH * (2 if name == "both directions" else 1)).eval()
    example, path = torch.randn(2, STEPS, FEATURES), tmp_path / "exported.onnx"
    axes: dict[str, Any] = (
        {"dynamic_shapes": ({0: "batch"},)}
        if dynamo
        else {"dynamic_axes": {"x": {0: "batch"}}, "input_names": ["x"]}
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(net, (example,), path, dynamo=dynamo, verbose=False, external_data=False, **axes)
    loaded = onnx_model.load(path, KEEP)
    assert loaded.graph is not None, [diagnostic.message for diagnostic in loaded.diagnostics]
    x = torch.randn(5, STEPS, FEATURES)
    torch.testing.assert_close(emitted(loaded, tmp_path)(x), net(x), rtol=2e-5, atol=2e-6)
    weights = {p.data_ptr() for p in net.parameters()}
    biases = 0 if name == "without biases" else sum("bias_hh" in key for key, _ in net.named_parameters())
    merged = biases if "gru" not in name else 0  # the biases of input and state act as one, except in a GRU
    assert len(loaded.graph.parameters) == len(weights) - merged


class LastState(Net):
    """The same behind the last state, [layers, batch, width]."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map [batch, steps, features] to [batch, 2]."""
        logits: torch.Tensor = self.head(self.layer(x)[1][-1])
        return logits


PLAIN: Mapping[str, dict[str, Any]] = {
    "plain": {},
    "without biases": {"bias": False},
    "two layers": {"num_layers": 2, "dropout": 0.5},
    "both directions": {"bidirectional": True},
    "two layers, both directions": {"num_layers": 2, "bidirectional": True},
}


@pytest.mark.parametrize("name", by_day({"without biases", "two layers, both directions"}, PLAIN))
@pytest.mark.parametrize("kind", [Net, LastState])
def test_plain_rnn_modules_are_read(name: str, kind: Callable[..., Net]) -> None:
    torch.manual_seed(0)
    options = PLAIN[name]
    layer = torch.nn.RNN(FEATURES, WIDTH, batch_first=True, **options)
    net = kind(layer, WIDTH * (2 if kind is Net and "bidirectional" in options else 1))
    private = lipcompile.private(net, (STEPS, FEATURES), bounds="clip").eval()
    x = torch.randn(5, STEPS, FEATURES)
    torch.testing.assert_close(private(x), net.eval()(x), rtol=2e-5, atol=2e-6)


@pytest.mark.filterwarnings("ignore::lipcompile_torch.nn.own_losses.OneByOneWarning")  # of the import
def test_a_plain_rnn_of_another_activation_is_computed_alone_and_named() -> None:
    net = Net(torch.nn.RNN(FEATURES, WIDTH, batch_first=True, nonlinearity="relu"), WIDTH)
    with pytest.warns(UserWarning, match="RNN with the activations relu is not yet supported"):
        private = lipcompile.private(net, (STEPS, FEATURES), bounds="clip").eval()
    x = torch.randn(5, STEPS, FEATURES)
    with pytest.warns(OneByOneWarning, match="torch.vmap cannot run the network"):
        torch.testing.assert_close(private(x), net.eval()(x), rtol=2e-5, atol=2e-6)


@pytest.mark.filterwarnings("ignore::lipcompile_torch.nn.own_losses.OneByOneWarning")  # of the import
@pytest.mark.parametrize("options", [{}, {"bias": False, "bidirectional": True, "num_layers": 2}])
def test_an_lstm_with_projected_states_is_computed_alone(options: dict[str, Any]) -> None:
    """Torch's exporter drops the matrix that projects, and writes another network."""
    net = Net(
        torch.nn.LSTM(FEATURES, WIDTH, batch_first=True, proj_size=2, **options), 2 * (1 + len(options) // 3)
    )
    with pytest.warns(UserWarning, match="whose states are projected is not yet supported"):
        private = lipcompile.private(net, (STEPS, FEATURES), bounds="clip").eval()
    x = torch.randn(5, STEPS, FEATURES)
    with pytest.warns(OneByOneWarning):
        torch.testing.assert_close(private(x), net.eval()(x), rtol=2e-5, atol=2e-6)
