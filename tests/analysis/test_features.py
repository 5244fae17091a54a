"""Frozen features: which networks have them, what they cost in sensitivity, and training on them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lipcompile_torch import cache_features
from lipcompile_torch.train.data import Arrays
from lipcompile_torch.train.engine import SeededWarning
from lipcompile_torch.train.features import fill_features, room_for_features
from lipcompile_torch.train.training import EpochSummary, Progress, TrainConfig, train
from torch.utils.data import Dataset, TensorDataset

from lipcompile.analysis.features import features
from lipcompile.pipeline import check
from tests.emitters.test_emit import assert_within_bounds, build, derive

FROZEN = """input x: tensor[1, 8, 8], norm <= 8
    frozen { scattering2d(1, 4) instance_norm(floor=0.01) flatten clip_norm(1) }
    dense(3, constraint=spectral(5))
    loss cross_entropy(temperature=20)"""


def graph_of(folder: Path, body: str) -> Any:
    analysis = derive(folder, body).analysis
    assert analysis is not None
    return analysis.graph


def test_a_frozen_part_costs_no_sensitivity(tmp_path: Path) -> None:
    """K = L·1: of a linear layer behind the unit sphere, whatever stands before."""
    derivation = derive(tmp_path, FROZEN)
    assert derivation.analysis is not None
    (bound,) = derivation.analysis.parameters.values()
    assert bound.value == derivation.analysis.loss_lipschitz.value
    detail = derivation.requirements.lipschitz_layers.detail
    assert detail.endswith("no sensitivity: scattering2d, instance_norm, flatten, clip_norm")


def test_what_only_rearranges_is_not_called_frozen(tmp_path: Path) -> None:
    derivation = derive(tmp_path, "input x: tensor[1, 8, 8], norm <= 1\n flatten dense(3) loss cross_entropy")
    assert "no sensitivity" not in derivation.requirements.lipschitz_layers.detail


FEATURES = {
    "frozen { dense(6) relu } dense(3)": "relu",
    "frozen { dense(6) } dropout dense(3)": "dense",
    "frozen { a = dense(6) b = relu(a) concat(a, b) } dense(3)": "concat",
    "frozen { dense(6) sign } clip_norm(1) dense(3)": "clip_norm",
}
NONE = {
    "nothing is frozen": "dense(6) relu dense(3)",
    "the input is read again": "a = dense(6, constraint=fixed) b = dense(x, 6) concat(a, b) dense(3)",
    "two values are read": """a = dense(6, constraint=fixed) b = dense(x, 6, constraint=fixed)
        c = dense(a, 6) d = dense(b, 6) concat(c, d) dense(3)""",
    "chance comes first": "dropout frozen { dense(6) } dense(3)",
    "chance of whole examples comes first": "grouped_dropout(0.5, axes=0) frozen { dense(6) } dense(3)",
    "bounds rest on rows": """reshape(5, 1) frozen { dense(4) rms_norm(floor=0.1) } attention(2)
        flatten dense(3)""",
}


@pytest.mark.parametrize("body", FEATURES)
def test_networks_with_features(tmp_path: Path, body: str) -> None:
    found = features(graph_of(tmp_path, f"input x: tensor[5], norm <= 2\n {body} loss cross_entropy"))
    assert found is not None
    assert found.name == FEATURES[body]


@pytest.mark.parametrize("why", NONE)
def test_networks_without(tmp_path: Path, why: str) -> None:
    body = f"input x: tensor[5], norm <= 2\n {NONE[why]} loss cross_entropy"
    assert features(graph_of(tmp_path, body)) is None
    assert build(derive(tmp_path, body), tmp_path).features_shape is None


def test_rows_that_are_bounded_behind_the_cut_do_no_harm(tmp_path: Path) -> None:
    """The last of them is not idle."""
    body = NONE["bounds rest on rows"].replace("rms_norm(floor=0.1) }", "} dense(4) rms_norm(floor=0.1)")
    assert features(graph_of(tmp_path, f"input x: tensor[5], norm <= 2\n {body} loss cross_entropy")) is not None


def test_forward_takes_features(tmp_path: Path) -> None:
    model = build(derive(tmp_path, FROZEN), tmp_path)
    x = torch.rand(6, 1, 8, 8, dtype=torch.float64)
    kept = model.frozen_features(x)
    assert kept.shape == (6, *model.features_shape)
    with model.on_features():
        found = model(kept)
        with pytest.raises(ValueError, match="expected features"):
            model(x)
    torch.testing.assert_close(found, model(x))
    with pytest.raises(ValueError, match="expected inputs"):
        model(kept)


def test_bounds_hold_for_whatever_is_given_as_features(tmp_path: Path) -> None:
    model = build(derive(tmp_path, FROZEN), tmp_path)
    assert_within_bounds(model, "cross_entropy")
    with model.on_features():
        for scale in (1e-3, 1.0, 1e6):
            for _ in range(4):
                model.zero_grad()
                given = scale * torch.randn(1, *model.features_shape, dtype=torch.float64)
                model.criterion(model(given), torch.tensor([1])).backward()
                assert model.dense.weight.grad.norm() <= model.gradient_bounds()["dense.weight"]
        model(torch.full((1, *model.features_shape), torch.nan, dtype=torch.float64))
    assert model.features_norm <= Fraction(1)


def test_the_bound_is_attained_on_features_and_a_wider_clip_breaks_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Features along one axis, as long as they like, and weights that are certain of the wrong class."""
    model = build(derive(tmp_path, FROZEN), tmp_path)
    given = torch.zeros(1, *model.features_shape, dtype=torch.float64)
    given[0, 0] = 7.0
    with torch.no_grad():
        model.dense.weight.zero_()
        model.dense.weight[:, 0] = torch.tensor([3.5, -3.5, 0.0])
    model.project_()

    def slope() -> float:
        model.zero_grad()
        with model.on_features():
            model.criterion(model(given), torch.tensor([1])).backward()
        return float(model.dense.weight.grad.norm())

    bound = model.gradient_bounds()["dense.weight"]
    assert 0.999 * bound <= slope() <= bound
    monkeypatch.setattr(type(model), "features_norm", 1.05 * model.features_norm)
    assert slope() > bound


