"""benchmarks/utility on generated images: inputs are maps of one example of known length, and rows keep to ε."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

ROOT = Path(__file__).parents[2]


pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("own_benchmarks")]


def module(name: str) -> Any:
    return import_module(f"benchmarks.utility.{name}")


def noise(count: int, channels: int, size: int) -> Any:
    return np.random.default_rng(0).integers(0, 256, (count, channels, size, size), dtype=np.uint8)


@pytest.fixture
def few(own_benchmarks: None, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ARG001
    """Few synthetic images, which take seconds to draw."""
    monkeypatch.setattr(module("image_features"), "_SYNTHETIC", 40)


@pytest.mark.parametrize(("channels", "size"), [(1, 28), (3, 32)])
@pytest.mark.parametrize("kind", ["features", "patches"])
@pytest.mark.usefixtures("few")
def test_inputs_are_maps_of_one_example_within_the_length_that_the_module_trusts(
    kind: str, channels: int, size: int
) -> None:
    images = noise(5, channels, size)
    images[1], images[2] = 0, 255
    features = module("image_features")
    if kind == "features":
        mirrored = channels == 3
        fitted = features.Whitening("leaves", channels=20, mirrored=mirrored).fitted((channels, size, size))
        together, alone = (fitted(features.scattered(x, centred=mirrored)) for x in (images, images[3:4]))
    else:
        patches = features.Patches()
        together, alone = patches(images), patches(images[3:4])
    assert together.isfinite().all()
    assert together.double().flatten(1).norm(dim=1).max() <= 1.00001
    torch.testing.assert_close(together[3:4], alone, rtol=1e-3, atol=1e-5)


def test_standardised_images_have_mean_0_and_deviation_1_each_by_itself() -> None:
    """A plain image is not blown up: its deviation counts as 0.05 at least."""
    images = noise(3, 3, 8)
    images[1] = 100
    images[1, 0, 0, 0] = 101
    found = module("images").Standardised()(images)
    assert found.mean(dim=(1, 2, 3)).abs().max() < 1e-5
    assert found[[0, 2]].std(dim=(1, 2, 3)).tolist() == pytest.approx([1.0, 1.0])
    assert float(found[1].abs().max()) == pytest.approx(191 / 192 / 255 / 0.05, rel=1e-3)
    assert torch.equal(found[:1], module("images").Standardised()(images[:1]))


@pytest.mark.parametrize("model", ["head", "patches", "overlapping"])
def test_a_row_is_measured_to_its_budget_and_kept(model: str, tmp_path: Path) -> None:
    images, training, study = module("images"), module("training"), module("study")
    torch.manual_seed(0)
    shape = {"head": (50,), "patches": (1, 28, 28), "overlapping": (12, 4, 4)}[model]
    x, y = (
        torch.nn.functional.normalize(torch.randn(300, *shape).flatten(1)).reshape(-1, *shape),
        torch.arange(300) % 10,
    )
    recipe = training.Recipe(steps=6, rate=0.01, batch=100, momentum=None, how={"loss_clip": 0.1})
    sizes = (("filters", 8), ("pool", 2)) if model == "overlapping" else ()
    row = images.Row("mnist", 2.0, images.Pixels(0.0), model, recipe, sizes)
    rows = study.Rows(tmp_path / "rows.json", {})
    found = images.measure(row, images.Examples(x, y, x[:50], y[:50]), rows, "test", 2)
    assert 1.9 < found["seeds"]["1"]["epsilon"] <= 2.0
    before = json.loads((tmp_path / "rows.json").read_text(encoding="utf-8"))
    assert images.measure(row, images.Examples(x, y, x[:50], y[:50]), rows, "test", 2)["seeds"] == found["seeds"]
    assert json.loads((tmp_path / "rows.json").read_text(encoding="utf-8")) == before
    curve: list[tuple[int, float]] = []
    watched = images.run(row, images.Examples(x, y, x[:50], y[:50]), 0, curve)
    assert watched.value == found["seeds"]["0"]["value"], "to watch changes nothing"
    assert [step for step, _ in curve] == [5]


def test_names_of_rows_are_unlike_and_their_networks_known() -> None:
    images = module("images")
    assert len({row.name for row in images.ROWS}) == len(images.ROWS)
    assert {row.model for row in images.ROWS} == {
        *("head", "patches", "overlapping", "wide_vgg", "wide_mixer"),
        *images._KNOWN,
    }


@pytest.mark.parametrize("method", ["ours", "opacus"])
@pytest.mark.parametrize("model", ["convnet", "vgg", "resnet", "mixer"])
def test_known_networks_keep_to_their_budget_by_either_method(model: str, method: str) -> None:
    if method == "opacus":
        pytest.importorskip("opacus", reason="the extra `bench`")
    images, training = module("images"), module("training")
    x, y = torch.rand(60, 1, 28, 28), torch.arange(60) % 10
    how = {"loss_clip": 0.1} if method == "ours" else {"clipping": 1.0}
    recipe = training.Recipe(steps=3, rate=0.01, batch=20, momentum=None, how=how)
    row = images.Row("mnist", 2.0, images.Pixels(0.0), model, recipe, method=method)
    spent = images.run(row, images.Examples(x, y, x[:5], y[:5]), 0).epsilon
    assert 1.9 < spent <= 2.0


def test_a_batch_in_pieces_is_the_sum_of_clipped_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("opacus", reason="the extra `bench`")
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    runs = module("opacus_runs")
    monkeypatch.setattr(runs, "_PIECE", 3)
    torch.manual_seed(0)
    layer, x, y = torch.nn.Linear(4, 3, bias=False), torch.randn(8, 4), torch.arange(8) % 3
    before, summed = layer.weight.detach().clone(), torch.zeros(3, 4)
    for i in range(8):
        loss = torch.nn.functional.cross_entropy(layer(x[i : i + 1]), y[i : i + 1])
        (gradient,) = torch.autograd.grad(loss, layer.weight)
        summed += gradient * min(1.0, 0.5 / gradient.norm().item())
    wrapped = GradSampleModule(layer)
    inner = torch.optim.SGD(wrapped.parameters(), lr=1.0)
    optimizer = DPOptimizer(inner, noise_multiplier=0.0, max_grad_norm=0.5, expected_batch_size=10)
    runs._step(wrapped, optimizer, x, y, torch.arange(8))
    torch.testing.assert_close(layer.weight.detach(), before - summed / 10, rtol=1e-4, atol=1e-6)
    runs._step(wrapped, optimizer, x, y, torch.arange(0))
    torch.testing.assert_close(layer.weight.detach(), before - summed / 10, rtol=1e-4, atol=1e-6)
