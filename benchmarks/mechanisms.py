"""Accuracy of every mechanism on MNIST: the same network, the same budget.

    python -m benchmarks.mechanisms --data FOLDER [--rows WORD] [--seeds 3] [--json FILE]

FOLDER holds `mnist.npz`, with x_train, y_train, x_test, y_test as in the original. Images are averaged to 14 × 14
pixels, which keeps per-example gradients affordable. 6,000 training images are set aside: the learning rate of
each row is the best on them of the same five, in units of the row's own bound on a gradient, at one seed. That
choice is not counted in ε, for any row. The accuracy is that on the test images, mean and standard deviation over
seeds; ε is what the ledger says. Seeds make the runs repeatable, and these models not private.

A mechanism that the installation does not have is left out, with the reason. Rows that are measured replace those
of the same names in the JSON file, and the others stay.
"""

from __future__ import annotations

import math
import statistics
import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from lipcompile_torch import PrivacyEngine
from lipcompile_torch.accounting import Accountant, BudgetError
from lipcompile_torch.train.data import load_npz
from lipcompile_torch.train.engine import SeededWarning
from lipcompile_torch.train.loss_clipping import AdaptiveClip
from lipcompile_torch.train.training import evaluate
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  (its name everywhere in this field)
from torch.optim import SGD
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.harness import emitted, options
from benchmarks.utility.study import Rows
from benchmarks.utility.training import batches_of

NETWORK = Path(__file__).parent / "mechanisms.lip"
EPSILON, DELTA, EPOCHS, BATCH, VALIDATION = 3.0, 1e-5, 5, 2048, 6000
RATES = (0.5, 1.0, 2.0, 4.0, 8.0)
ACCOUNTANT: Accountant = "pld"
LOSS_CLIP = 0.1  # of the gradient in the logits, whose bound is √2: as in examples/mnist.lip


@dataclass(frozen=True)
class Row:
    """A mechanism.

    Args:
        name: in the table.
        how: options of `make_private`; those that are functions are called, for a fresh object in every run.
        neighbours: of the engine, where a mechanism has no analysis under the usual relation.
        follow: the bounds follow the norms of the weights.
        scale: of learning rates: L over what the gradient in the logits is bounded by.
        clipping: C of per-example clipping, in place of the bounds.
        relu: a network of torch's own layers, biases and ReLU, in place of the compiled one.
        private: False for plain training.
    """

    name: str
    how: Mapping[str, Any] = field(default_factory=dict)
    neighbours: str = "add_remove"
    follow: bool = False
    scale: float = 1.0
    clipping: float | None = None
    relu: bool = False
    private: bool = True


OPTIMAL = {"noise": "optimal"}
CLIPPED = math.sqrt(2) / LOSS_CLIP
ROWS = (
    Row("no privacy", private=False),
    Row("noise: global", {"noise": "global"}),
    Row("noise: per layer", {"noise": "per_layer"}),
    Row("noise: optimal", OPTIMAL),
    Row("noise: weights, logits 1/2", {"noise": {"*": 1.0, "logits.weight": 0.5}}),
    Row("bounds follow the weights", OPTIMAL, follow=True),
    Row("loss gradient clipped", OPTIMAL | {"loss_clip": LOSS_CLIP}, scale=CLIPPED),
    Row("loss gradient, adaptive clip", OPTIMAL | {"loss_clip": lambda: AdaptiveClip(LOSS_CLIP)}, scale=CLIPPED),
    Row("correlated: 4 bands", OPTIMAL | {"correlation": {"kind": "correlated", "bands": 4}}),
    Row("correlated: BLT", OPTIMAL | {"correlation": {"kind": "blt"}}),
    Row(
        "loss gradient clipped, and BLT",
        OPTIMAL | {"loss_clip": LOSS_CLIP, "correlation": {"kind": "blt"}},
        scale=CLIPPED,
    ),
    Row("secure noise", OPTIMAL | {"secure": True}),
    Row("balls in bins", OPTIMAL | {"sampling": "balls_in_bins"}),
    Row("replace-one, Poisson", OPTIMAL, "replace_one"),
    Row("replace-one, fixed size", OPTIMAL | {"sampling": "fixed_size"}, "replace_one"),
    Row("replace-one, shuffle", OPTIMAL | {"sampling": "shuffle"}, "replace_one"),
    Row("per-example clipping", clipping=0.1),
    Row("per-example clipping, ReLU", clipping=0.1, relu=True),
)


