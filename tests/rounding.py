"""What rounds outward is needed: each term alone, at inputs where bounds without any are too small.

Terms have room to spare, so that one often covers for another that is missing. They are switched off, and on again
one at a time; then a term that is left out, or points inward, leaves bounds below the truth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import mpmath
import pytest

Case = TypeVar("Case")
Place = tuple[Any, str]
"""A module, and the name in it of a function or a constant."""
Groups = Mapping[str, Mapping[Place, Any]]

DIGITS = mpmath.mp.clone()
DIGITS.dps = 60


def each_is_needed(
    off: Mapping[Place, Any],
    on: Groups,
    bound: Callable[[Case], float],
    exact: Callable[[Case], Any],
    cases: Iterable[Case],
) -> None:
    """Check that with each group of terms alone no bound is below the truth, where it is without any.

    Args:
        off: what to put in the place of each term so that it does nothing.
        on: by name, what to put there so that a group of them acts: all others do nothing.
        exact: the truth, in as many digits as it takes.
    """
    known = [(case, exact(case)) for case in cases]
    with pytest.MonkeyPatch.context() as patch:
        for (module, name), value in off.items():
            patch.setattr(module, name, value)
        low = [(case, truth) for case, truth in known if bound(case) < truth]
        assert low, "rounding never has the bad sign here: this tests nothing"
        for group, values in on.items():
            with pytest.MonkeyPatch.context() as alone:
                for (module, name), value in values.items():
                    alone.setattr(module, name, value)
                for case, truth in low:
                    assert bound(case) >= truth, (group, case)


def length(entries: Any) -> Any:
    """Return the Euclidean norm of the numbers that a tensor or an array holds, to 60 digits."""
    ratios = [float(x).as_integer_ratio() for x in entries.reshape(-1).tolist()]
    largest = max(denominator for _, denominator in ratios)
    square = sum((numerator * (largest // denominator)) ** 2 for numerator, denominator in ratios)
    return DIGITS.sqrt(square) / largest


def only(function: Callable[[int], float], *kept: int) -> Callable[[int], float]:
    """Return γ for these numbers of terms, and 0 for all others."""
    return lambda terms: function(terms) if terms in kept else 0.0


def nearly_rank_one(vector: Sequence[float]) -> tuple[list[list[float]], Any]:
    """Return vvᵀ, each entry rounded, and its largest eigenvalue, or less: what a few steps towards it give, since
    all others are far below.
    """
    rows = [[a * b for b in vector] for a in vector]
    exact = DIGITS.matrix(rows)
    towards = DIGITS.matrix(list(vector))
    for _ in range(4):
        towards = exact * towards
        towards /= DIGITS.norm(towards)
    return rows, (towards.T * exact * towards)[0]
