"""The training loop behind `lipcompile train`: to a budget, with a ledger and checkpoints."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch import Tensor
from torch.optim import SGD, Adam, Optimizer
from torch.utils.data import DataLoader, TensorDataset

from ..accounting import Accountant, BudgetError, Mechanism, calibrate_noise_multiplier, epsilon
from .checkpoint import Checkpoint, CheckpointError, read_checkpoint, restore, save_checkpoint
from .data import Arrays
from .engine import PrivacyEngine
from .ledger import LedgerError
from .module import LipschitzModule
from .noise import Allocation
from .optimizer import PrivateOptimizer
from .sampler import PrivateLoader

_EVALUATION_BATCH = 1024
CHECKPOINT = "checkpoint.pt"
LEDGER = "ledger.jsonl"


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """How to train.

    Args:
        epsilon: ε to spend on the whole training.
        delta: δ; below 1 / number of examples.
        epochs: expected passes over the data; each has round(N / batch_size) steps.
        batch_size: EXPECTED batch size b of Poisson sampling.
        output: folder for `checkpoint.pt` and `ledger.jsonl`.
        optimizer: "adam" or "sgd".
        learning_rate: > 0.
        momentum: of sgd.
        schedule: learning rate "constant", or falling to 0 by half a "cosine".
        noise: how noise is shared among parameters.
        neighbours: "add_remove" or "replace_one".
        accountant: "pld" or "rdp".
        max_physical_batch: most examples computed at once.
        seed: makes the run repeatable and NOT private.
        resume: go on from the checkpoint in `output`.
        device: "auto", "cpu" or "cuda".
    """

    epsilon: float
    delta: float
    epochs: int
    batch_size: int
    output: Path
    optimizer: Literal["adam", "sgd"] = "adam"
    learning_rate: float = 1e-3
    momentum: float = 0.9
    schedule: Literal["constant", "cosine"] = "constant"
    noise: Allocation = "per_layer"
    neighbours: str = "add_remove"
    accountant: Accountant = "pld"
    max_physical_batch: int | None = None
    seed: int | None = None
    resume: bool = False
    device: Literal["auto", "cpu", "cuda"] = "auto"


@dataclass(frozen=True, slots=True)
class Plan:
    """What the budget buys: steps in all, how many are in the ledger already, σ, and q."""

    total_steps: int
    steps_done: int
    steps_per_epoch: int
    noise_multiplier: float
    sampling_rate: float


@dataclass(frozen=True, slots=True)
class EpochSummary:
    """The state after an epoch. Accuracy is that on the held-out test part; nothing is said of training data."""

    epoch: int
    steps: int
    epsilon: float
    test_accuracy: float


@dataclass(frozen=True, slots=True)
class TrainResult:
    """What came out: the guarantee as the ledger has it, and accuracy on the held-out test part.

    Args:
        private: False if a seed was fixed at any time in this ledger.
    """

    epsilon: float
    delta: float
    steps: int
    noise_multiplier: float
    test_accuracy: float
    private: bool
    checkpoint: Path
    ledger: Path
    seconds: float


class Progress(Protocol):
    """Who wants to know how training goes on."""

    def planned(self, plan: Plan) -> None:
        """Training begins."""

    def stepped(self, steps: int) -> None:
        """A step was taken; `steps` are in the ledger now."""

    def epoch_ended(self, summary: EpochSummary) -> None:
        """An epoch ended and its checkpoint is on the disk."""


class Silent:
    """Wants to know nothing."""

    def planned(self, plan: Plan) -> None:
        """Ignore."""

    def stepped(self, steps: int) -> None:
        """Ignore."""

    def epoch_ended(self, summary: EpochSummary) -> None:
        """Ignore."""


def train(
    module: LipschitzModule, data: Arrays, config: TrainConfig, report: Progress | None = None
) -> TrainResult:
    """Train a module privately within a budget, which holds also over crashes and resumed runs.

    A step that the ledger counts is gone, also if its effect was lost with a crash: a resumed run takes only the
    steps that are left. On KeyboardInterrupt the state is saved before the exception goes on.

    Formal guarantees: the ledger's ε at `config.delta` never exceeds `config.epsilon`.

    Raises:
        BudgetError, PrivacyError, SamplingError, LedgerError, CheckpointError: see there.
        ValueError: a setting that means nothing.
        OSError: the ledger or a checkpoint could not be written.
    """
    began = time.monotonic()
    run = _Run(module, data, config, report or Silent())
    try:
        run.go()
        return run.result(time.monotonic() - began)
    finally:
        run.engine.close()


class _Run:
    """One call of `train`."""

    def __init__(self, module: LipschitzModule, data: Arrays, config: TrainConfig, report: Progress) -> None:
        _check(config)
        self.config, self.report = config, report
        self.device = _device(config.device)
        self.module = module.to(self.device)
        self.test = (torch.from_numpy(data.x_test), torch.from_numpy(data.y_test))
        train_set = TensorDataset(
            torch.from_numpy(data.x_train).to(self.device), torch.from_numpy(data.y_train).to(self.device)
        )
        self.checkpoint_path, self.ledger_path = config.output / CHECKPOINT, config.output / LEDGER
        self.engine = PrivacyEngine(config.accountant, self.ledger_path, config.neighbours)
        try:
            self.ledger = self.engine.open_ledger(len(train_set))
            self.plan, self.optimizer, self.loader = self._prepare(train_set, self._saved())
        except BaseException:
            self.engine.close()
            raise
        self.accuracy = math.nan

    def _saved(self) -> Checkpoint | None:
        """Return the checkpoint to resume from; refuse to train anew over an older run's ledger."""
        if self.config.resume and self.checkpoint_path.exists():
            return read_checkpoint(self.checkpoint_path)
        if self.ledger.record.total_steps:
            raise LedgerError(
                f"{self.ledger_path} holds the steps of an earlier run"
                + (", but its checkpoint is missing: " if self.config.resume else ": resume it, or ")
                + "choose another output folder"
            )
        if self.config.resume:
            raise CheckpointError(f"there is nothing to resume in {self.config.output}")
        return None

    def _prepare(
        self, train_set: TensorDataset, saved: Checkpoint | None
    ) -> tuple[Plan, PrivateOptimizer, PrivateLoader]:
        config = self.config
        source: DataLoader[Any] = DataLoader(train_set, batch_size=config.batch_size)
        per_epoch = len(PrivateLoader(source))
        rate = config.batch_size / len(train_set)
        done = self.ledger.record.total_steps
        plan = Plan(config.epochs * per_epoch, done, per_epoch, self._sigma(rate, per_epoch, saved), rate)
        _, optimizer, loader = self.engine.make_private(
            module=self.module,
            optimizer=_optimizer(config, self.module),
            data_loader=source,
            noise_multiplier=plan.noise_multiplier,
            noise=config.noise,
            max_physical_batch=config.max_physical_batch,
            seed=config.seed,
            max_steps=max(0, plan.total_steps - done),
        )
        if saved:
            restore(saved, self.module, optimizer, self.ledger)
            self._check_budget(plan)
        return plan, optimizer, loader

    def _sigma(self, rate: float, per_epoch: int, saved: Checkpoint | None) -> float:
        config = self.config
        if saved is None:
            steps, relation = config.epochs * per_epoch, self.engine.relation
            return calibrate_noise_multiplier(
                config.epsilon, config.delta, rate, steps, relation, config.accountant
            )
        begun = saved.notes.get("settings", {})
        changed = [name for name, value in _identity(config).items() if begun.get(name) != value]
        if changed:
            raise BudgetError(
                f"the run to resume had another {', '.join(changed)}: resume it with the settings it began with"
            )
        return float(saved.notes["noise_multiplier"])

    def _check_budget(self, plan: Plan) -> None:
        left = (Mechanism(plan.sampling_rate, plan.noise_multiplier), max(0, plan.total_steps - plan.steps_done))
        runs = [*self.ledger.record.runs, left]
        total = epsilon(runs, self.config.delta, self.engine.relation, self.config.accountant)
        if total > self.config.epsilon:
            raise BudgetError(
                f"going on would cost epsilon = {total:.4g}, more than {self.config.epsilon:g}: the ledger holds "
                "steps of other runs"
            )

    def go(self) -> None:
        """Take the steps that are left."""
        self.report.planned(self.plan)
        try:
            self._save()
            while self.optimizer.steps_left:
                for steps in self._steps():
                    self.report.stepped(steps)
                self._end_epoch()
        except KeyboardInterrupt:
            self.module.project_()  # it may have come between an update and its projection
            self._save()
            raise

    def _steps(self) -> Iterator[int]:
        """Train to the end of the epoch, or of the budget; yield the number of steps in the ledger."""
        self.module.train()
        for x, y in self.loader:
            self._set_learning_rate()
            self.optimizer.zero_grad()
            self.module.criterion(self.module(x), y).backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
            if self.loader.current is None:
                steps = self.ledger.record.total_steps
                yield steps
                if not self.optimizer.steps_left or steps % self.plan.steps_per_epoch == 0:
                    return

    def _set_learning_rate(self) -> None:
        progress = self.ledger.record.total_steps / self.plan.total_steps
        share = 0.5 * (1 + math.cos(math.pi * progress)) if self.config.schedule == "cosine" else 1.0
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.learning_rate * share

    def _end_epoch(self) -> None:
        self._save()
        self.accuracy = evaluate(self.module, *self.test)
        steps = self.ledger.record.total_steps
        spent = self.engine.get_epsilon(self.config.delta)
        self.report.epoch_ended(EpochSummary(steps // self.plan.steps_per_epoch, steps, spent, self.accuracy))

    def _save(self) -> None:
        notes = {"settings": _identity(self.config), "noise_multiplier": self.plan.noise_multiplier}
        save_checkpoint(self.checkpoint_path, self.module, self.optimizer, self.ledger, notes)

    def result(self, seconds: float) -> TrainResult:
        record = self.ledger.record
        return TrainResult(
            epsilon=self.engine.get_epsilon(self.config.delta),
            delta=self.config.delta,
            steps=record.total_steps,
            noise_multiplier=self.plan.noise_multiplier,
            test_accuracy=evaluate(self.module, *self.test) if math.isnan(self.accuracy) else self.accuracy,
            private=not record.seeded,
            checkpoint=self.checkpoint_path,
            ledger=self.ledger_path,
            seconds=seconds,
        )


@torch.no_grad()
def evaluate(module: LipschitzModule, x: Tensor, y: Tensor) -> float:
    """Return the accuracy on examples [M, …] with labels [M]: largest logit, or the sign of a single one.

    With labels of tokens, [M, n], it is the share of the tokens, those with a negative label left out. It is
    exact: use it on held-out data only, and say so. NaN if the targets are no class labels.
    """
    if y.is_floating_point():
        return math.nan
    device = next(module.parameters()).device
    was_training = module.training
    module.eval()
    correct = counted = 0
    for inputs, labels in zip(torch.split(x, _EVALUATION_BATCH), torch.split(y, _EVALUATION_BATCH), strict=True):
        predicted = predict(module(inputs.to(device)))
        wanted = labels.to(device).reshape(predicted.shape)
        known = wanted >= 0 if wanted.dim() > 1 else torch.ones_like(wanted, dtype=torch.bool)
        correct += int((known & (predicted == wanted.clamp(min=0))).sum())
        counted += int(known.sum())
    module.train(was_training)
    return correct / counted if counted else math.nan


def predict(output: Tensor) -> Tensor:
    """Return class numbers [B]: the largest of logits [B, K], or 1 where a single logit [B] is positive; of logits
    [B, n, K], class numbers [B, n].
    """
    if output.dim() == 1 or output.shape[1:] == (1,):
        return (output.reshape(len(output)) > 0).long()
    return output.argmax(-1)


def _identity(config: TrainConfig) -> dict[str, Any]:
    """Return the settings that a resumed run must share: those that budget and course of training rest on."""
    free = {"output", "resume", "device", "max_physical_batch", "seed"}
    return {name: value for name, value in asdict(config).items() if name not in free}


def _check(config: TrainConfig) -> None:
    if config.epochs < 1 or config.batch_size < 1:
        raise ValueError(f"{config.epochs} epochs of batches of {config.batch_size}: both must be at least 1")
    if not 0 < config.learning_rate < math.inf or not 0 <= config.momentum < 1:
        raise ValueError(
            f"learning rate {config.learning_rate}, momentum {config.momentum}: the rate must be positive and "
            "momentum in [0, 1)"
        )
    if config.optimizer not in ("adam", "sgd") or config.schedule not in ("constant", "cosine"):
        raise ValueError(f"unknown optimizer {config.optimizer!r} or schedule {config.schedule!r}")


def _optimizer(config: TrainConfig, module: LipschitzModule) -> Optimizer:
    if config.optimizer == "adam":
        return Adam(module.parameters(), lr=config.learning_rate)
    return SGD(module.parameters(), lr=config.learning_rate, momentum=config.momentum)


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("device cuda was asked for, but torch sees no GPU: use cpu, or auto")
    return torch.device(name)
