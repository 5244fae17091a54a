"""Graphs as ONNX: what a runtime computes of them, and what the importer makes of them."""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from lipcompile.core.derivation import Derivation
from lipcompile.core.graph import Graph
from lipcompile.core.record import NoAttributes
from lipcompile.diagnostics import InputError
from lipcompile.emitters.onnx.emit import save, to_onnx
from lipcompile.emitters.torch.emit import emit
from lipcompile.frontends.options import ModelOptions
from lipcompile.ops.registry import register, unregister
from lipcompile.ops.rules import plain, same_shape
from lipcompile.ops.table import OPS
from lipcompile.pipeline import check
from tests.attacks.modules import UNTRAINED, random_model
from tests.emitters.test_emit import NETWORKS

SEEDS, DEEP = 25, 1500


def compiled(text: str, folder: Path) -> Derivation:
    path = folder / "model.lip"
    path.write_text(f"model net {{\n{text}\n}}\n")
    return check(str(path))


def graph_of(derivation: Derivation) -> Graph:
    assert derivation.analysis is not None, derivation.diagnostics
    return derivation.analysis.graph


def module_of(derivation: Derivation, seed: int) -> Any:
    """The emitted module in float32, with random weights inside their constraints."""
    space: dict[str, Any] = {"__name__": "emitted"}
    exec(compile(emit(derivation), "emitted.py", "exec"), space)
    torch.manual_seed(seed)
    model = space["Model"]().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
        model.project_()
    return model


def examples(graph: Graph, count: int = 4) -> torch.Tensor:
    """Examples inside the declared ball, or tokens."""
    if graph.input.tokens:
        entries = next(node.attributes.entries for node in graph.nodes if node.op.name == "embedding")
        return torch.randint(0, entries, (count, *graph.input.shape))
    x = torch.randn(count, *graph.input.shape)
    norms = x.flatten(1).norm(dim=1).reshape(-1, *(1,) * (x.dim() - 1))
    assert isinstance(graph.input.norm, Fraction)
    inside: torch.Tensor = x / norms * 0.99 * float(graph.input.norm)
    return inside


def run(model: onnx.ModelProto, x: torch.Tensor) -> Any:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    return found


def check_agreement(derivation: Derivation, seed: int) -> None:
    """A runtime computes what the emitted module computes with the same weights."""
    module, graph = module_of(derivation, seed), graph_of(derivation)
    model = to_onnx(graph, {name: p.detach().numpy() for name, p in module.named_parameters()})
    x = examples(graph)
    with torch.no_grad():
        expected = module(x).numpy()
    found = run(model, x)
    assert found.shape == expected.shape
    assert np.allclose(found, expected, rtol=1e-3, atol=1e-4 * max(1.0, float(np.abs(expected).max())))


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_of_every_family_is_computed(tmp_path: Path, name: str) -> None:
    derivation = compiled(f"{NETWORKS[name]}\n loss cross_entropy", tmp_path)
    if name != "names":  # whose module clips an input called like its method
        check_agreement(derivation, seed=0)
    onnx.checker.check_model(to_onnx(graph_of(derivation)), full_check=True)


@pytest.mark.parametrize("given", ["alpha=0, k=4", "beta=0, k=3", "beta=0"])
def test_a_response_that_does_not_depend_on_its_neighbours_is_computed(tmp_path: Path, given: str) -> None:
    """Runtimes refuse LRN with alpha or beta 0."""
    body = f"input x: tensor[4, 3, 3], norm <= 2\n lrn(3, {given}); lrn(2, {given}); flatten; dense(3)"
    check_agreement(compiled(f"{body}\n loss cross_entropy", tmp_path), seed=0)


def attack(folder: Path, seeds: range) -> set[str]:
    """Check random models and return the ops that were met."""
    met: set[str] = set()
    for seed in seeds:
        try:
            derivation = compiled("\n".join(random_model(seed)), folder)
        except InputError:
            continue
        if derivation.analysis is None:
            continue
        ops = {node.op.name for node in derivation.analysis.graph.nodes}
        try:
            check_agreement(derivation, seed)
        except Exception as error:  # onnxruntime moves a Pad into the pool behind it, and refuses the result
            if "Pad should be smaller than kernel" not in str(error):
                raise
        met |= ops
    return met


