"""PyTorch Lightning: one callback makes a training private, and it is the training of the plain loop."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from lipcompile_privacy.factorisation import BandedToeplitz, Cyclic
from lipcompile_privacy.planning import ShortenedWarning
from lipcompile_torch import ClipGroup, PrivacyEngine
from lipcompile_torch.train.checks import PrivacyError
from lipcompile_torch.train.engine import SeededWarning
from lipcompile_torch.train.ledger import LedgerError, read_ledger
from torch import nn
from torch.optim import SGD

from tests.torch.private_net import Net, make_loader, weights

pytest.importorskip("lightning")
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lipcompile_torch.lightning import PrivacyCallback  # needs lightning

pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # of Lightning's, with a new torch

BUDGET: dict[str, Any] = {"target_epsilon": 8.0, "target_delta": 1e-5}


class Lit(LightningModule):  # type: ignore[misc]
    """What a user has written for ordinary training, around an emitted module."""

    def __init__(self, interrupt_at: int | None = None) -> None:
        super().__init__()
        self.net, self.seen, self.interrupt_at = Net(), 0, interrupt_at

    def training_step(self, batch: Any, _: int) -> Any:
        x, y = batch
        self.seen += 1
        if self.seen == self.interrupt_at:
            raise RuntimeError("power cut")
        return self.net.criterion(self.net(x), y)

    def configure_optimizers(self) -> Any:
        return SGD(self.parameters(), lr=0.1)


class ByHand(Lit):
    """Steps by hand, with a learning rate that falls."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, index: int) -> None:
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(super().training_step(batch, index))
        optimizer.step()


def trainer(callback: Any, folder: Path, epochs: int = 2, more: Any = None, **options: Any) -> Any:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    options = {**quiet, "enable_checkpointing": more is not None, "default_root_dir": folder, **options}
    return Trainer(max_epochs=epochs, callbacks=[callback, more] if more else [callback], **options)


def private(path: Path | None = None, **how: Any) -> Any:
    return PrivacyCallback(PrivacyEngine("rdp", ledger=path), **{**BUDGET, **how})


@pytest.mark.parametrize("kind", [Lit, ByHand])
def test_one_callback_makes_a_training_private(kind: Any, tmp_path: Path) -> None:
    callback, model = private(tmp_path / "ledger.jsonl"), kind()
    before = weights(model.net)
    fitted = trainer(callback, tmp_path)
    fitted.fit(model, make_loader(200, 20))
    record = read_ledger(tmp_path / "ledger.jsonl")
    assert record.total_steps == model.seen == 20
    assert 7.99 < record.epsilon(1e-5, "rdp") <= 8
    assert float(fitted.callback_metrics["epsilon"]) == pytest.approx(record.epsilon(1e-5, "rdp"))
    assert all(not torch.equal(before[name], value) for name, value in weights(model.net).items())


def plain_loop(
    net: Any, outputs: Callable[[torch.Tensor], Any], epochs: int = 1, batch: int = 20, **how: Any
) -> None:
    """Train without Lightning on what `outputs` makes of each batch."""
    with pytest.warns(SeededWarning):
        _, optimizer, loader = PrivacyEngine("rdp").make_private_with_epsilon(
            module=net,
            optimizer=SGD(net.parameters(), 0.1),
            data_loader=make_loader(200, batch),
            epochs=epochs,
            seed=3,
            **BUDGET,
            **how,
        )
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            net.criterion(outputs(x), y).backward()
            optimizer.step()


