"""The training loop behind `lipcompile train`: to a budget, with a ledger and checkpoints."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

import torch
from lipcompile_privacy.accounting import Accountant, BudgetError, Drawing, Sampling
from lipcompile_privacy.errors import check_number
from lipcompile_privacy.planning import Budget, Course, Plan, course, with_bands
from torch import Tensor
from torch.optim import SGD, Adam, Optimizer
from torch.utils.data import DataLoader, TensorDataset

from ..augmentation import Augmentation
from ..averaging import LastWeights
from ..noise.mechanism import Allocation
from .certificate import certificate_of
from .checkpoint import Checkpoint, CheckpointError, restore, save_checkpoint
from .checkpoint import read_checkpoint as read_checkpoint
from .data import Arrays
from .engine import PrivacyEngine
from .features import fill_features, room_for_features, worth_keeping
from .ledger import LedgerError
from .loss_clipping import at_quantile
from .module import LipschitzModule
from .optimizer import PrivateOptimizer
from .sampler import PrivateLoader

_EVALUATION_BATCH = 1024
_HELD = 2**26  # numbers in the copies of parameters that examples have at once
# Shares of the learning rate, by the share of the steps that are taken.
_SCHEDULES: Mapping[str, Callable[[float], float]] = {
    "constant": lambda _: 1.0,
    "cosine": lambda progress: 0.5 * (1 + math.cos(math.pi * progress)),
    "linear": lambda progress: 1 - progress,
}
CHECKPOINT = "checkpoint.pt"
LEDGER = "ledger.jsonl"


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """How to train.

    Args:
        epsilon: ε to spend on the whole training.
        delta: δ; below 1 / number of examples.
        epochs: expected passes over the data; each has round(N / batch_size) steps.
        batch_size: b; of samplings whose batches vary in size, the EXPECTED one.
        output: folder for `checkpoint.pt` and `ledger.jsonl`.
        optimizer: "adam" or "sgd".
        learning_rate: above 0.
        momentum: of sgd.
        schedule: learning rate "constant", or falling to 0 by half a "cosine" or in a "linear" way.
        average: the weights of this share of the steps, the last ones, are averaged in the end, which is
            post-processing; None: the last weights stay.
        noise: how noise is shared among parameters: a rule, or weights by name or pattern, see
            `noise.mechanism.allocate`.
        sampling: how batches are drawn and accounted, see `sampling`; None: "poisson", or what correlation needs.
        correlation: how noise is correlated from step to step: {"kind": "correlated", "bands": 16}, {"kind":
            "blt"}, or a strategy as data; the budget chooses bands that are left out. None: it is independent.
        loss_clip: clips the gradient of each example's loss in its output to C; None: L bounds it.
        clip_quantile: the length of each clip group follows this private quantile of the norms of its gradients;
            None: it stays.
        fixed_norm: scale weights to the bounds of their constraints, up as well as down.
        secure: noise from a cryptographic generator, see `normals.SecureNormals`.
        cache_features: compute what stands before the first trained parameter once for each example, if the module
            has frozen features and there is room for them (4 GiB); they are rounded to half precision.
        neighbours: "add_remove" or "replace_one".
        accountant: "pld" or "rdp".
        augment: random changes of images, "flip", "shift:PIXELS" or both with a comma between them; None: examples
            come as they are. See `augmentation`.
        views: of each example that is changed.
        max_physical_batch: most examples computed at once; of augmented ones each view counts. None: all, or of a
            network that no rule covers as many as have 2²⁶ parameters.
        fixed_shape: compute every batch in one shape, see `engine.EngineOptions`.
        precision: of products in both passes, by autocast; weights, sums of gradients, clips and noise keep the
            dtype of the module.
        seed: makes the run repeatable and NOT private; torch's own generator gets it, too.
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
    schedule: Literal["constant", "cosine", "linear"] = "constant"
    average: float | None = None
    noise: Allocation = "per_layer"
    sampling: Sampling | None = None
    correlation: Mapping[str, Any] | None = None
    loss_clip: float | None = None
    clip_quantile: float | None = None
    fixed_norm: bool = False
    secure: bool = False
    cache_features: bool = True
    neighbours: str = "add_remove"
    accountant: Accountant = "pld"
    augment: str | None = None
    views: int = 4
    max_physical_batch: int | None = None
    fixed_shape: bool = False
    precision: Literal["float32", "bfloat16"] = "float32"
    seed: int | None = None
    resume: bool = False
    device: Literal["auto", "cpu", "cuda"] = "auto"

    def __post_init__(self) -> None:
        self.check_numbers(asdict(self))

    @classmethod
    def check_numbers(cls, given: Mapping[str, Any]) -> None:
        """Raise TypeError if a field that is a number is given something else; None is not given."""
        for field in fields(cls):
            kind = str(field.type).removesuffix(" | None")
            if kind in ("int", "float") and given.get(field.name) is not None:
                check_number(field.name, given[field.name], whole=kind == "int")


