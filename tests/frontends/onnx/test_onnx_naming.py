"""Names of nodes and parameters: those of the modules of torch that a file was exported from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import onnx
import pytest

from lipcompile.frontends.onnx import model as onnx_model
from lipcompile.frontends.onnx.node import describe, module_of_path, named
from lipcompile.frontends.options import ModelOptions
from tests.frontends.onnx.onnx_models import floats, model, node, save


@pytest.mark.parametrize(
    ("path", "module"),
    [
        ("/Add", ""),
        ("/conv1/Conv", "conv1"),
        ("/layer1/layer1.0/conv1/Conv", "layer1.0.conv1"),
        ("/features/features.0/features.0.0/Conv", "features.0.0"),
        ("/features/features.1/block/block.0/Conv", "features.1.block.0"),
        ("/encoder/layers.0/self_attn/MatMul_1", "encoder.layers.0.self_attn"),
    ],
)
def test_modules_in_paths(path: str, module: str) -> None:
    assert module_of_path(path) == module


def traced(path: str, inputs: str = "x", output: str = "y") -> onnx.NodeProto:
    """A node as torch.onnx.export(dynamo=False) writes it."""
    made = node(path.rpartition("/")[2].partition("_")[0], inputs, output)
    made.name = path
    return made


def exported(op_type: str, modules: str, kinds: str, call: str, inputs: str = "x") -> onnx.NodeProto:
    """A node as torch.onnx.export(dynamo=True) writes it: modules and their classes, and the function."""
    made = node(op_type, inputs, "y")
    made.name = f"node_{call}"
    scopes, classes = ["", *modules.split(), call], ["Net", *kinds.split(), f"aten.{call}.default"]
    made.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=str(scopes))
    made.metadata_props.add(key="pkg.torch.onnx.class_hierarchy", value=str(classes))
    return made


def names(nodes: Sequence[onnx.NodeProto], *stored: str) -> list[str]:
    """What the nodes are called."""
    return [one.name for one in named([describe(proto, set(stored)) for proto in nodes])]


def test_an_activation_that_is_spelled_out_ends_in_the_name_of_its_module() -> None:
    paths = [f"/net/net.1/{op}" for op in ("Div", "Erf", "Add", "Mul", "Mul_1")]
    expected = ["net.1.div", "net.1.erf", "net.1.add", "net.1.mul", "net.1"]
    assert names([traced(path) for path in paths]) == expected


def test_a_module_with_parts_gives_its_name_to_none_of_its_own_nodes() -> None:
    nodes = [traced("/block/fc/Gemm", "x block.fc.weight"), traced("/block/ReduceMean"), traced("/Flatten")]
    assert names(nodes, "block.fc.weight") == ["block.fc", "block.reduce_mean", "flatten"]


def test_a_layer_with_weights_is_what_its_module_is_known_for() -> None:
    paths = ("/lstm/Transpose", "/lstm/LSTM", "/lstm/Squeeze")
    assert names([traced(path) for path in paths]) == ["lstm.transpose", "lstm", "lstm.squeeze"]


def test_other_names_stay() -> None:
    assert names([node("Relu", "x", "y"), onnx.helper.make_node("Relu", ["x"], ["y"])]) == ["Relu_y", "relu"]


RELU, SILU = "torch.nn.modules.activation.ReLU", "torch.nn.modules.activation.SiLU"


def test_a_layer_that_is_called_twice() -> None:
    nodes = [exported("Relu", "act", RELU, "relu"), exported("Relu", "act", RELU, "relu_1")]
    assert names(nodes) == ["act", "act"]
    nodes = [exported(op, "act", SILU, call) for call in ("silu", "silu_1") for op in ("Sigmoid", "Mul")]
    assert names(nodes) == ["act.sigmoid", "act", "act.sigmoid", "act"]


def test_a_convolution_that_took_in_a_normalisation_keeps_its_name() -> None:
    kinds = "net.Block torch.nn.modules.batchnorm.BatchNorm2d"
    merged = exported("Conv", "block block.bn", kinds, "batch_norm", "x block.conv.weight block.conv.weight_bias")
    assert names([merged], "block.conv.weight", "block.conv.weight_bias") == ["block.conv"]
    stranger = exported("Conv", "block block.bn", kinds, "batch_norm", "x other.conv.weight")
    assert names([stranger], "other.conv.weight") == ["block.bn.batch_norm"]


def test_projections_of_attention_are_parts_of_it() -> None:
    kind = "torch.nn.modules.activation.MultiheadAttention"
    nodes = [
        exported("Gemm", "attn", kind, "linear", "x attn.in_proj_weight attn.in_proj_bias"),
        exported("MatMul", "attn", kind, "attention"),
        exported("Gemm", "attn", kind, "linear_1", "x attn.out_proj.weight attn.out_proj.bias"),
    ]
    stored = ("attn.in_proj_weight", "attn.in_proj_bias", "attn.out_proj.weight", "attn.out_proj.bias")
    assert names(nodes, *stored) == ["attn.in_proj", "attn.mat_mul", "attn.out_proj"]


def test_tensors_that_are_no_layers_give_their_names_to_what_they_become(tmp_path: Path) -> None:
    weights = {"positions": floats(4, 3), "ls.gamma": floats(3), "val_3": floats(4, 3, seed=1)}
    nodes = [
        node("Add", "x positions", "h"),
        node("Mul", "h ls.gamma", "g"),
        node("Add", "g val_3", "k"),
        node("Flatten", "k", "y"),
    ]
    graph = onnx_model.load(save(model(nodes, ("n", 4, 3), weights), tmp_path), ModelOptions()).graph
    assert graph is not None
    assert list(graph.parameters) == ["positions.bias", "ls_gamma.gain", "Add_k.bias"]
