"""Planning of a run from a budget: its steps and noise, the rest of them after a resumption, the strategy that
correlates its noise, and whether that strategy is proved for its sampling.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from .accounting import Drawing, NeighbouringRelation, Sampling, calibrate_noise_multiplier
from .accounting.composition import Budget as Budget
from .errors import BudgetError, FactorisationError, check_number
from .factorisation import Cyclic, Strategy, optimal_banded, planned_strategy, strategy_from
from .ledger import LedgerRecord

Correlation = Strategy | Mapping[str, Any]
"""A strategy, the dict of one, or its kind: {"kind": "correlated", "bands": 16}, {"kind": "blt"}. Without `bands`,
a budget chooses them, see `with_bands`.
"""


def warn_of_delta(delta: float, examples: int, stacklevel: int) -> None:
    """Warn of a δ that would be met by publishing one of so many examples, drawn at random."""
    check_number("delta", delta)
    if delta * examples >= 1:
        warnings.warn(
            f"delta = {delta:g} is at least 1 / {examples} examples: such a guarantee permits publishing one "
            "example in full",
            UserWarning,
            stacklevel + 1,
        )


def chosen_strategy(correlation: Correlation, steps: int | None, steps_per_epoch: int) -> Strategy:
    """Return the strategy for a run, optimised for its length unless it is one already.

    Raises:
        BudgetError: the number of steps is unknown or more than the strategy's, or no theorem covers what is
            wanted.
    """
    if steps is None:
        raise BudgetError("correlated noise is planned for a number of steps: give max_steps, or a target epsilon")
    try:
        strategy = _read(correlation, -(-steps // steps_per_epoch), steps_per_epoch)
    except FactorisationError as error:
        raise BudgetError(str(error)) from error
    if strategy.steps < steps:
        raise BudgetError(
            f"the noise is correlated over {strategy.steps} steps, but {steps} are planned: compile the "
            "model again with the epochs and the batch size that it is trained with"
        )
    return strategy


def _read(correlation: Correlation, epochs: int, steps_per_epoch: int) -> Strategy:
    if isinstance(correlation, Strategy):
        return correlation
    if "participation" in correlation:
        return strategy_from(correlation)
    return planned_strategy(correlation, epochs, steps_per_epoch)


def sampling_for(strategy: Strategy | None, wanted: Sampling | None) -> tuple[Sampling, int]:
    """Return the sampling of a run, and the number of groups that take turns in it.

    Raises:
        BudgetError: a sampling that was asked for and under which such noise has no analysis.
    """
    if strategy is None:
        if wanted in ("cyclic_poisson", "fixed_order"):
            raise BudgetError(
                f"{wanted} sampling is only for correlated noise: use poisson or balls_in_bins, which cost less"
            )
        return wanted or "poisson", 1
    cyclic = isinstance(strategy.participation, Cyclic)
    needed: Sampling = "cyclic_poisson" if cyclic else "fixed_order"
    if wanted not in (None, needed):
        raise BudgetError(
            f"this noise is correlated from step to step, and proved private for {needed} sampling only: "
            f"under {wanted} sampling an example may take part again too soon; leave sampling out"
        )
    return needed, strategy.participation.period if isinstance(strategy.participation, Cyclic) else 1


def check_participation(strategy: Strategy, steps_per_epoch: int) -> None:
    """Refuse, with BudgetError, epochs in which an example takes part more often than was proved."""
    if isinstance(strategy.participation, Cyclic):
        return  # the groups are the strategy's
    apart, times = strategy.participation.separation, strategy.participation.participations
    epochs = -(-strategy.steps // steps_per_epoch)
    if steps_per_epoch < apart or epochs > times:
        raise BudgetError(
            f"the noise is proved private for examples that take part {times} times, {apart} steps apart; here it "
            f"would be {epochs} times, {steps_per_epoch} apart: compile the model again with the epochs "
            "and the batch size that it is trained with"
        )


def with_bands(correlation: Mapping[str, Any], drawing: Drawing, steps: int, budget: Budget) -> Mapping[str, Any]:
    """Return a correlation with its number of bands, which is chosen if it has none and is "correlated".

    More bands cancel more noise, and leave less amplification by sampling: b bands draw at b times the rate. Bands
    are doubled from 1 as long as that lowers the noise in the sum of the gradients so far, σ_b·√(mean error of b),
    with σ_b calibrated by the RDP accountant. No data are looked at, and any choice is private. Under replace-one,
    where that accountant has no theorem, the choice is that of add/remove: a σ some two times as large is needed
    for any number of bands.

    Args:
        correlation: see `Correlation`.
        drawing: Poisson sampling of the run.
        steps: of the run.
        budget: (ε, δ) of the run.

    Raises:
        BudgetError: a budget that cannot be met.
    """
    if correlation.get("kind") != "correlated" or correlation.keys() & {"bands", "participation"}:
        return correlation
    like = replace(budget, accountant="rdp", relation=NeighbouringRelation.ADD_REMOVE)
    return {**correlation, "bands": _least_error(drawing, steps, like)}


@lru_cache(16)
def _least_error(drawing: Drawing, steps: int, budget: Budget) -> int:
    """Return the number of bands; a plan asks several times, and each search takes seconds."""

    def error(bands: int) -> float:
        strategy = optimal_banded(steps, bands, Cyclic(bands))
        way = Course(replace(drawing, sampling="cyclic_poisson", groups=bands), strategy, steps)
        return way.calibrated(budget) * math.sqrt(strategy.squared_error("mean"))

    bands, least = 1, error(1)
    while 2 * bands <= min(steps, 1 / drawing.sampling_rate) and (doubled := error(2 * bands)) < least:
        bands, least = 2 * bands, doubled
    return bands


class ShortenedWarning(UserWarning):
    """A resumed run ends before its last epoch: what was broken off had been charged whole."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps and the noise of a run that a budget pays for.

    Args:
        total_steps: steps in all, those in the ledger included. Fewer than `intended_steps` if rounds were broken
            off: a round is charged whole, and the budget was made for that many rounds.
        steps_done: in the ledger already.
        steps_per_epoch: round(N / b).
        noise_multiplier: σ.
        intended_steps: steps of all epochs.
    """

    total_steps: int
    steps_done: int
    steps_per_epoch: int
    noise_multiplier: float
    intended_steps: int

    @property
    def steps_left(self) -> int:
        """How many steps are still to be taken."""
        return self.total_steps - self.steps_done


@dataclass(frozen=True, slots=True)
class Course:
    """How a run goes, whatever its noise: what is charged for how many steps.

    Args:
        drawing: how batches are drawn.
        strategy: what correlates the noise, planned for all epochs.
        steps: of all epochs.
    """

    drawing: Drawing
    strategy: Strategy | None
    steps: int

    def calibrated(self, budget: Budget) -> float:
        """Return the σ at which the whole run keeps to the budget; raises BudgetError."""
        charges = self.drawing.charges(self.steps)
        return calibrate_noise_multiplier(
            budget.epsilon, budget.delta, self.drawing.release, charges, budget.relation, budget.accountant
        )

    def plan(self, noise_multiplier: float, record: LedgerRecord) -> Plan:
        """Return what is left of the run once the ledger's charges are taken off those that it was made for."""
        done, drawing = record.total_steps, self.drawing
        charges = max(0, drawing.charges(self.steps) - record.charges.total())
        fit = min(1, charges) * self.steps if drawing.round_steps is None else charges * drawing.round_steps
        left = min(max(0, self.steps - done), fit)
        return Plan(done + left, done, drawing.steps_per_epoch, noise_multiplier, self.steps)

    def check_resumed(self, plan: Plan, record: LedgerRecord, budget: Budget) -> None:
        """Look at what is left of a run that is resumed; warn with `ShortenedWarning` if it is not all.

        Raises:
            BudgetError: it would exceed the budget, since the ledger holds the steps of other runs.
        """
        left = (self.drawing.release(plan.noise_multiplier), self.drawing.charges(plan.steps_left))
        total = budget.spent(*record.runs, left)
        if plan.steps_left and total > budget.epsilon:
            raise BudgetError(
                f"continuing would cost epsilon = {total:.4g}, more than {budget.epsilon:g}: the ledger "
                "holds steps of other runs"
            )
        if plan.total_steps < plan.intended_steps:
            warnings.warn(
                f"{plan.steps_left} steps are left, {plan.total_steps} in total instead of "
                f"{plan.intended_steps}: an interrupted epoch (with correlated noise: an interrupted "
                "cycle of all groups, or run) is charged in full",
                ShortenedWarning,
                3,
            )


def course(
    size: int,
    batch_size: int,
    epochs: int,
    relation: NeighbouringRelation,
    sampling: Sampling | None = None,
    correlation: Mapping[str, Any] | None = None,
    budget: Budget | None = None,
) -> Course:
    """Return the course of a run.

    Args:
        size: N, number of examples.
        batch_size: b, expected.
        epochs: each of round(N / b) steps.
        relation: neighbouring relation of the guarantee.
        sampling: see `sampling`; None: Poisson, or what the correlation needs.
        correlation: what correlates the noise, see `Correlation`; None: nothing.
        budget: chooses the bands that the correlation leaves open, see `with_bands`.

    Raises:
        BudgetError: a combination for which there is no analysis.
    """
    poisson = Drawing.of("poisson", batch_size, size)
    per_epoch, steps = poisson.steps_per_epoch, epochs * poisson.steps_per_epoch
    if budget is not None and isinstance(correlation, Mapping):
        correlation = with_bands(correlation, poisson, steps, budget)
    strategy = None if correlation is None else chosen_strategy(correlation, steps, per_epoch)
    name, groups = sampling_for(strategy, sampling)
    drawing = Drawing.of(name, batch_size, size, groups)
    drawing.check(relation)
    return Course(drawing, strategy, steps)
