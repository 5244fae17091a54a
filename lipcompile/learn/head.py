"""The linear head on public features, trained privately by the engine: its bound is the clip of the loss alone."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lipcompile_torch import PrivacyEngine
from lipcompile_torch.averaging import LastWeights
from lipcompile_torch.train.engine import SeededWarning
from numpy.typing import NDArray
from torch import Tensor
from torch.optim import SGD
from torch.utils.data import DataLoader, Dataset, TensorDataset, default_collate

from lipcompile.core.backend import find, instantiate
from lipcompile.frontends.options import ModelOptions
from lipcompile.learn.features import Array, Features
from lipcompile.learn.recipe import Recipe
from lipcompile.learn.scaling import Scaling, pieces
from lipcompile.learn.targets import Head
from lipcompile.tables.encode import release

_KEPT = 2**30  # bytes of features that are computed once; more are computed for each batch
_PIECE = 16_384  # rows whose features are computed at once

Watch = Callable[[int, int, Array | None], None]
"""Takes how many steps are taken, of how many, and the weights [outputs, D] as they were released last; None for
them if the model is made of several heads."""


class MappedRows(Dataset[tuple[Tensor, Tensor]]):
    """Rows whose features are computed when a batch asks for them."""

    def __init__(self, x: Array, y: NDArray[Any], features: Callable[[Array], Array]) -> None:
        self._x, self._y, self._features = x, y, features

    def __len__(self) -> int:
        return len(self._x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x, y = self.__getitems__([index])
        return x[0], y[0]

    def __getitems__(self, indices: list[int]) -> tuple[Tensor, Tensor]:
        """Return the features [n, D] and targets of some rows."""
        features = torch.from_numpy(self._features(self._x[indices])).double()
        release(self._x)
        return features, torch.from_numpy(self._y[indices])


def collate(items: Any) -> Any:
    """Return a batch as it is, or made of items."""
    return items if isinstance(items, tuple) else default_collate(items)


def train_head(
    engine: PrivacyEngine,
    x: Array,
    head: Head,
    scaling: Scaling,
    features: Features,
    recipe: Recipe,
    sigma: Callable[[DataLoader[Any]], float],
    seed: int | None = None,
    watch: Watch | None = None,
) -> Array:
    """Return the weights [outputs, D] of a head that was trained privately; the ledger counts every step.

    The learning rate is such that the noise of one step moves a weight by `recipe.agitation`, falls in a line to
    0, and the last weights are averaged. All of it is in float64: sums over a hundred thousand rows in float32
    would take more noise than privacy does.

    Args:
        engine: whose ledger counts.
        x: values [N, d], NaN where missing.
        head: loss and targets.
        scaling, features: the map of a row; see there.
        recipe: how to train.
        sigma: noise multiplier, for a loader.
        seed: makes the run repeatable, and NOT private.
        watch: told of each step.
    """
    module = _module(head, features.count(scaling.width), features.radius)
    with torch.no_grad():
        module.get_parameter("dense.weight").zero_()[:, -1] = torch.from_numpy(head.start)
    data = _examples(x, head.targets, lambda rows: features(scaling(rows)))
    batch = min(recipe.batch or len(x), len(x))
    kept = isinstance(data, TensorDataset)
    loader: DataLoader[Any] = DataLoader(data, batch_size=batch, collate_fn=None if kept else collate)
    noise, clip = sigma(loader), None if head.loss == "regression" else recipe.loss_clip
    weight: Array = module.get_parameter("dense.weight").detach().numpy()
    optimizer = SGD(module.parameters(), lr=1.0, momentum=recipe.momentum)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SeededWarning)  # `fit` has warned
        _, private, batches = engine.make_private(
            module=module,
            optimizer=optimizer,
            data_loader=loader,
            noise_multiplier=noise,
            max_steps=recipe.steps,
            max_physical_batch=None if kept else _PIECE,
            loss_clip=clip,
            seed=seed,
        )
    rate = min(recipe.fastest, recipe.agitation * batch / (noise * features.radius * (clip or 1.0)))
    last = LastWeights(module, recipe.steps, recipe.average)
    while private.steps_left:
        for inputs, targets in batches:
            left = private.steps_left or 0
            optimizer.param_groups[0]["lr"] = rate * left / recipe.steps
            private.zero_grad()
            module.criterion(module(inputs), targets).backward()
            private.step()
            if private.steps_left == left:  # more pieces of this batch are to come
                continue
            last.after(recipe.steps - left)
            if watch is not None:
                watch(recipe.steps - left + 1, recipe.steps, weight)
            if not private.steps_left:
                break
    last.load()
    return weight.copy()


def _examples(x: Array, y: NDArray[Any], features: Callable[[Array], Array]) -> Dataset[Any]:
    """Return the rows with features computed once, if there is room for them, or for each batch."""
    width = features(x[:1]).shape[1]
    if 8 * len(x) * width > _KEPT:
        return MappedRows(x, y, features)
    room = np.empty((len(x), width))
    for some, rows in pieces(x):
        room[some] = features(rows)
    return TensorDataset(torch.from_numpy(room), torch.from_numpy(y))


@lru_cache(maxsize=64)
def _source(model: str, bindings: tuple[tuple[str, Fraction], ...]) -> str:
    from lipcompile.pipeline import check  # above the rooms

    with as_file(files(__package__) / "heads.lip") as path:
        return find().emit(check(f"{path}::{model}", ModelOptions(bindings=dict(bindings))))


def _module(head: Head, count: int, radius: float) -> Any:
    """Return a new module of heads.lip, in float64."""
    outputs = {"outputs": head.outputs} if head.loss == "multiclass" else {}
    sizes = {"features": count, "radius": radius} | outputs
    bindings = tuple((name, Fraction(str(value))) for name, value in sizes.items())
    return instantiate(Path("head.py"), _source(head.loss, bindings)).double()