@dataclass(frozen=True)
class Data:
    """Images [N, 196] and labels [N] to train on, to choose by, and to report on."""

    train: TensorDataset
    validation: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Outcome:
    """One run: accuracies, what the ledger says, and CPU seconds of training."""

    validation: float
    test: float
    epsilon: float
    sigma: float
    seconds: float


def load(folder: Path) -> Data:
    """Read `mnist.npz`; the split is fixed."""
    arrays = load_npz(folder / "mnist.npz", (1, 28, 28), 10)
    x, y = _pooled(arrays.x_train), torch.from_numpy(arrays.y_train)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    train, aside = order[VALIDATION:], order[:VALIDATION]
    test = _pooled(arrays.x_test), torch.from_numpy(arrays.y_test)
    return Data(TensorDataset(x[train], y[train]), (x[aside], y[aside]), test)


def _pooled(images: Any) -> Tensor:
    return F.avg_pool2d(torch.from_numpy(images), 2).flatten(1)


def build(row: Row) -> Any:
    """Return the network with fresh weights."""
    if row.relu:
        return nn.Sequential(nn.Linear(196, 64), nn.ReLU(), nn.Linear(64, 10))
    return emitted(NETWORK, follow=row.follow)()


class Trial:
    """Runs of one row."""

    def __init__(self, row: Row, data: Data) -> None:
        self.row, self.data = row, data
        self.loader: DataLoader[Any] = DataLoader(data.train, batch_size=BATCH)
        self.sigma = 0.0
        if row.private:
            self.sigma = self._engine().calibrate(
                data_loader=self.loader,
                target_epsilon=EPSILON,
                target_delta=DELTA,
                epochs=EPOCHS,
                **self._how(),
            )

    def _engine(self) -> PrivacyEngine:
        return PrivacyEngine(ACCOUNTANT, neighbours=self.row.neighbours)

    def _how(self) -> dict[str, Any]:
        return {name: value() if callable(value) else value for name, value in self.row.how.items()}

    def run(self, rate: float, seed: int) -> Outcome:
        """Train once; `rate` is in units of the row's bound."""
        torch.manual_seed(seed)
        module, engine = build(self.row), self._engine()
        optimizer = SGD(module.parameters(), lr=rate * self._scale(module), momentum=0.9)
        began = time.process_time()
        if self.row.private:
            self._train_privately(engine, module, optimizer, seed)
        else:
            self._train_plainly(module, optimizer)
        seconds = time.process_time() - began
        spent = engine.get_epsilon(DELTA) if self.row.private else math.inf
        return Outcome(*self._accuracies(module), spent, self.sigma, seconds)

    def _scale(self, module: Any) -> float:
        if self.row.clipping is None:
            return self.row.scale
        plain = module if not self.row.relu else build(Row("plain"))
        return math.hypot(*plain.gradient_bounds().values()) / self.row.clipping

    def _accuracies(self, module: Any) -> tuple[float, float]:
        return evaluate(module, *self.data.validation), evaluate(module, *self.data.test)

    def _train_privately(self, engine: PrivacyEngine, module: Any, optimizer: Any, seed: int) -> None:
        how = self._how()
        common = {
            "module": module,
            "optimizer": optimizer,
            "data_loader": self.loader,
            "noise_multiplier": self.sigma,
            "max_steps": EPOCHS * round(len(self.data.train) / BATCH),
            "seed": None if how.get("secure") else seed,
            **how,
        }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SeededWarning)
            if self.row.clipping is None:
                _, private, loader = engine.make_private(**common)
            else:
                loss = _entropies if self.row.relu else None
                made = engine.make_private_by_clipping(clipping=self.row.clipping, per_example_loss=loss, **common)
                clipped, private, loader = made
        for x, y in _annealed(loader, optimizer, private.steps_left or 0):
            private.zero_grad()
            if self.row.clipping is None:
                module.criterion(module(x), y).backward()
            else:
                clipped.backward(x, y)
            private.step()

    def _train_plainly(self, module: Any, optimizer: Any) -> None:
        loader: DataLoader[Any] = DataLoader(self.data.train, batch_size=BATCH, shuffle=True)
        module.normaliser = float(BATCH)
        for x, y in _annealed(loader, optimizer, EPOCHS * len(loader)):
            optimizer.zero_grad()
            module.criterion(module(x), y).backward()
            optimizer.step()
            module.project_()


