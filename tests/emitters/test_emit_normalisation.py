"""Norms, centring and softmax in emitted modules: the same output as their definitions, within their bounds."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lipcompile.diagnostics import Severity
from tests.attacks.graphs import interpret
from tests.emitters.test_emit import assert_within_bounds, build, derive

NETWORKS = {
    "images": """input x: tensor[4, 5, 5], norm <= 4
        conv2d(6, 3) group_norm(3, floor=0.1) scale(2) bias(0.5) instance_norm(floor=0.25) center(axes=0)
        layer_norm(axes=(0, 1, 2), floor=0.3) lrn(3, alpha=2, k=1.5) center flatten dense(3)""",
    "even windows": """input x: tensor[5, 4], norm <= 4
        conv1d(4, 3) lrn(4, alpha=1, beta=0.5) lrn(2, alpha=0.5, beta=1, k=0.7) flatten dense(3)""",
    "sequences": """input x: tensor[3, 6], norm <= 5
        dense(6) layer_norm(floor=0.1) dense(6) rms_norm(floor=0.2, axes=-1) softmax(temperature=2.5)
        softmax(axis=0) dense(4) log_softmax log_softmax(0) flatten dense(3)""",
    "vectors": """input x: tensor[8], norm <= 5
        dense(6) group_norm(2, eps=0.1) dense(6) layer_norm(eps=0.3) rms_norm(eps=0.25) dense(6) softmax
        dense(3)""",
    "frozen": """input x: tensor[8], norm <= 5
        frozen { dense(6) layer_norm(eps=0.00001) } dense(3)""",
}


@pytest.mark.parametrize("name", NETWORKS)
def test_emitted_modules_compute_the_definitions(tmp_path: Path, name: str) -> None:
    derivation = derive(tmp_path, NETWORKS[name] + "\n loss cross_entropy")
    assert derivation.analysis is not None
    assert not derivation.diagnostics
    graph = derivation.analysis.graph
    model = build(derivation, tmp_path)
    theta = dict(model.named_parameters())
    x = torch.randn(4, *model.input_shape, dtype=torch.double)
    expected = [interpret(graph, model.clip_input(one[None])[0], theta)[graph.output] for one in x]
    torch.testing.assert_close(model(x), torch.stack(expected))
    assert model(x[:0]).shape == (0, 3)
    assert_within_bounds(model, "cross_entropy")


@pytest.mark.parametrize(
    ("layer", "factor"),
    [("layer_norm(eps=0.00001)", "316.2"), ("group_norm(2, eps=0.0001)", "100"), ("rms_norm(floor=0.05)", "20")],
)
def test_a_steep_norm_behind_trained_layers_is_warned_of(tmp_path: Path, layer: str, factor: str) -> None:
    derivation = derive(tmp_path, f"input x: tensor[4], norm <= 1 dense(4) {layer} dense(2) loss cross_entropy")
    (found,) = derivation.diagnostics
    assert (found.code, found.severity) == ("LIP112", Severity.WARNING)
    assert found.message.endswith(f"by {factor}")


def test_bounds_that_follow_the_weights_use_the_same_rules(tmp_path: Path) -> None:
    derivation = derive(tmp_path, NETWORKS["sequences"] + "\n loss cross_entropy")
    model = build(derivation, tmp_path, follow_weights=True)
    bounds = model.gradient_bounds()
    assert all(bounds[name] <= limit * (1 + 1e-6) for name, limit in model.bounds.items())
    assert_within_bounds(model, "cross_entropy")
