"""Trainable tokens beside those of the example, in .lip models, emitted modules and ONNX files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from lipcompile_torch.nn.layers import ClassToken

from lipcompile.frontends.onnx import model as onnx_model
from lipcompile.frontends.options import ModelOptions
from lipcompile.pipeline import check
from tests.attacks.graphs import interpret
from tests.emitters.test_emit import assert_within_bounds, derive
from tests.emitters.test_emit_attention import HEAD, SEQUENCE, assert_follows, randomised
from tests.frontends.onnx.onnx_models import Array, floats, model, node, save
from tests.frontends.onnx.test_onnx_semantics import KEEP, emitted


@pytest.mark.parametrize(
    ("call", "shape", "parameter"),
    [
        ("class_token", (6, 6), (1, 6)),
        ("class_token(0.5)", (6, 6), (1, 6)),
        ("class_token(bound=0.5, count=3, last=true)", (8, 6), (3, 6)),
        ("class_token(2, axis=1)", (5, 7), (5, 1)),
        ("class_token(2) attention(2) position(0.1) class_token(1, last=true)", (7, 6), (1, 6)),
    ],
)
def test_tokens_stand_beside_the_example(
    call: str, shape: tuple[int, ...], parameter: tuple[int, ...], tmp_path: Path
) -> None:
    derivation = derive(tmp_path, f"{SEQUENCE} {call} {HEAD}")
    assert derivation.analysis is not None
    graph = derivation.analysis.graph
    assert graph.shape(graph.node("flatten").inputs[0]) == shape
    assert graph.parameters["class_token.tokens"].shape == parameter
    model, theta = randomised(derivation, tmp_path)
    inputs = model.clip_input(3 * torch.randn(4, 5, 6, dtype=torch.double))
    for x, row in zip(inputs, model(inputs), strict=True):
        torch.testing.assert_close(row, interpret(graph, x, theta)[graph.output])
    model.criterion(model(inputs[:0]), torch.zeros(0).long()).backward()
    assert_within_bounds(model, "cross_entropy")
    assert_follows(derivation, tmp_path, model)


def test_a_layer_refuses_other_shapes() -> None:
    layer = ClassToken((2, 3), 1.0)
    assert layer(torch.zeros(0, 4, 3)).shape == (0, 6, 3)
    for wrong in (torch.zeros(1, 4, 2), torch.zeros(4, 3), torch.zeros(1, 1, 4, 3)):
        with pytest.raises(ValueError, match="cannot be joined to"):
            layer(wrong)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("class_token(1, axis=2)", "axis 2 does not exist in an example of shape [5, 6]"),
        ("class_token(-1)", "needs a bound of at least 0"),
        ("class_token(1, count=0)", "`count` must be at least 1"),
    ],
)
def test_what_does_not_fit_is_refused(call: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "model.lip"
    path.write_text(f"model net {{ {SEQUENCE} {call} }}")
    assert any(message in found.message for found in check(str(path)).diagnostics)


# ONNX


@pytest.mark.parametrize("last", [False, True])
def test_a_constant_becomes_tokens(last: bool, tmp_path: Path) -> None:
    weights: dict[str, Array] = {"cls": floats(1, 2, 3)}
    nodes = [node("Concat", "x cls" if last else "cls x", "h", axis=1), node("Flatten", "h", "y")]
    made = save(model(nodes, [1, 4, 3], weights), tmp_path)
    loaded = onnx_model.load(made, KEEP)
    assert loaded.graph is not None, loaded.diagnostics
    (parameter,) = loaded.graph.parameters.values()
    assert (parameter.shape, parameter.constraint.kind, parameter.trainable) == ((2, 3), "ball", True)
    assert float(parameter.constraint.bound) == pytest.approx(float(np.linalg.norm(weights["cls"])), rel=1e-5)  # type: ignore[arg-type]
    x = torch.randn(1, 4, 3)
    tokens = torch.from_numpy(weights["cls"])
    expected = torch.cat([x, tokens] if last else [tokens, x], dim=1).flatten(1)
    torch.testing.assert_close(emitted(loaded, tmp_path)(x), expected)
    by_default = onnx_model.load(made, ModelOptions()).graph
    assert by_default is not None
    assert {p.constraint.bound for p in by_default.parameters.values()} == {1}


def test_a_constant_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    nodes = [node("Concat", "cls x", "y", axis=1)]
    loaded = onnx_model.load(save(model(nodes, [1, 4, 3], {"cls": floats(1, 2, 2)}), tmp_path), KEEP)
    messages = [diagnostic.message for diagnostic in loaded.diagnostics]
    assert messages == ["a constant of shape [2, 2] cannot be concatenated to [4, 3] along axis 0"]