def test_a_module_without_features_refuses_them(tmp_path: Path) -> None:
    model = build(derive(tmp_path, "input x: tensor[5], norm <= 2\n dense(3) loss cross_entropy"), tmp_path)
    with pytest.raises(ValueError, match="no frozen part"), model.on_features():
        pass
    with pytest.raises(NotImplementedError):
        model.frozen_features(torch.zeros(1, 5))
    with pytest.raises(ValueError, match="no features"):
        cache_features(model, TensorDataset(torch.zeros(1, 5), torch.zeros(1)))


def test_a_data_set_of_features(tmp_path: Path) -> None:
    model = build(derive(tmp_path, FROZEN), tmp_path).float()
    x, y = torch.rand(7, 1, 8, 8), torch.arange(7)
    told: list[tuple[int, int]] = []
    kept = cache_features(model, TensorDataset(x, y), 3, lambda *counts: told.append(counts))
    assert told == [(3, 7), (6, 7), (7, 7)]
    assert kept.tensors[0].dtype == torch.float16
    assert torch.equal(kept.tensors[1], y)
    with model.on_features():
        torch.testing.assert_close(model(kept.tensors[0]), model(kept.tensors[0].float()))
        found = model(kept.tensors[0])
    torch.testing.assert_close(found, model(x), rtol=0, atol=2e-3)


@pytest.mark.parametrize("draw", [lambda: float(torch.rand(())), random.random, np.random.random])
@pytest.mark.parametrize("seeded", [False, True])
def test_features_of_changed_examples_come_from_secret_seeds(
    draw: Callable[[], float], seeded: bool, tmp_path: Path
) -> None:
    """Changes are drawn one after the other: with a known seed one example less would change all behind it."""

    class Changed(Dataset[tuple[torch.Tensor, int]]):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, place: int) -> tuple[torch.Tensor, int]:
            return torch.full((1, 8, 8), float(place)) + torch.eye(8) * draw(), place

    def kept() -> torch.Tensor:
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)
        return cache_features(model, Changed(), seeded=seeded).tensors[0]

    model = build(derive(tmp_path, FROZEN), tmp_path).float()
    assert torch.equal(kept(), kept()) is seeded


def test_features_of_batches_in_threads_are_those_of_one(tmp_path: Path) -> None:
    """Each thread works alone, and torch has as many threads as before after that."""
    model = build(derive(tmp_path, FROZEN), tmp_path).float()
    x, before = torch.rand(50, 1, 8, 8), torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        room, more = room_for_features(model, 40), room_for_features(model, 10)
        told: list[tuple[int, int]] = []
        fill_features(model, [(x[:40], room), (x[40:], more)], 3, lambda *counts: told.append(counts))
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    with torch.no_grad():
        torch.testing.assert_close(torch.cat([room, more]).float(), model.frozen_features(x), rtol=0, atol=1e-3)
    assert [done for done, _ in told] == sorted({done for done, _ in told})
    assert told[-1] == (50, 50)