def test_random_models_are_computed(tmp_path: Path) -> None:
    attack(tmp_path, range(SEEDS))


def test_what_cannot_be_written_is_refused(tmp_path: Path) -> None:
    """An op that a user has added has no ONNX operators."""
    register(plain("softer", NoAttributes, same_shape, "own.md#softer"))
    try:
        derivation = compiled("input x: tensor[4], norm <= 2\n softer; dense(3)\n loss cross_entropy", tmp_path)
    finally:
        unregister("softer")
    with pytest.raises(InputError, match="no ONNX operators compute the op `softer`"):
        to_onnx(graph_of(derivation))


@pytest.mark.nightly
def test_all_ops_in_random_models(tmp_path: Path) -> None:
    missing = {op.name for op in OPS} - attack(tmp_path, range(DEEP))
    own = ("where", "sign", "hard_shrink", "dot_product_attention", "prelu", "lrn", "matmul", "noise", "pointwise")
    assert missing <= {*UNTRAINED, *own}


# Back again


def bounds(derivation: Derivation) -> list[float]:
    assert derivation.analysis is not None
    return sorted(bound.value for bound in derivation.analysis.parameters.values() if bound.value is not None)


ROUND_TRIPS = {
    "mlp": """input x: tensor[6], norm <= 2
        dense(8, bias=1); groupsort; dense(4); groupsort(4); fullsort; dense(3)""",
    "convnet": """input x: tensor[2, 6, 6], norm <= 1
        conv2d(4, kernel=3, padding=1, stride=2, bias=1/3); maxmin; max_pool(2, stride=1); l2_pool(2)
        conv_transpose2d(2, kernel=2, stride=2, groups=2); avg_pool(2, padding=1, count_include_pad=false)
        upsample(2, mode=bilinear); global_avg_pool; dense(3)""",
    "activations": """input x: tensor[6], norm <= 2
        elu(0.5); celu; selu; gelu; dense(6); gelu(approximate=tanh); silu; mish; hard_swish; hard_sigmoid
        softsign; dense(6); relu6; leaky_relu(0.25); prelu; scale; tanh; sigmoid; softplus; abs; dense(3)""",
    "sequence": """input x: tensor[3, 8], norm <= 2
        layer_norm(floor=0.5); scale; bias(1); dense(8); rms_norm(floor=0.25); softmax; transpose; dense(4)
        layer_norm(eps=0.25, axes=(0, 1)); reduce_l2(axes=(0,)); dense(3)""",
    "norms": """input x: tensor[4, 3, 3], norm <= 2
        group_norm(2, floor=0.5); instance_norm(eps=0.25); lrn(3); reduce_mean(axes=(1, 2)); dense(3)""",
    "merges": """input x: tensor[4, 2], norm <= 2
        residual(add) { dense(2); relu }; residual(mean) { dense(2) }; a = dense(2); b = dense(2); maximum(a, b)
        branch { dense(2) } { tanh } -> concat; multiply_it = sigmoid; multiply(multiply_it, multiply_it)
        slice(0, 0, 2); gather((0, 1, 1)); pad(((1, 0),)); flatten; dense(3)""",
    "projections": """input x: tensor[4, 3], norm <= 2
        center; center(axes=(0,)); clip_norm(0.5); class_token; flatten; dense(3)""",
    "shared": """input x: tensor[4], norm <= 2
        dense(4, share="a"); tanh; dense(4, share="a"); relu; dense(3)""",
}


@pytest.mark.parametrize("name", ROUND_TRIPS)
def test_the_importer_reads_it_back(tmp_path: Path, name: str) -> None:
    """Equal constraints and ops give equal bounds, but for numbers that float32 rounds."""
    derivation = compiled(f"{ROUND_TRIPS[name]}\n loss cross_entropy(temperature=1/3)", tmp_path)
    assert derivation.analysis is not None
    path = tmp_path / "model.onnx"
    save(to_onnx(derivation.analysis.graph), path)
    again = check(str(path))
    assert again.analysis is not None, [found.message for found in again.diagnostics]
    assert again.analysis.total.value == pytest.approx(derivation.analysis.total.value, rel=1e-5)
    assert bounds(again) == pytest.approx(bounds(derivation), rel=1e-5)