@dataclass(frozen=True, slots=True)
class EpochSummary:
    """The state after an epoch. Accuracy, or the mean loss if targets are no classes, is that on the held-out test
    part; nothing is said of training data.
    """

    epoch: int
    steps: int
    epsilon: float
    test_accuracy: float
    test_loss: float


@dataclass(frozen=True, slots=True)
class TrainResult:
    """The result of a training: the guarantee according to the ledger, and accuracy on the held-out test part.

    Args:
        test_accuracy: NaN if targets are no classes.
        test_loss: the mean loss of the test part, if targets are no classes; else NaN.
        private: False if a seed was fixed at any time in this ledger.
    """

    epsilon: float
    delta: float
    steps: int
    noise_multiplier: float
    test_accuracy: float
    test_loss: float
    private: bool
    checkpoint: Path
    ledger: Path
    seconds: float


class Progress:
    """A receiver of the progress of a training; this one wants to know nothing."""

    def prepared(self, done: int, planned: int) -> None:
        """The frozen features of so many examples, of those planned, are computed."""

    def planned(self, plan: Plan) -> None:
        """Training begins."""

    def stepped(self, steps: int) -> None:
        """A step was taken; `steps` are in the ledger now."""

    def epoch_ended(self, summary: EpochSummary) -> None:
        """An epoch ended and its checkpoint is on the disk."""


def train(
    module: LipschitzModule, data: Arrays, config: TrainConfig, report: Progress | None = None
) -> TrainResult:
    """Train a module privately within a budget, which holds also over crashes and resumed runs.

    A step that the ledger counts is gone, also if its effect was lost with a crash: a resumed run takes only the
    steps that are left. Where a charge covers a round of several steps (an epoch, or all of the run), one that was
    broken off is gone whole: a resumed run takes as many whole rounds as are left, and a `ShortenedWarning` says
    so. On KeyboardInterrupt the state is saved before the exception goes on.

    Formal guarantees: no step is taken after which ε of the ledger at `config.delta` could exceed
    `config.epsilon`.

    Raises:
        BudgetError, PrivacyError, SamplingError, LedgerError, CheckpointError: see there.
        ValueError: a setting that means nothing.
        OSError: the ledger or a checkpoint could not be written.
    """
    began = time.monotonic()
    run = _Training(module, data, config, report or Progress())
    try:
        with module.on_features() if run.cached else nullcontext():
            run.go()
            return run.result(time.monotonic() - began)
    finally:
        run.engine.close()


