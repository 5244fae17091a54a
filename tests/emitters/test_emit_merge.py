"""Emitted merges agree with their definition, and their gradients stay within the bounds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lipcompile.core.graph import Graph
from tests.attacks.graphs import interpret
from tests.emitters.test_emit import assert_within_bounds, build, derive
from tests.frontends.lip.test_dsl import problems

VECTOR, IMAGE = "input x: tensor[6], norm <= 2\n", "input x: tensor[4, 3, 3], norm <= 2\n"
MODELS = {
    "gate": VECTOR + "h = dense(6) dense(x, 6) g = sigmoid multiply(h, g)",
    "a square": VECTOR + "h = tanh multiply(h, h)",
    "one gate for all": VECTOR + "h = dense(6) dense(x, 1) g = sigmoid multiply(g, h)",
    "channels": IMAGE + "global_avg_pool sigmoid g = reshape(4, 1, 1) multiply(x, g) flatten",
    "channels, kept": IMAGE + "global_avg_pool(keep=true) g = tanh multiply(g, x) flatten",
    "rows": "input x: tensor[3, 4], norm <= 2\n dense(1) g = sigmoid multiply(x, g) flatten",
    "a vector on every row": """input x: tensor[3, 4], norm <= 2
        slice(axis=0, start=1, stop=2) g = reshape(4) multiply(g, x) flatten""",
    "maximum": VECTOR + "a = dense(4) b = dense(x, 4) c = dense(x, 4) maximum(a, b, c)",
    "minimum": VECTOR + "a = dense(4) b = dense(x, 4) minimum(a, b)",
    "a tie": VECTOR + "maximum(x, x)",
    "branch of a gate": VECTOR + "branch { dense(6) } { dense(6) sigmoid } -> multiply",
    "branch of extremes": VECTOR
    + "branch { branch { dense(4) } { dense(4) relu } -> maximum } { dense(4) } -> minimum",
}


def interpreted(graph: Graph, model: Any, x: Tensor) -> Tensor:
    theta: Mapping[str, Tensor] = dict(model.named_parameters())
    return torch.stack([interpret(graph, example, theta)[graph.output] for example in model.clip_input(x)])


@pytest.mark.parametrize("follow", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_a_merge_computes_what_its_definition_says(tmp_path: Path, name: str, follow: bool) -> None:
    derivation = derive(tmp_path, MODELS[name] + "\n dense(3) loss cross_entropy")
    assert derivation.analysis is not None
    model = build(derivation, tmp_path, follow)
    x = torch.randn(5, *model.input_shape, dtype=torch.double)
    torch.testing.assert_close(model(x), interpreted(derivation.analysis.graph, model, x))
    assert model(x[:0]).shape == (0, 3)
    assert_within_bounds(model, "cross_entropy")


@pytest.mark.parametrize(
    ("body", "code", "message"),
    [
        ("g = dense(3) multiply(x, g)", "LIP102", "[4] and [3] cannot be multiplied"),
        ("g = dense(3) maximum(x, g)", "LIP102", "[4] and [3] cannot be compared"),
        ("multiply(x)", "LIP012", "`multiply` needs the names of two tensors"),
        ("multiply", "LIP012", "`multiply` needs the names of two tensors"),
        ("multiply(x, x, x)", "LIP012", "`multiply` takes at most 2 tensors, not 3"),
        ("minimum(x)", "LIP012", "`minimum` needs the names of two or more tensors"),
        ("branch { relu } { relu } { relu } -> multiply", "LIP012", "`multiply` takes 2 branches, not 3"),
        ("branch { relu } { relu } -> divide", "LIP012", "branches end in `add`, `mean`, `multiply`, `maximum`"),
        ("branch { relu } { relu } -> maximum(2)", "LIP012", "branches end in"),
    ],
)
def test_merges_that_do_not_fit_are_refused(tmp_path: Path, body: str, code: str, message: str) -> None:
    (found,) = problems(tmp_path, f"model m {{ input x: tensor[4], norm <= 1\n {body} }}")
    assert found.code == code
    assert message in found.message
