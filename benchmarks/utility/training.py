"""Training by the library to a budget: momentum, a rate that falls in a line, and averages of the last weights."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any

import torch
from lipcompile_torch import Augmentation, PrivacyEngine
from lipcompile_torch.averaging import LastWeights
from lipcompile_torch.train.engine import SeededWarning
from torch import Tensor
from torch.optim import SGD, Adam, Optimizer
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.harness import emitted
from lipcompile.frontends.options import ModelOptions


@dataclass(frozen=True)
class Budget:
    """What the ledger may say in the end: ε at δ, examples added or removed."""

    epsilon: float
    delta: float


@dataclass(frozen=True)
class Recipe:
    """How to train.

    Args:
        steps: of the optimizer; an epoch has N / batch of them.
        rate: learning rate at the first step; it falls in a line to 0.
        batch: expected batch size; None: all examples in every step.
        momentum: of SGD; None: Adam.
        average: the last weights that are averaged, as a share of the steps; 0: the last alone.
        how: options of `make_private`, such as `loss_clip`.
    """

    steps: int
    rate: float
    batch: int | None = None
    momentum: float | None = 0.9
    average: float = 0.0
    how: Mapping[str, Any] = field(default_factory=dict)


@lru_cache(maxsize=256)
def _class(name: str, bindings: tuple[tuple[str, Fraction], ...]) -> Any:
    return emitted(name, ModelOptions(bindings=dict(bindings)))


def compiled(path: Path, bindings: Mapping[str, float], model: str) -> Any:
    """Return a model of a .lip file with fresh weights, given values of its parameters."""
    values = tuple((key, Fraction(str(value))) for key, value in sorted(bindings.items()))
    return _class(f"{path}::{model}", values)()


_SIGMAS: dict[Any, float] = {}


def train(
    engine: PrivacyEngine,
    module: Any,
    examples: TensorDataset,
    recipe: Recipe,
    budget: Budget,
    seed: int,
    *,
    augmentation: Augmentation | None = None,
    watch: Callable[[int], None] | None = None,
) -> None:
    """Train the module so that everything in the ledger of a new engine costs at most the budget.

    Args:
        augmentation: makes views of the examples of each batch.
        watch: called with the number of steps taken, after each.

    The seed makes runs repeatable, and these models not private.
    """
    batch = recipe.batch or len(examples)
    loader: DataLoader[Any] = DataLoader(examples, batch_size=batch)
    optimizer = optimizer_of(recipe, module)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SeededWarning)
        _, private, batches = engine.make_private(
            module=module,
            optimizer=optimizer,
            data_loader=loader,
            noise_multiplier=_calibrated(engine, loader, recipe, budget),
            max_steps=recipe.steps,
            seed=seed,
            **recipe.how,
        )
    last = LastWeights(module, recipe.steps, recipe.average)
    for step, (x, y) in enumerate(batches_of(batches, recipe.steps)):
        optimizer.param_groups[0]["lr"] = recipe.rate * (1 - step / recipe.steps)
        private.zero_grad()
        with nullcontext() if augmentation is None else module.on_views():
            output = module(x if augmentation is None else augmentation(x))
        module.criterion(output, y).backward()
        private.step()
        if watch is not None:
            watch(step + 1)
        last.after(step)
    last.load()


def optimizer_of(recipe: Recipe, module: Any) -> Optimizer:
    """Return the optimizer, at the rate of the first step."""
    if recipe.momentum is None:
        return Adam(module.parameters(), lr=recipe.rate)
    return SGD(module.parameters(), lr=recipe.rate, momentum=recipe.momentum)


def _calibrated(engine: PrivacyEngine, loader: DataLoader[Any], recipe: Recipe, budget: Budget) -> float:
    """Return σ of an engine that has spent nothing, calibrated once for each rate, number of steps and budget."""
    size = len(loader.dataset)  # type: ignore[arg-type]  # a TensorDataset
    how = {name: value for name, value in recipe.how.items() if name in ("sampling", "correlation")}
    sampling_rate = (loader.batch_size or size) / size
    key = (budget, sampling_rate, recipe.steps, str(how))
    if key not in _SIGMAS:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # δ = 1 / n of the whole set, as in the papers
            _SIGMAS[key] = engine.calibrate(
                data_loader=loader,
                target_epsilon=budget.epsilon,
                target_delta=budget.delta,
                steps=recipe.steps,
                **how,
            )
    return _SIGMAS[key]


def batches_of(loader: Any, steps: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield so many batches, over as many epochs as that takes."""
    return islice(chain.from_iterable(repeat(loader)), steps)


def outputs(module: Any, x: Tensor, size: int = 16384) -> Tensor:
    """Return what the module makes of [N, …], without gradients."""
    module.eval()
    with torch.no_grad():
        return torch.cat([module(piece) for piece in torch.split(x, size)])