@pytest.mark.parametrize("kind", [Lit, ByHand])
@pytest.mark.parametrize("how", [{}, {"sampling": "balls_in_bins"}, {"correlation": {"kind": "blt"}}])
def test_it_is_the_training_of_the_plain_loop(kind: Any, how: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = kind()
    with pytest.warns(SeededWarning):
        trainer(private(seed=3, **how), tmp_path).fit(model, make_loader(200, 20))
    torch.manual_seed(0)
    net = Net()
    plain_loop(net, net, epochs=2, **how)
    for name, value in weights(net).items():
        assert torch.equal(value, weights(model.net)[name])


class Two(Net):
    """Called with two inputs."""

    input_parts: ClassVar = {"first": (3,), "last": (1,)}


class LitOfTwo(Lit):
    """Batches are mappings, as data sets of texts and masks yield them."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Two()
        self.sizes: list[int] = []

    def training_step(self, batch: Any, _: int) -> Any:
        self.sizes.append(len(batch["labels"]))
        return self.net.criterion(self.net(last=batch["last"], first=batch["first"]), batch["labels"])


def mapped(items: list[tuple[torch.Tensor, torch.Tensor]]) -> dict[str, torch.Tensor]:
    x, y = (torch.stack(column) for column in zip(*items, strict=True))
    return {"labels": y, "first": x[:, :3], "last": x[:, 3:]}


def test_several_inputs_train_as_one_in_the_plain_loop(tmp_path: Path) -> None:
    """Batches of two examples, of which every seventh has none."""
    torch.manual_seed(0)
    model, own = LitOfTwo(), Net()
    own.load_state_dict(model.net.state_dict())
    with pytest.warns(SeededWarning):
        trainer(private(seed=3), tmp_path, epochs=1).fit(model, make_loader(200, 2, collate_fn=mapped))
    plain_loop(own, own, batch=2)
    assert min(model.sizes) == 0
    for name, value in weights(own).items():
        assert torch.equal(value, weights(model.net)[name])


def viewed(net: Any, x: torch.Tensor) -> Any:
    """Return the outputs of three views of each example."""
    with net.on_views():
        return net(torch.stack([x, x.flip(1), 0.5 * x], dim=1))


class Viewed(Lit):
    def training_step(self, batch: Any, _: int) -> Any:
        x, y = batch
        return self.net.criterion(viewed(self.net, x), y)


class Clipped(Net):
    """As `bounds clip` compiles it."""

    clips = (ClipGroup("all", tuple(Net.bounds), 0.1),)
    bounds = dict.fromkeys(Net.bounds, 0.1)


@pytest.mark.parametrize("net", [Net, Clipped], ids=["theorem", "clip"])
def test_views_train_as_in_the_plain_loop(net: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Viewed()
    model.net, own, plain = net(), net(), net()
    own.load_state_dict(model.net.state_dict())
    plain.load_state_dict(model.net.state_dict())
    with pytest.warns(SeededWarning):
        trainer(private(seed=3), tmp_path, epochs=1).fit(model, make_loader(200, 20))
    plain_loop(own, lambda x: viewed(own, x))
    plain_loop(plain, plain)
    for name, value in weights(own).items():
        assert torch.equal(value, weights(model.net)[name])
    assert any(not torch.equal(value, weights(own)[name]) for name, value in weights(plain).items())


@pytest.mark.filterwarnings("ignore:covering the rounding error")  # in bfloat16 it takes more noise
@pytest.mark.parametrize("kind", [Lit, ByHand])
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "bf16-true"])
def test_bounds_by_clip_train_in_any_precision(kind: Any, precision: Any, tmp_path: Path) -> None:
    """Hardly any noise: a gradient is Σ of at most b + 8·√b + 16 examples of length C = 0.1, over b."""
    torch.manual_seed(0)
    model, lengths = kind(), []
    model.net = Clipped()

    def configure_optimizers() -> Any:
        optimizer = SGD(model.parameters(), lr=0.1)
        optimizer.register_step_pre_hook(lambda *_: lengths.append(length(model.net)))
        return optimizer

    model.configure_optimizers = configure_optimizers
    callback = private(target_epsilon=1e6, seed=3)  # one of thirty runs without a seed stays below 0.05
    with pytest.warns(SeededWarning):
        trainer(callback, tmp_path, epochs=1, precision=precision).fit(model, make_loader(200, 20))
    most, noise = (20 + 8 * 20**0.5 + 16) / 20 * 0.1, callback.optimizer.noise_multiplier * 0.1
    assert len(lengths) == 10
    assert 0.05 < max(lengths) < most + 12 * noise


def length(net: Any) -> float:
    return float(torch.cat([p.grad.flatten().double() for p in net.parameters()]).norm())


def test_schedulers_and_loaders_of_the_module_work_as_ever(tmp_path: Path) -> None:
    class Scheduled(Lit):
        def train_dataloader(self) -> Any:
            return make_loader(200, 20)

        def configure_optimizers(self) -> Any:
            assert self.trainer.estimated_stepping_batches == 20
            optimizer = SGD(self.parameters(), lr=0.1)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)]

    callback = private()
    fitted = trainer(callback, tmp_path)
    fitted.fit(Scheduled())
    assert callback.optimizer.param_groups[0]["lr"] == 0.1 / 4
    assert callback.engine.ledger.record.total_steps == 20


def test_a_budget_for_fewer_epochs_ends_the_training(tmp_path: Path) -> None:
    model = Lit()
    trainer(private(epochs=1), tmp_path, epochs=5).fit(model, make_loader(200, 20))
    assert model.seen == 10


@pytest.mark.filterwarnings("ignore:Checkpoint directory .* is not empty")
@pytest.mark.parametrize(
    ("how", "steps", "warning"),
    [
        ({}, 30, contextlib.nullcontext()),
        (
            {"sampling": "balls_in_bins"},
            24,
            pytest.warns(ShortenedWarning, match="10 steps are left, 24 in total"),
        ),
    ],
    ids=["poisson", "balls_in_bins"],
)
def test_a_run_is_resumed_from_lightnings_checkpoint(how: Any, steps: int, warning: Any, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.jsonl"

    def fit(model: Lit, **options: Any) -> None:
        callback, keep = private(ledger, **how), ModelCheckpoint(tmp_path / "kept", save_last=True)
        try:
            trainer(callback, tmp_path, 3, more=keep).fit(model, make_loader(200, 20), **options)
        finally:
            callback.engine.close()

    with pytest.raises(RuntimeError, match="power cut"):
        fit(Lit(interrupt_at=15))  # the fifth step of the second epoch is not taken
    assert read_ledger(ledger).total_steps == 14
    with warning:
        fit(Lit(), ckpt_path=tmp_path / "kept" / "last.ckpt", weights_only=True)
    record = read_ledger(ledger)
    assert record.total_steps == steps
    assert record.epsilon(1e-5, "rdp") <= 8


class Compiled(Net):
    """As a `train` block with correlated noise compiles it."""

    noise_strategy = BandedToeplitz((1.0, 0.5), 30, Cyclic(2)).to_dict()


@pytest.mark.filterwarnings("ignore:Checkpoint directory .* is not empty")
@pytest.mark.filterwarnings("ignore::lipcompile_privacy.planning.ShortenedWarning")
@pytest.mark.parametrize(
    ("net", "how"),
    [
        (Net, {"correlation": {"kind": "correlated"}}),
        (Net, {"correlation": {"kind": "correlated", "bands": 2}}),
        (Compiled, {}),
        (Compiled, {"correlation": None}),
    ],
    ids=["bands of the budget", "bands", "compiled", "switched off"],
)
def test_a_resumed_run_correlates_its_noise_as_before(net: Any, how: Any, tmp_path: Path) -> None:
    """All steps are of one release: rate and σ depend on what correlates the noise."""
    ledger = tmp_path / "ledger.jsonl"

    def fit(model: Lit, **options: Any) -> None:
        model.net = net()
        callback, keep = private(ledger, **how), ModelCheckpoint(tmp_path / "kept", save_last=True)
        try:
            trainer(callback, tmp_path, 3, more=keep).fit(model, make_loader(200, 20), **options)
        finally:
            callback.engine.close()

    with pytest.raises(RuntimeError, match="power cut"):
        fit(Lit(interrupt_at=11))  # the first step of the second epoch is not taken
    assert read_ledger(ledger).total_steps == 10
    fit(Lit(), ckpt_path=tmp_path / "kept" / "last.ckpt", weights_only=True)
    record = read_ledger(ledger)
    assert len(record.declared) == 1
    assert 20 < record.total_steps <= 30  # a cycle of all groups that was broken off is charged in full
    assert record.epsilon(1e-5, "rdp") <= 8


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gradient_clip_val": 1.0}, "gradient_clip_val"),
        ({"accumulate_grad_batches": 2}, "accumulate_grad_batches"),
        ({"overfit_batches": 2}, "overfit_batches"),
    ],
)
def test_settings_that_change_gradients_are_refused(options: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(PrivacyError, match=message):
        trainer(private(), tmp_path, **options).fit(Lit(), make_loader(200, 20))


class TwoOptimizers(ByHand):
    def configure_optimizers(self) -> Any:
        return [SGD(self.net.inner.parameters(), lr=0.1), SGD(self.net.outer.parameters(), lr=0.1)]


class Head(Lit):
    """Has a parameter of which nothing is proved."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 3)


class Mean(Lit):
    """Averages over the batch as it came out."""

    def training_step(self, batch: Any, _: int) -> Any:
        x, y = batch
        return self.net.per_example_loss(self.net(x), y).mean()


class Nothing(Lit):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(4, 3)  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (TwoOptimizers, "2 optimizers"),
        (Head, r"head.weight, head.bias are outside"),
        (Nothing, "0 emitted modules"),
        (Mean, "the cotangents are not those of"),
    ],
)
def test_modules_without_bounds_are_refused(kind: Any, message: str, tmp_path: Path) -> None:
    callback = private()
    with pytest.raises(PrivacyError, match=message):
        trainer(callback, tmp_path).fit(kind(), make_loader(200, 20))
    assert callback.engine.ledger is None or callback.engine.ledger.record.total_steps == 0


def test_pieces_of_batches_are_refused() -> None:
    with pytest.raises(PrivacyError, match="max_physical_batch"):
        private(max_physical_batch=4)


def test_a_checkpoint_needs_its_ledger(tmp_path: Path) -> None:
    callback = private(tmp_path / "ledger.jsonl")
    callback.load_state_dict({"ledger_head": "0" * 64, "noise_multiplier": 1.0})
    with pytest.raises(LedgerError, match="does not contain the steps"):
        trainer(callback, tmp_path).fit(Lit(), make_loader(200, 20))
