"""Fit a model of a table to a budget: a search of settings, ranges, moments, a head; and what comes out.

The search is private: the default and a richer recipe share the budget, and one or both are kept. Each trains a
head for half of what is left, on the same released ranges and moments. Then one more release, a sum over the rows,
says by how much each alone has a lower loss than the mean of both. The mean is kept unless one of them stands out
of the noise: it has as little noise as a single head for the whole. Nothing that was paid for is thrown away, so a
search costs little where it finds nothing (docs/estimator.md).
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from lipcompile_privacy.accounting import Mechanism, Run, epsilon
from lipcompile_privacy.errors import DataError
from lipcompile_torch.train.engine import SeededWarning
from numpy.typing import NDArray

from lipcompile.learn.account import Account, Budget, Spent
from lipcompile.learn.features import Array, Features, joined
from lipcompile.learn.head import Watch, train_head
from lipcompile.learn.recipe import Recipe, recipe_for
from lipcompile.learn.scaling import Scaling, Units, pieces, released_moments, released_ranges
from lipcompile.learn.targets import Classes, Head, Numbers, Problem
from lipcompile.tables.encode import Indicators, release

NO_SEARCH = (
    "no search was made: at this epsilon the rows are too few for one to pay, so all of it went into the defaults"
)


SCORES = 0.05
"""The share of what a search is given that its scores take."""

BOTH, CHOICES = "mean of both", ("default", "richer")
_MOST = 0.25  # of the difference between two losses of a row; beyond, it is cut
_CLEARLY = 2.0  # standard deviations of the noise
_LEAST = 3000.0  # rows for each unit of noise

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


def outputs_of(x: Array, scaling: Scaling, features: Features, weights: Array) -> Array:
    """Return the outputs of a head [N, outputs] for values [N, d]."""
    parts = [features(scaling(rows)) @ weights.T for _, rows in pieces(x)]
    return np.concatenate(parts) if parts else np.empty((0, len(weights)))


@dataclass(frozen=True)
class Fitted:
    """A model that was fitted privately: all of it was released, or is public.

    Args:
        scaling, features: the map of a row.
        weights: of the head, [outputs, D].
        head: how outputs are read.
        budget: that was given.
        epsilon: ε of the ledger, with what an earlier part of its file says.
        spent: on what.
        recipe: how.
        private: False if a seed was fixed.
        searched: what a search has kept of the default and a richer recipe; None: none was made.
    """

    scaling: Scaling
    features: Features
    weights: Array
    head: Head
    budget: Budget
    epsilon: float
    spent: tuple[Spent, ...]
    recipe: Recipe
    private: bool
    searched: str | None = None

    def epsilon_after(self, steps: int) -> float:
        """Return ε of the fit if its head had taken so many steps and no more."""
        *before, head = self.spent
        lines = (*before, replace(head, steps=steps))
        runs: list[Run] = [(Mechanism(one.sampling_rate, one.noise_multiplier), one.steps) for one in lines]
        return epsilon(runs, self.budget.delta)

    def outputs(self, x: Array) -> Array:
        """Return the outputs of the head [N, outputs] for values [N, d]."""
        return outputs_of(x, self.scaling, self.features, self.weights)

    def probabilities(self, outputs: Array) -> Array:
        """Return probabilities of the classes [N, K] for outputs [N, outputs]."""
        if self.head.loss == "binary":
            outputs = np.concatenate([np.zeros_like(outputs), outputs], axis=1)
        powers = np.exp(outputs - outputs.max(axis=1, keepdims=True, initial=-np.inf))
        return np.asarray(powers / powers.sum(axis=1, keepdims=True))

    def numbers(self, outputs: Array) -> Array:
        """Return predicted numbers [N] for outputs [N, 1]."""
        return self.head.offset + self.head.unit * outputs[:, 0]


def fit(
    x: Array,
    y: NDArray[Any],
    problem: Problem,
    budget: Budget,
    *,
    recipe: Recipe | None = None,
    seed: int | None = None,
    ledger: str | os.PathLike[str] | None = None,
    watch: Watch | None = None,
) -> Fitted:
    """Fit a linear head on random waves of the rows, and pay for all of it.

    Args:
        x: values [N, d], NaN where missing; infinities are cut to the range.
        y: class numbers [N], or finite numbers [N].
        problem: what is predicted, and what is public of it.
        budget: ε, δ; of it a part for a search of settings, if it says so.
        recipe: how; None: `recipe_for` this many rows.
        seed: makes the fit repeatable, and NOT private.
        ledger: file of the ledger.
        watch: told of each step.

    Raises:
        DataError: no rows, or shapes that do not fit.
        BudgetError: a budget that cannot be met.
    """
    if x.ndim == 2 and not x.shape[1]:
        raise DataError("there is no column to learn from: give at least one beside the target")
    if x.ndim != 2 or len(x) != len(y) or 0 in x.shape:
        raise DataError(
            f"rows have shape {x.shape} and targets {y.shape}: both need the same number of rows, at least one"
        )
    if seed is not None:
        warnings.warn("a fixed seed makes the noise predictable: this fit is NOT private", SeededWarning, 2)
    recipe = recipe or recipe_for(len(x))
    account = Account.opened(budget, len(x), ledger, seed)
    try:
        fitted = _fitted(x, y, problem, recipe, account, watch)
        return replace(fitted, epsilon=account.engine.get_epsilon(budget.delta), spent=tuple(account.spent))
    finally:
        account.engine.close()


def _fitted(
    x: Array, y: NDArray[Any], problem: Problem, recipe: Recipe, account: Account, watch: Watch | None
) -> Fitted:
    """Return what was fitted, its ε left open."""
    units, target_units, left = _units(account, x, y, problem, recipe)
    target = Classes(y, problem.classes) if problem.classes else Numbers(y, target_units)
    moments = account.release("means and scales of columns and target", recipe.moments)
    noise = account.noise(recipe.moments)
    scaling, means, std = released_moments(
        x, target.moments, units, problem.indicators or Indicators.none(x.shape[1]), recipe.floor, moments, noise
    )
    recipe = recipe.settled(len(x), scaling.width)
    head = target.head(means, std, recipe.constant)
    left -= recipe.moments
    kept = None
    if account.budget.search and pays(len(x), account.alone):
        kept, (features, weights) = _searched(x, y, problem, recipe, account, left, scaling, head, watch)
    else:
        if account.budget.search:
            warnings.warn(NO_SEARCH, UserWarning, 3)
        features = Features.of(scaling.width, recipe)
        sigma = account.left(recipe.steps, left)
        weights = train_head(account.engine, x, head, scaling, features, recipe, sigma, account.seed, watch)
    head = replace(head, targets=np.empty(0))
    return Fitted(scaling, features, weights, head, account.budget, 0.0, (), recipe, account.seed is None, kept)


def _searched(
    x: Array,
    y: NDArray[Any],
    problem: Problem,
    recipe: Recipe,
    account: Account,
    left: float,
    scaling: Scaling,
    head: Head,
    watch: Watch | None,
) -> tuple[str, Model]:
    """Return what a search has kept, and its features and weights; steps on samples leave nothing for scores."""
    scores, models = 0.0 if recipe.batch else SCORES * left, []
    for number, option in enumerate((recipe, richer(recipe))):
        features = Features.of(scaling.width, option)
        sigma = account.left(option.steps, (left - scores) / 2, 2 - number, f"head, {CHOICES[number]}")
        seed = None if account.seed is None else account.seed + 1000 * number
        told = _told(watch, number)
        weights = train_head(account.engine, x, head, scaling, features, option, sigma, seed, told)
        models.append((features, weights))

    def outputs(model: Model) -> Array:
        return outputs_of(x, scaling, *model)

    return chosen(models, outputs, y, head, problem, account, scores)


def _told(watch: Watch | None, number: int) -> Watch | None:
    """Return what is told of the steps of one of two heads: how many, but no weights of a model."""
    if watch is None:
        return None
    return lambda done, planned, _: watch(number * planned + done, 2 * planned, None)


def _units(
    account: Account, x: Array, y: NDArray[Any], problem: Problem, recipe: Recipe
) -> tuple[Units, Units, float]:
    """Return the units of columns and target, by public or released ranges, and the share that is left."""
    low, high = problem.ends(x.shape[1])
    ends = np.array([problem.target_range or (np.nan, np.nan)]).T
    unknown = np.flatnonzero(np.isnan(low) | np.isnan(high))
    target = not problem.classes and problem.target_range is None
    if not len(unknown) and not target:
        return Units(low, high), Units(*ends), 1.0

    def values(some: slice) -> Array:
        found = x[some][:, unknown]
        release(x)
        return np.column_stack([found, y[some]]) if target else found

    paid = account.release(f"ranges of {len(unknown) + target} columns", recipe.ranges)
    lows, highs = released_ranges(values, len(x), paid, account.noise(recipe.ranges))
    low[unknown], high[unknown] = lows[: len(unknown)], highs[: len(unknown)]
    if target:
        ends = np.array([[lows[-1]], [highs[-1]]])
    return Units(low, high), Units(*ends), 1.0 - recipe.ranges