class _Training:
    """One call of `train`."""

    def __init__(self, module: LipschitzModule, data: Arrays, config: TrainConfig, report: Progress) -> None:
        _check(config)
        if config.seed is not None:  # masks of dropout and views follow it, too
            torch.manual_seed(config.seed)
        self.config, self.report = config, report
        self.augmentation = _augmentation(config, module)
        self.device = _device(config.device)
        self.module = module.to(self.device)
        x_train, x_test = torch.from_numpy(data.x_train), torch.from_numpy(data.x_test)
        cached = config.cache_features and self.augmentation is None
        self.cached = cached and worth_keeping(self.module, len(x_train) + len(x_test))
        own = room_for_features(self.module, len(x_train)) if self.cached else x_train
        train_set = TensorDataset(own.to(self.device), torch.from_numpy(data.y_train).to(self.device))
        self.checkpoint_path, self.ledger_path = config.output / CHECKPOINT, config.output / LEDGER
        self.engine = PrivacyEngine(config.accountant, self.ledger_path, config.neighbours)
        self.budget = Budget(config.epsilon, config.delta, self.engine.relation, config.accountant)
        self.begun = self.ledger_path.exists()
        try:
            self.ledger = self.engine.open_ledger(len(train_set))
            self.ledger.delta = config.delta
            self.plan, self.optimizer, self.loader = self._prepare(train_set, self._saved())
            if self.cached:  # by frozen weights that a checkpoint may just have brought
                raw, x_test = x_test, room_for_features(self.module, len(x_test))
                fill_features(
                    self.module, [(x_train, train_set.tensors[0]), (raw, x_test)], report=self.report.prepared
                )
        except BaseException:
            self.engine.close()
            raise
        self.test = (x_test, torch.from_numpy(data.y_test))
        self.scores: tuple[float, float] | None = None

    def _saved(self) -> Checkpoint | None:
        """Return the checkpoint to resume from, None to begin; refuse to begin over an older run's ledger.

        A run that ended before its first checkpoint took no step, and is begun anew when it is resumed.
        """
        if self.config.resume and self.checkpoint_path.exists():
            return read_checkpoint(self.checkpoint_path)
        if self.ledger.record.charges:
            raise LedgerError(
                f"{self.ledger_path} holds the steps of an earlier run"
                + (", but its checkpoint is missing: " if self.config.resume else ": resume it, or ")
                + "choose another output folder"
            )
        if self.config.resume and not self.begun:
            raise CheckpointError(f"there is nothing to resume in {self.config.output}")
        return None

    def _prepare(
        self, train_set: TensorDataset, saved: Checkpoint | None
    ) -> tuple[Plan, PrivateOptimizer, PrivateLoader]:
        config, size = self.config, len(train_set)
        if config.correlation is not None:
            drawing = Drawing.of("poisson", config.batch_size, size)
            steps = config.epochs * drawing.steps_per_epoch
            self.config = replace(config, correlation=with_bands(config.correlation, drawing, steps, self.budget))
            config = self.config
        way = course(
            size, config.batch_size, config.epochs, self.engine.relation, config.sampling, config.correlation
        )
        plan = way.plan(self._sigma(way, saved), self.ledger.record)
        source: DataLoader[Any] = DataLoader(train_set, batch_size=config.batch_size)
        _, optimizer, loader = self.engine.make_private(
            module=self.module,
            optimizer=_optimizer(config, self.module),
            data_loader=source,
            noise_multiplier=plan.noise_multiplier,
            noise=config.noise,
            max_physical_batch=self._examples_at_once(),
            fixed_shape=config.fixed_shape,
            seed=config.seed,
            max_steps=plan.steps_left,
            sampling=way.drawing.sampling,
            correlation=way.strategy,
            loss_clip=config.loss_clip,
            clip_length=None
            if config.clip_quantile is None
            else at_quantile(self.module.clips, config.clip_quantile),
            fixed_norm=config.fixed_norm,
            secure=config.secure,
        )
        if saved:
            restore(saved, self.module, optimizer, self.ledger)
            way.check_resumed(plan, self.ledger.record, self.budget)
        self.last = None if config.average is None else LastWeights(self.module, plan.total_steps, config.average)
        if saved and self.last:
            self.last.load_state_dict(saved.notes["average"])
        return plan, optimizer, loader

    def _examples_at_once(self) -> int | None:
        """Return the most examples computed at once, of which each is so many rows.

        Of a network that no rule covers each example holds a copy of the parameters, and a gradient.
        """
        most = self.config.max_physical_batch
        if most is None and self.module.own_network is not None:
            most = max(_HELD // sum(one.numel() for one in self.module.parameters()), 1)
        return most if most is None or self.augmentation is None else max(most // self.config.views, 1)

    def _sigma(self, way: Course, saved: Checkpoint | None) -> float:
        config = self.config
        if saved is None:
            return way.calibrated(self.budget)
        begun = saved.notes.get("settings", {})
        before = {one.name: one.default for one in fields(TrainConfig)} | begun  # of a version without some
        now = _identity(config)
        for settings in (before, now):  # changes of images have no order
            settings["augment"] = settings["augment"] and Augmentation.of(settings["augment"], config.views)
        changed = [name for name, value in now.items() if before[name] != value]
        if changed:
            raise BudgetError(
                f"the run to resume had a different {', '.join(changed)}: resume it with its original settings"
            )
        return float(saved.notes["noise_multiplier"])

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
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.config.precision == "bfloat16"):
                loss = self.module.criterion(self._outputs(x), y)
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
            if self.loader.current is None:
                steps = self.ledger.record.total_steps
                if self.last:
                    self.last.after(steps - 1)
                yield steps
                if not self.optimizer.steps_left or self._epoch_is_full(steps):
                    return

    def _outputs(self, x: Tensor) -> Tensor:
        """Return the outputs of examples, or of their views."""
        outputs: Tensor
        if self.augmentation is None:
            outputs = self.module(x)
        else:
            with self.module.on_views():
                outputs = self.module(self.augmentation(x))
        return outputs

    def _epoch_is_full(self, steps: int) -> bool:
        """Whether an epoch ends here though the loader goes on, as after a resumed part of one."""
        whole = self.loader.scheme.drawing.round_steps == self.plan.steps_per_epoch
        return not whole and steps % self.plan.steps_per_epoch == 0

    def _set_learning_rate(self) -> None:
        progress = self.ledger.record.total_steps / self.plan.total_steps
        share = _SCHEDULES[self.config.schedule](progress)
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.learning_rate * share

    def _end_epoch(self) -> None:
        self._save()
        self.scores = _scores(self.module, *self.test)
        steps = self.ledger.record.total_steps
        spent = self.engine.get_epsilon(self.config.delta)
        self.report.epoch_ended(EpochSummary(steps // self.plan.steps_per_epoch, steps, spent, *self.scores))

    def _save(self) -> None:
        """Write the checkpoint; once no steps are left, of averaged weights."""
        if self.last and not self.optimizer.steps_left:
            self.last.load()
            self.module.forget_certificates()
            self.module.project_()
        average = {} if self.last is None else {"average": self.last.state_dict()}
        plan = {"noise_multiplier": self.plan.noise_multiplier, "planned_steps": self.plan.total_steps}
        notes = {"settings": _identity(self.config), **plan, **average}
        save_checkpoint(self.checkpoint_path, self.module, self.optimizer, self.ledger, notes)

    def result(self, seconds: float) -> TrainResult:
        record = self.ledger.record
        accuracy, loss = self.scores or _scores(self.module, *self.test)
        return TrainResult(
            epsilon=self.engine.get_epsilon(self.config.delta),
            delta=self.config.delta,
            steps=record.total_steps,
            noise_multiplier=self.plan.noise_multiplier,
            test_accuracy=accuracy,
            test_loss=loss,
            private=not record.seeded,
            checkpoint=self.checkpoint_path,
            ledger=self.ledger_path,
            seconds=seconds,
        )


def _scores(module: LipschitzModule, x: Tensor, y: Tensor) -> tuple[float, float]:
    """Return the accuracy on examples, and NaN; or NaN and their mean loss."""
    accuracy = evaluate(module, x, y)
    return accuracy, mean_loss(module, x, y) if math.isnan(accuracy) else math.nan


@torch.no_grad()
def mean_loss(module: LipschitzModule, x: Tensor, y: Tensor) -> float:
    """Return the mean loss of examples [M, …] with targets [M, …]: exact, as that of `evaluate`."""
    losses = (module.per_example_loss(output, target) for output, target in _outputs(module, x, y))
    return sum(float(some.sum()) for some in losses) / len(x)


def _outputs(module: LipschitzModule, x: Tensor, y: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield outputs in evaluation mode, and targets, of examples [M, …], some at a time."""
    device, was_training = next(module.parameters()).device, module.training
    pieces = zip(torch.split(x, _EVALUATION_BATCH), torch.split(y, _EVALUATION_BATCH), strict=True)
    module.eval()
    try:
        for inputs, targets in pieces:
            yield module(inputs.to(device)), targets.to(device)
    finally:
        module.train(was_training)


@torch.no_grad()
def evaluate(module: LipschitzModule, x: Tensor, y: Tensor) -> float:
    """Return the accuracy on examples [M, …] with labels [M]: largest logit, or the sign of a single one.

    With labels of tokens, [M, n], or of pixels, it is the share of these, those with a negative label left
    out. It is exact: use it on held-out data only, and say so. NaN if the targets are no class labels.
    """
    if y.is_floating_point():
        return math.nan
    axis = _class_axis(module)
    correct = counted = 0
    for output, labels in _outputs(module, x, y):
        predicted = predict(output, axis)
        if predicted.numel() != labels.numel():
            return math.nan
        wanted = labels.reshape(predicted.shape)
        known = wanted >= 0 if wanted.dim() > 1 else torch.ones_like(wanted, dtype=torch.bool)
        correct += int((known & (predicted == wanted.clamp(min=0))).sum())
        counted += int(known.sum())
    return correct / counted if counted else math.nan


def _class_axis(module: LipschitzModule) -> int | None:
    """Return the axis of the logits [B, …] that the classes of the loss are along; None if each has a label."""
    loss = (certificate_of(module) or {}).get("graph", {}).get("loss") or {}
    return {"pixel_cross_entropy": 1, "multilabel_bce": None}.get(loss.get("name", ""), -1)


def predict(output: Tensor, axis: int | None = -1) -> Tensor:
    """Return class numbers [B]: the largest of logits [B, K], or 1 where a single logit [B] is positive; of logits
    with more axes, such as [B, n, K], class numbers [B, n], `axis` the one that is gone. Without an axis, 1
    where a logit is positive.
    """
    if axis is None:
        return (output > 0).long()
    if output.dim() == 1 or output.shape[1:] == (1,):
        return (output.reshape(len(output)) > 0).long()
    return output.argmax(axis)


def _identity(config: TrainConfig) -> dict[str, Any]:
    """Return the settings that a resumed run must share: those that budget and course of training rest on."""
    free = {"output", "resume", "device", "max_physical_batch", "fixed_shape", "seed", "secure", "cache_features"}
    return {name: value for name, value in asdict(config).items() if name not in free}


def _check(config: TrainConfig) -> None:
    if config.epochs < 1 or config.batch_size < 1:
        raise ValueError(f"{config.epochs} epochs of batches of {config.batch_size}: both must be at least 1")
    if not 0 < config.learning_rate < math.inf or not 0 <= config.momentum < 1:
        raise ValueError(
            f"learning rate {config.learning_rate}, momentum {config.momentum}: the rate must be positive and "
            "momentum in [0, 1)"
        )
    if config.average is not None and not 0 <= config.average <= 1:
        raise ValueError(f"the share of steps to average must be in [0, 1]; got {config.average}")
    if config.optimizer not in ("adam", "sgd") or config.schedule not in _SCHEDULES:
        raise ValueError(f"unknown optimizer {config.optimizer!r} or schedule {config.schedule!r}")
    if config.precision not in ("float32", "bfloat16"):
        raise ValueError(f"unknown precision {config.precision!r}: choose float32 or bfloat16")


def _augmentation(config: TrainConfig, module: LipschitzModule) -> Augmentation | None:
    if config.augment is None:
        return None
    found = Augmentation.of(config.augment, config.views)
    found.check(() if module.input_tokens else module.input_shape)
    return found


def _optimizer(config: TrainConfig, module: LipschitzModule) -> Optimizer:
    if config.optimizer == "adam":
        return Adam(module.parameters(), lr=config.learning_rate)
    return SGD(module.parameters(), lr=config.learning_rate, momentum=config.momentum)


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("device cuda was requested, but torch finds no GPU: use cpu, or auto")
    return torch.device(name)
