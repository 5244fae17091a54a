"""What is promised: ε at δ, under a neighbouring relation; and what cannot be."""

from __future__ import annotations

import math
from enum import Enum
from typing import Any, Literal, get_args

from ..errors import BudgetError

Accountant = Literal["rdp", "pld"]


class NeighbouringRelation(Enum):
    """When two data sets count as neighbours, that is, what one person can change."""

    ADD_REMOVE = "add_remove"
    REPLACE_ONE = "replace_one"

    @property
    def moves(self) -> int:
        """By how many times the per-example bound K one person can move a sum over the data set."""
        return 2 if self is NeighbouringRelation.REPLACE_ONE else 1

    @property
    def theirs(self) -> Any:
        """The relation as dp-accounting names it."""
        from dp_accounting import NeighboringRelation

        replaced = self is NeighbouringRelation.REPLACE_ONE
        return NeighboringRelation.REPLACE_ONE if replaced else NeighboringRelation.ADD_OR_REMOVE_ONE


def check_accountant(accountant: str) -> None:
    """Raise BudgetError if there is no such accountant."""
    if accountant not in get_args(Accountant):
        raise BudgetError(f"unknown accountant {accountant!r}: use 'pld' or 'rdp'")


def check_delta(delta: float) -> None:
    """Raise BudgetError unless 0 < δ < 1."""
    if not 0 < delta < 1:
        raise BudgetError(
            f"delta = {delta:g} is not strictly between 0 and 1: Gaussian noise cannot give delta = 0; "
            "a usual choice is below 1 / number of examples"
        )


def check_target(target_epsilon: float, target_delta: float) -> None:
    """Raise BudgetError unless ε is a positive number and 0 < δ < 1."""
    if not 0 < target_epsilon < math.inf:
        raise BudgetError(
            f"epsilon = {target_epsilon:g} is not a positive number: no finite noise gives epsilon <= 0; "
            "usual budgets lie between 0.1 and 10"
        )
    check_delta(target_delta)