def test_numbers_of_imported_weights_come_back(tmp_path: Path) -> None:
    source = Path(__file__).parents[2] / "examples" / "convnet.onnx"
    options = ModelOptions(constraint="keep")
    first = check(str(source), options)
    assert first.analysis is not None
    path = tmp_path / "again.onnx"
    save(to_onnx(first.analysis.graph), path)
    second = check(str(path), options)
    assert second.analysis is not None
    assert second.analysis.total.value == pytest.approx(first.analysis.total.value, rel=1e-6)
    for name, parameter in first.analysis.graph.parameters.items():
        assert np.array_equal(second.analysis.graph.parameters[name].initial, parameter.initial)  # type: ignore[arg-type]


# What the file says


def declared(text: str, folder: Path) -> onnx.ModelProto:
    return to_onnx(graph_of(compiled(text, folder)))


def test_metadata_and_versions(tmp_path: Path) -> None:
    text = (
        "input x: tensor[4], norm <= 1/3\n dense(3)\n loss cross_entropy(temperature=0.5, class_weights=(1, 2, 3))"
    )
    model = declared(text, tmp_path)
    assert {entry.key: entry.value for entry in model.metadata_props} == {
        "lipcompile.input_norm": "1/3",
        "lipcompile.loss": "cross_entropy:temperature=0.5,class_weights=(1, 2, 3)",
    }
    assert (model.ir_version, [(o.domain, o.version) for o in model.opset_import]) == (9, [("", 20)])
    (batch, four) = model.graph.input[0].type.tensor_type.shape.dim
    assert (batch.dim_param, four.dim_value) == ("batch", 4)


def test_weights_without_values_start_inside_their_constraints(tmp_path: Path) -> None:
    text = (
        "input x: tensor[2, 5, 5], norm <= 1\n conv2d(4, kernel=3); flatten; dense(3, bias=1); loss cross_entropy"
    )
    save(declared(text, tmp_path), tmp_path / "m.onnx")
    derivation = check(str(tmp_path / "m.onnx"))
    assert derivation.ok
    assert not [found for found in derivation.diagnostics if found.code == "LIP305"]


def test_examples_are_never_mixed_by_reductions_without_axes(tmp_path: Path) -> None:
    """A reduction over no axes is one over all of them, in ONNX: the batch among them."""
    text = "input x: tensor[3], norm <= 9\n dense(2); logsumexp; clip_norm(1/2); flatten; dense(2)"
    check_agreement(compiled(f"{text}; loss cross_entropy", tmp_path), seed=1)


def test_dropout_acts_in_training_alone(tmp_path: Path) -> None:
    graph = graph_of(
        compiled("input x: tensor[4], norm <= 1\n dropout(0.5); dense(2); loss cross_entropy", tmp_path)
    )
    assert len(next(node for node in to_onnx(graph).graph.node if node.op_type == "Dropout").input) == 2
    trained = to_onnx(graph, training=True)
    assert len(next(node for node in trained.graph.node if node.op_type == "Dropout").input) == 3


def test_wrong_weights_are_refused(tmp_path: Path) -> None:
    graph = graph_of(compiled("input x: tensor[4], norm <= 1\n dense(2); loss cross_entropy", tmp_path))
    with pytest.raises(ValueError, match=re.escape("`dense.weight` has the shape [4, 2], not [2, 4]")):
        to_onnx(graph, {"dense.weight": np.zeros((4, 2))})


def test_open_repetitions_and_numbers_are_refused(tmp_path: Path) -> None:
    text = "param n: int\n param c: real\n input x: tensor[4], norm <= 1\n repeat n { relu }\n add(weights=(c,))"
    with pytest.raises(InputError) as caught:
        declared(f"{text}; dense(2)\n loss cross_entropy", tmp_path)
    assert [found.code for found in caught.value.diagnostics] == ["LIP017", "LIP017"]
