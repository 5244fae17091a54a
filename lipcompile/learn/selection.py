"""Choosing settings privately: the best of a random number of runs, by a score that each of them releases.

A run draws a recipe, trains on four fifths of the rows, and releases how many of the others it predicts well, with
noise. A row is in one of the two parts, by its number, which says nothing of other rows: how many there are is
public, and a row that is removed leaves its number empty. So a run costs what its costlier part does: one Gaussian
mechanism. `lipcompile_privacy.accounting.Selection` has the theorem of the whole.
"""

from __future__ import annotations

import secrets
import warnings
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import torch
from lipcompile_privacy.selection import number_of_runs
from lipcompile_torch import PrivacyEngine
from lipcompile_torch.noise.mechanism import NoiseSource
from numpy.typing import NDArray

from lipcompile.learn.account import Account, Spent
from lipcompile.learn.features import Array
from lipcompile.learn.recipe import LARGE, Recipe
from lipcompile.learn.targets import Problem

_FOLDS = 5


def candidates(recipe: Recipe) -> list[Recipe]:
    """Return the recipes that a search draws from, in public: this one with other features and clips."""
    kinds: list[dict[str, Any]] = [
        {"kind": "plain"},
        *({"kind": "waves", "frequency": f} for f in (0.35, 0.7, 1.1)),
    ]
    return [replace(recipe, **kind, loss_clip=clip) for kind in kinds for clip in (0.1, 0.3, 1.0)]


def select(
    x: Array,
    y: NDArray[Any],
    problem: Problem,
    recipe: Recipe,
    account: Account,
    trained: Callable[..., Any],
) -> Recipe:
    """Return the recipe of the best run; the account is charged before the first.

    Args:
        trained: fits by a recipe, see `fitting`.
    """
    selection = account.budget.selection
    ledger = account.engine.open_ledger(account.rows)
    noise = NoiseSource(account.seed)
    ledger.declare(selection, noise.is_seeded, noise.generators([torch.empty(0)]))
    ledger.record_step(selection)
    account.spent.append(Spent("search of settings", 1, 1.0, selection.noise_multiplier))
    source = secrets.SystemRandom() if account.seed is None else Random(account.seed)
    x, y = x[:LARGE], y[:LARGE]  # batches of all rows compose exactly
    aside = np.arange(len(x)) % _FOLDS == _FOLDS - 1
    inner, outer = (x[~aside], y[~aside]), (x[aside], y[aside])
    best, chosen = -np.inf, recipe
    for run in range(number_of_runs(selection.mean, selection.shape, source)):
        one = replace(source.choice(candidates(recipe)), batch=None)
        seed = None if account.seed is None else account.seed + 1000 * (run + 1)
        own = Account(account.budget, selection.noise_multiplier, len(inner[0]), PrivacyEngine(), seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # their number would tell that of the runs
            fitted = trained(*inner, problem, one, own)
            score = _score(fitted, *outer, problem, replace(own, rows=len(outer[0]), engine=PrivacyEngine()))
        if score > best:
            best, chosen = score, replace(one, batch=recipe.batch)
    return chosen


def _score(fitted: Any, x: Array, y: NDArray[Any], problem: Problem, account: Account) -> float:
    """Return how well rows are predicted, one point a row at most, with noise."""
    well = problem.points(fitted.head, fitted.outputs(x), y).sum(keepdims=True)
    return float(account.release("score", 1.0)(well, 1.0)[0])
