"""Examples that come as several views: their mean is clipped as one, and bounded by theorem as one view is."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from lipcompile_torch.train.loss_clipping import clip_cotangents
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint

from tests.torch.clip_nets import NETWORKS, B, batch, clipped, model, outputs

# With an inner clip of cotangents, of which some are within and some are not.
PROVED = {
    "vectors": "input x: tensor[5], norm <= 1; dense(7, bias=1); relu; clip_gradient(0.05); dense(3)",
    "images": """input x: tensor[2, 7, 6], norm <= 1
        conv2d(4, kernel=3, stride=2, padding=1, bias=1); relu; flatten; dense(3)""",
    "tokens of a table": "input x: tokens[7]; embedding(5, 4); flatten; clip_gradient(0.1); dense(3)",
}


@pytest.mark.parametrize("name", ["vectors", "tokens", "images", "pointwise", "recurrent"])
def test_an_example_with_a_view_that_is_not_finite_adds_nothing(name: str, tmp_path: Path) -> None:
    module = model(NETWORKS[name], tmp_path)
    x, y = batch(module, views=(3,))
    alone = clipped(module, x[1:], y[1:])
    x[0, 1] = math.nan
    found = clipped(module, x, y)
    assert all(torch.allclose(found[n], alone[n], rtol=1e-5, atol=1e-7) for n in found)


@pytest.mark.parametrize("name", NETWORKS)
def test_equal_views_are_one_view(name: str, tmp_path: Path) -> None:
    module = model(NETWORKS[name], tmp_path)
    x, y = batch(module)
    wanted = clipped(module, x, y)
    found = clipped(module, x[:, None].repeat_interleave(4, 1), y)
    assert all(torch.allclose(found[n], wanted[n], rtol=1e-4, atol=1e-6) for n in wanted)


@pytest.mark.parametrize("name", PROVED)
@pytest.mark.parametrize("loss_clip", [None, 0.1])
def test_equal_views_are_one_view_by_theorem(name: str, loss_clip: float | None, tmp_path: Path) -> None:
    """So clips of cotangents, inside and at the loss, leave each view its share: else they add up to V times C."""
    module = model(PROVED[name], tmp_path, "theorem")
    module.project_()
    module.normaliser, module.loss_clip = 8.0, loss_clip
    x, y = batch(module, scale=0.3)
    wanted, largest = clipped(module, x, y), float(module.gate.largest)
    found = clipped(module, x[:, None].repeat_interleave(4, 1), y)
    assert all(torch.allclose(found[n], wanted[n], rtol=1e-4, atol=1e-7) for n in wanted)
    assert float(module.gate.largest) == pytest.approx(largest, rel=1e-5)
    assert module.gate.examples == B


@pytest.mark.parametrize("name", PROVED)
def test_bounds_by_theorem_hold_for_views(name: str, tmp_path: Path) -> None:
    module = model(PROVED[name], tmp_path, "theorem")
    module.project_()
    bounds = module.gradient_bounds()
    for one in range(B):
        x, y = batch(module, views=(5,), scale=1.0)
        for parameter, gradient in clipped(module, x[one : one + 1], y[one : one + 1]).items():
            assert float(gradient.norm()) <= bounds[parameter] * (1 + 1e-5)


def test_the_length_of_a_cotangent_is_the_sum_over_views(tmp_path: Path) -> None:
    """Of two views 3/2 and 4/2: 3.5, where all entries together have 2.5, and a theorem bounds each view apart."""
    module = model(NETWORKS["vectors"], tmp_path)
    module.gate.record(torch.tensor([[[1.5, 0.0], [0.0, 2.0]]]), 1.0, None, 2)
    assert float(module.gate.largest) == 3.5
    assert module.gate.examples == 1


def test_examples_are_within_a_clip_with_all_their_views() -> None:
    cotangent = torch.tensor([[3.0], [0.5], [0.5], [0.5]])
    clipped_rows, within = clip_cotangents(cotangent, 1.0, 2)
    assert float(within) == 1.0
    assert clipped_rows.flatten().tolist() == pytest.approx([1.0, 0.5, 0.5, 0.5])


def test_features_have_views_too(tmp_path: Path) -> None:
    body = "input x: tensor[6], norm <= 1; frozen { dense(5); relu }; dense(3)"
    module = model(body, tmp_path, "theorem")
    module.project_()
    x, y = batch(module, views=(3,), scale=0.2)
    wanted = clipped(module, x, y)
    with torch.no_grad():
        features = module.frozen_features(x.flatten(0, 1)).reshape(B, 3, -1)
    module.zero_grad()
    with module.on_features(), module.on_views():
        output = module(features)
    module.criterion(output, y).backward()
    ((name, gradient),) = wanted.items()
    assert torch.allclose(module.get_parameter(name).grad, gradient, rtol=1e-4)


def test_outputs_have_an_axis_of_views_with_and_without_gradients(tmp_path: Path) -> None:
    module = model(NETWORKS["images"], tmp_path)
    x, y = batch(module, views=(3,))
    trained = outputs(module, x)
    with torch.no_grad():
        evaluated = outputs(module, x)
        loss = module.criterion(evaluated, y)
    assert trained.shape == evaluated.shape == (B, 3, 3)
    assert torch.equal(trained, evaluated)
    by_hand = F.cross_entropy(evaluated.flatten(0, 1), y.repeat_interleave(3), reduction="sum") / 3
    assert float(loss) == pytest.approx(float(by_hand), rel=1e-6)
    assert module(x[:, 0]).shape == (B, 3)


@pytest.mark.parametrize("shape", [(4, 2, 7, 6), (4, 3, 7, 6, 2), (4, 0, 2, 7, 6), (4, 1, 7, 2, 6)])
def test_other_shapes_are_refused(shape: tuple[int, ...], tmp_path: Path) -> None:
    module: Any = model(NETWORKS["images"], tmp_path)
    with module.on_views(), pytest.raises(ValueError, match=r"expected views \[B, V, 2, 7, 6\], got"):
        module(torch.zeros(shape))


def test_views_are_refused_where_nobody_asked_for_them(tmp_path: Path) -> None:
    module = model(NETWORKS["images"], tmp_path)
    with pytest.raises(ValueError, match="expected inputs of shape"):
        module(torch.zeros(4, 3, 2, 7, 6))
    with module.on_views(), module.gate.bypassed(), pytest.raises(ValueError, match="expected inputs of shape"):
        module(torch.zeros(4, 3, 2, 7, 6))


def test_an_own_loss_of_views_is_refused(tmp_path: Path) -> None:
    module = model(NETWORKS["images"], tmp_path)
    module.guard_layers()
    x, y = batch(module, views=(3,))
    output = outputs(module, x)
    F.cross_entropy(output.flatten(0, 1), y.repeat_interleave(3), reduction="sum").backward()  # type: ignore[no-untyped-call]
    assert float(module.gate.foreign) == math.inf


def test_activations_of_views_are_computed_again_within_the_block(tmp_path: Path) -> None:
    module = model(NETWORKS["images"], tmp_path)
    x, y = batch(module, views=(3,))
    wanted = clipped(module, x, y)
    module.gate.reset()
    module.zero_grad()
    with module.on_views():
        module.criterion(checkpoint(module, x, use_reentrant=False), y).backward()
    assert not module.gate.foreign
    assert all(torch.equal(module.get_parameter(name).grad, wanted[name]) for name in wanted)
    with module.on_views():
        output = checkpoint(module, x, use_reentrant=False)
    with pytest.raises(ValueError, match="expected inputs of shape"):
        module.criterion(output, y).backward()


def test_a_compiled_module_takes_views(tmp_path: Path) -> None:
    module = model(NETWORKS["images"], tmp_path)
    x, y = batch(module, views=(3,))
    wanted = clipped(module, x, y)
    module.compile(backend="eager")
    found = clipped(module, x, y)
    assert all(torch.allclose(found[n], wanted[n], rtol=1e-5, atol=1e-7) for n in wanted)
