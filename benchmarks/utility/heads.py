"""The library's model of a table with settings that are chosen on validation parts, for the searched tables."""

from __future__ import annotations

import time
import warnings

import numpy as np
from lipcompile_torch.train.engine import SeededWarning

from benchmarks.utility.parts import Parts
from benchmarks.utility.sets import Array
from benchmarks.utility.study import LogUniform, Score, Settings, Space
from benchmarks.utility.training import Budget
from lipcompile.learn import account
from lipcompile.learn.fitting import fit as fit_table
from lipcompile.learn.recipe import recipe_for
from lipcompile.learn.targets import Problem

# One space for all sets: changes of `lipcompile.learn.recipe.Recipe`.
SPACE: Space = {
    "moments": (0.05, 0.15),
    "floor": (0.03, 0.1),
    "kind": ("plain", "waves", "waves"),
    "frequency": LogUniform(0.15, 1.5),
    "width": (64, 256),
    "loss_clip": (1.0, 0.3, 0.1),
    "agitation": LogUniform(0.015, 0.15),
}


def fit(parts: Parts, settings: Settings, budget: Budget, seed: int, *, audit: bool) -> tuple[Array, Score]:
    """Train on the one part; return outputs [M] or [M, K] on the other, and ε and seconds.

    Args:
        audit: ask the ledger what was spent.
    """
    began = time.process_time()
    columns = parts.x.shape[1]
    problem = Problem(parts.classes, np.full(columns, -1.0), np.ones(columns))
    recipe = recipe_for(len(parts.x), **settings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SeededWarning)
        whole = account.Budget(budget.epsilon, budget.delta)
        fitted = fit_table(parts.x, parts.y, problem, whole, recipe=recipe, seed=seed)
    output = fitted.outputs(parts.x_seen)
    spent = fitted.epsilon if audit else None
    return output[:, 0] if parts.classes == 2 else output, Score(0.0, spent, time.process_time() - began)
