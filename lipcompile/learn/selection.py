"""A private search of settings: the default and a richer recipe share the budget, and one or both are kept.

Each trains a head for half of what is left, on the same released ranges and moments. Then one more release, a sum
over the rows, says by how much each alone has a lower loss than the mean of both. The mean is kept unless one of
them stands out of the noise: it has as little noise as a single head for the whole. Nothing that was paid for is
thrown away, so a search costs little where it finds nothing (docs/estimator.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lipcompile.learn.account import Account
from lipcompile.learn.features import Array, Features, joined
from lipcompile.learn.recipe import Recipe
from lipcompile.learn.targets import Head, Problem

SCORES = 0.05
"""The share of what a search is given that its scores take."""

BOTH, CHOICES = "mean of both", ("default", "richer")
_MOST = 0.25  # of the difference between two losses of a row; beyond, it is cut
_CLEARLY = 2.0  # standard deviations of the noise
_LEAST = 3000.0

Model = tuple[Features, Array]
"""Features, and the weights of a head on them [outputs, D]."""


def pays(rows: int, noise_multiplier: float) -> bool:
    """Return whether a search may pay, by public facts: rows are thousands of times the noise of the fit."""
    return rows >= _LEAST * noise_multiplier


def richer(recipe: Recipe) -> Recipe:
    """Return the recipe that a search trains beside this one: twice the waves, of higher frequency."""
    return replace(recipe, kind="waves", width=2 * recipe.width, frequency=math.sqrt(2) * recipe.frequency)


def chosen(
    models: Sequence[Model],
    outputs: Callable[[Model], Array],
    y: NDArray[Any],
    head: Head,
    problem: Problem,
    account: Account,
    share: float,
) -> tuple[str, Model]:
    """Return one of two models or their mean, and which it is; the account pays a share of the fit for this.

    Args:
        models: by the default, and by the richer recipe.
        outputs: of a model for all rows, [N, outputs].
        y: targets [N], as `fit` takes them.
        head: how outputs are read.
        share: 0: the mean is returned, and nothing paid.
    """
    mean = joined(models)
    if not share:
        return BOTH, mean
    first, second = (outputs(model) for model in models)
    with np.errstate(over="ignore", invalid="ignore"):  # infinite errors: neither head is nearer, the row counts 0
        of_mean, *alone = (problem.losses(head, found, y) for found in ((first + second) / 2, first, second))
        better = [np.nan_to_num(of_mean - one, nan=0.0) for one in alone]
    gains = np.clip(np.column_stack(better), -_MOST, _MOST).sum(axis=0)
    norm = _MOST * math.sqrt(len(alone)) * (1 + 1e-9)
    found = account.release("scores of the search", share)(gains, norm)
    best = int(found.argmax())
    if found[best] > _CLEARLY * norm * account.noise(share):
        return CHOICES[best], models[best]
    return BOTH, mean