@pytest.mark.parametrize("batch", [3, 8])
def test_features_are_computed_in_one_shape_whatever_the_number_of_examples(tmp_path: Path, batch: int) -> None:
    """Torch rounds a product by its shape: with another one for 256 than for 257 equal examples, signs of known
    weights turned for all of them, and one example that was left out moved the sum of features by 57 of 1.
    """
    model, shapes = build(derive(tmp_path, FROZEN), tmp_path).float(), set()
    watch(model, lambda x: shapes.add(tuple(x.shape)))
    for count in (1, 2, 7, 8, 9, 17):
        x, room = torch.rand(count, 1, 8, 8), room_for_features(model, count)
        fill_features(model, [(x, room)], batch)
    assert len(shapes) == 1


def watch(model: Any, note: Callable[[torch.Tensor], None]) -> None:
    """Note what features are computed of: in the class, in the method's name, as training refuses other code."""
    inner = type(model).frozen_features

    @wraps(inner)
    def features(self: Any, x: torch.Tensor) -> Any:
        note(x)
        return inner(self, x)

    type(model).frozen_features = features


def test_training_on_features_is_training(tmp_path: Path) -> None:
    """Same seed, with and without the cache: the same weights up to the rounding of features to half precision."""
    rng = np.random.default_rng(0)
    x, y = rng.random((80, 1, 8, 8), dtype=np.float32), rng.integers(0, 3, 80)
    data = Arrays(x[:60], y[:60], x[60:], y[60:])
    weights: list[torch.Tensor] = []
    computed: list[tuple[int, int]] = []  # which run, how many examples
    for cached in (True, False):
        model = build(derive(tmp_path, FROZEN), tmp_path).float()
        watch(model, lambda x: computed.append((len(weights), len(x))))
        config = TrainConfig(
            3, 1e-3, 5, 20, tmp_path / str(cached), noise="global", seed=1, accountant="rdp", cache_features=cached
        )
        with pytest.warns(SeededWarning):
            train(model, data, config)
        assert not model.takes_features
        weights.append(model.dense.weight.detach())
    first, second = (sum(count for run, count in computed if run == which) for which in (0, 1))
    assert first == 2 * -(-256 // torch.get_num_threads())  # each part fills one piece, with zeros behind it
    assert second > 5 * 20
    torch.testing.assert_close(weights[0], weights[1], rtol=0, atol=1e-3)


def test_a_resumed_run_takes_the_frozen_weights_of_its_checkpoint(tmp_path: Path) -> None:
    """They are drawn anew when the module is built; features must be those of the weights that were restored."""
    body = "input x: tensor[5], norm <= 2\n frozen { dense(6) } dense(3) loss cross_entropy"
    rng = np.random.default_rng(0)
    x, y = rng.random((60, 5), dtype=np.float32), rng.integers(0, 3, 60)
    data, output = Arrays(x[:40], y[:40], x[40:], y[40:]), tmp_path / "run"

    class Breaking(Progress):
        def epoch_ended(self, summary: EpochSummary) -> None:
            raise ConnectionError(summary.epoch)

    first = build(derive(tmp_path, body), tmp_path).float()
    config = TrainConfig(3, 1e-3, 2, 20, output, noise="global", accountant="rdp")
    with pytest.raises(ConnectionError):
        train(first, data, config, Breaking())
    torch.manual_seed(5)
    second = build(derive(tmp_path, body), tmp_path).float()
    torch.nn.init.zeros_(second.dense.weight)
    seen: list[torch.Tensor] = []
    watch(second, lambda _: seen.append(second.dense.weight.clone()))
    train(second, data, replace(config, resume=True))
    assert seen
    assert all(torch.equal(weight, first.dense.weight) for weight in seen)


def test_what_is_emitted_says_so(tmp_path: Path) -> None:
    path = tmp_path / "m.lip"
    path.write_text(f"model m {{ {FROZEN} }}")
    from lipcompile.emitters.torch.emit import emit

    text = emit(check(str(path)))
    assert "features_shape = (80,)" in text
    assert "self.clip_features(x) if self.takes_features else self.frozen_features(x)" in text
