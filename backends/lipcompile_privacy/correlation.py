"""Which strategy correlates the noise of a run, and whether its sampling is what the strategy was proved for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .accounting import Sampling
from .errors import BudgetError, FactorisationError
from .factorisation import Cyclic, Strategy, planned_strategy, strategy_from

Correlation = Strategy | Mapping[str, Any]
"""A strategy, the dict of one, or what kind is wanted: {"kind": "correlated", "bands": 16}, {"kind": "blt"}."""


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
            f"the noise is correlated over {strategy.steps} steps, and {steps} are planned: compile the model "
            "again with the epochs and the batch size that it is trained with"
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
                f"{wanted} sampling serves correlated noise alone: use poisson or balls_in_bins, which cost less"
            )
        return wanted or "poisson", 1
    cyclic = isinstance(strategy.participation, Cyclic)
    needed: Sampling = "cyclic_poisson" if cyclic else "fixed_order"
    if wanted not in (None, needed):
        raise BudgetError(
            f"this noise is correlated from step to step, and proved private for {needed} sampling only, not for "
            f"{wanted}, under which an example may come again too soon: leave sampling out"
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