def _entropies(output: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(output, target, reduction="none")


def _annealed(loader: Any, optimizer: Any, steps: int) -> Iterator[Any]:
    """Yield so many batches, with a learning rate that falls to 0 by half a cosine."""
    start = optimizer.param_groups[0]["lr"]
    for step, batch in enumerate(batches_of(loader, steps)):
        optimizer.param_groups[0]["lr"] = start * (1 + math.cos(math.pi * step / steps)) / 2
        yield batch


def measure(row: Row, data: Data, seeds: int) -> dict[str, Any]:
    """Return the row of the table; choose the learning rate on the validation images."""
    trial = Trial(row, data)
    tried = {rate: trial.run(rate, seed=0) for rate in RATES}
    best = max(tried, key=lambda rate: tried[rate].validation)
    runs = [tried[best], *(trial.run(best, seed) for seed in range(1, seeds))]
    accuracies = [run.test for run in runs]
    return {
        "neighbours": row.neighbours,
        "accountant": ACCOUNTANT,
        "epsilon": max(run.epsilon for run in runs) if row.private else None,
        "sigma": trial.sigma,
        "rate": best,
        "accuracy": statistics.mean(accuracies),
        "std": statistics.stdev(accuracies) if seeds > 1 else 0.0,
        "seconds": statistics.median(run.seconds for run in runs),
    }


def line(name: str, found: Mapping[str, Any]) -> str:
    """Return a line of the table."""
    epsilon = f"{found['epsilon']:.3f}" if found["epsilon"] else "none"
    accuracy = f"{100 * found['accuracy']:.2f} ± {100 * found['std']:.2f}"
    return (
        f"{name:30} {found['neighbours']:11} {found['accountant']:4} {epsilon:>6} {found['sigma']:7.3f}"
        f" {found['rate']:5.1f} {accuracy:>14} {found['seconds']:7.1f}"
    )


def main() -> None:
    """Measure and print."""
    arguments = options(__doc__, data=..., rows="", seeds=3, json=Path)
    torch.set_num_threads(1)
    data = load(arguments.data)
    settings = {"epsilon": EPSILON, "delta": DELTA, "epochs": EPOCHS, "batch": BATCH, "rates": list(RATES)}
    kept = Rows(arguments.json, settings | {"seeds": arguments.seeds})
    heading = ("mechanism", "neighbours", "acc.", "ε", "σ", "rate", "test accuracy", "seconds")
    print("{:30} {:11} {:4} {:>6} {:>7} {:>5} {:>14} {:>7}".format(*heading), flush=True)
    for row in (row for row in ROWS if arguments.rows in row.name):
        try:
            kept.put(row.name, measure(row, data, arguments.seeds))
            print(line(row.name, kept.rows[row.name]), flush=True)
        except (BudgetError, ImportError) as error:
            kept.put(row.name, {"left out": str(error)})
            print(f"{row.name:30} left out: {error}", flush=True)


if __name__ == "__main__":
    main()
