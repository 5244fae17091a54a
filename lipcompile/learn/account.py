"""The budget of a fit, and its costs: a budget, the engine whose ledger counts, a list of purposes."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any

import torch
from lipcompile_privacy.accounting import Accountant, Selection, calibrate_noise_multiplier, gaussian_noise
from lipcompile_privacy.errors import BudgetError
from lipcompile_torch import PrivacyEngine
from lipcompile_torch.train.engine import SeededWarning
from lipcompile_torch.train.ledger import Ledger
from lipcompile_torch.train.sums import release_sum

from lipcompile.learn.features import Array

_LEAST = 10.0  # times the noise of the whole budget: with more, a hundredth of it is left
_ROOM = 1.0005  # for the accountant, which rounds losses up: the ledger has the last word


@dataclass(frozen=True, slots=True)
class Budget:
    """The privacy budget of a fit, under add/remove of one row.

    Args:
        epsilon, delta: of search and fits together.
        fits: how many fits of the same rows the budget pays for, this one among them.
        search: whether settings are searched.

    Raises:
        BudgetError: the numbers make no budget.
    """

    epsilon: float
    delta: float
    fits: int = 1
    search: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.fits, Integral) or self.fits < 1:
            raise BudgetError(f"fits = {self.fits}: it must be a whole number of at least 1")


def default_delta(rows: int) -> float:
    """Return δ where none was asked for: 1e-5, or a tenth of one over the number of rows if that is less."""
    return min(1e-5, 0.1 / rows)


@dataclass(frozen=True, slots=True)
class Spent:
    """The charges for one purpose: `steps` uses of a Gaussian mechanism with this noise multiplier."""

    purpose: str
    steps: int
    sampling_rate: float
    noise_multiplier: float


@dataclass
class Account:
    """The engine of a fit, and what was spent on what.

    Args:
        budget: that was given.
        alone: σ of all of the fit, as one Gaussian mechanism over all rows.
        rows: N.
        engine: whose ledger counts.
        seed: makes the fit repeatable, and NOT private.
        spent: on what.
    """

    budget: Budget
    alone: float
    rows: int
    engine: PrivacyEngine
    seed: int | None = None
    spent: list[Spent] = field(default_factory=list)

    @classmethod
    def opened(cls, budget: Budget, rows: int, ledger: str | os.PathLike[str] | None, seed: int | None) -> Account:
        """Return the account of a budget.

        The steps in the ledger count against the budget. With nothing before it a fit is Gaussian
        mechanisms alone, which compose exactly; else the accountant is asked, of a `Selection` the one of Rényi
        divergences, which has the theorem. Of k fits each takes a k-th of the whole, or what is left, if that is
        less.

        Raises:
            BudgetError: nothing to speak of is left.
            LedgerError: the ledger is damaged, in use, or belongs to other data.
        """
        whole = float(gaussian_noise("analytic", budget.epsilon, budget.delta))  # before a file is made
        engine = PrivacyEngine("pld", ledger)
        try:
            opened = engine.open_ledger(rows)
            if any(isinstance(release, Selection) for release, _ in opened.record.runs):
                engine.accountant = "rdp"
            left = _left(budget, whole, opened, engine.accountant)
        except BaseException:
            engine.close()
            raise
        return cls(budget, max(left, whole * math.sqrt(budget.fits)) * _ROOM, rows, engine, seed)

    def noise(self, share: float) -> float:
        """Return σ of a Gaussian mechanism that takes a share of the fit, counted in 1/σ²."""
        return self.alone / math.sqrt(share)

    def release(self, purpose: str, share: float) -> Callable[[Array, float], Array]:
        """Return what releases a sum over all rows for a purpose, and takes a share of the fit."""
        noise = self.noise(share)

        def released(total: Array, norm: float) -> Array:
            seed = None if self.seed is None else 2 * self.seed + 1_000_001 + len(self.spent)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", SeededWarning)  # `fit` has warned
                noisy = release_sum(self.engine, torch.from_numpy(total), norm, noise, self.rows, seed)
            self.spent.append(Spent(purpose, 1, 1.0, noise))
            return noisy.numpy()

        return released

    def left(self, steps: int, share: float, heads: int = 1, purpose: str = "head") -> Callable[[Any], float]:
        """Return what gives σ of so many steps of a head, for its loader: for this share of the fit.

        Of samples of the rows the accountant is asked what the ledger has left, for so many heads alike.
        """

        def sigma(loader: Any) -> float:
            rate = loader.batch_size / self.rows
            if rate == 1.0:
                noise = self.noise(share / steps)
            elif self.budget.fits > 1:
                raise BudgetError("fits on samples of the rows cannot share a budget: leave fits at 1")
            else:
                noise = self.engine.calibrate(
                    data_loader=loader,
                    target_epsilon=self.budget.epsilon,
                    target_delta=self.budget.delta,
                    steps=heads * steps,
                )
            self.spent.append(Spent(purpose, steps, rate, noise))
            return noise

        return sigma


def _left(budget: Budget, whole: float, ledger: Ledger, accountant: Accountant) -> float:
    """Return σ of what the budget leaves, as one Gaussian mechanism; raises BudgetError if it is nearly none."""
    ledger.delta = budget.delta
    past = ledger.record.runs
    if not past:
        return whole
    left = calibrate_noise_multiplier(budget.epsilon, budget.delta, 1.0, 1, accountant=accountant, past=past)
    if left > _LEAST * whole:
        raise BudgetError(
            f"epsilon = {budget.epsilon:g} is spent: the runs in the ledger used nearly all of it; give "
            "a larger epsilon, or another ledger for other rows"
        )
    return left
