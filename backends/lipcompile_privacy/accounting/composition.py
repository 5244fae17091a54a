"""ε of composed releases, by two accountants; what neither has a theorem for is refused."""

from __future__ import annotations

import contextlib
import logging
import math
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from ..errors import BudgetError
from .allocation import MISSING, available
from .pld import check_resolution, pld_epsilon
from .rdp import rdp_epsilon
from .releases import (
    Accountant,
    Mechanism,
    NeighbouringRelation,
    RandomAllocation,
    Release,
    Run,
    check_accountant,
    check_delta,
)

_NO_NOISE = 1e-100  # squares of less vanish


def epsilon(
    runs: Iterable[Run],
    delta: float,
    relation: NeighbouringRelation = NeighbouringRelation.ADD_REMOVE,
    accountant: Accountant = "pld",
) -> float:
    """Return ε such that the composition of `runs` is (ε, δ)-differentially private.

    Formal guarantees: an upper bound of the true ε, by Rényi divergence (Mironov et al. 2019; without replacement
    Wang et al. 2019, Theorem 27) or by a privacy loss distribution rounded pessimistically (Doroshenko et al.
    2022), for adaptively chosen releases of these parameters. The order of runs does not matter. `inf` if some
    step has no noise to speak of, or if δ is below what the accountant resolves.

    Raises:
        BudgetError: δ outside (0, 1), a negative count, or what `check_supported` refuses.
    """
    check_delta(delta)
    merged = merge(runs)
    check_supported(merged, delta, relation, accountant)
    if not merged:
        return 0.0
    if any(release.noise_multiplier < _NO_NOISE for release in merged):
        return math.inf
    with _quiet() as notes:
        if accountant == "rdp":
            return rdp_epsilon(merged, delta, relation, notes)
        return pld_epsilon(merged, delta, relation, notes)


def check_supported(
    runs: Mapping[Release, int], delta: float, relation: NeighbouringRelation, accountant: str
) -> None:
    """Refuse, with `BudgetError`, what the accountant has no theorem or no precision for. Computes nothing."""
    check_accountant(accountant)
    for release in runs:
        if reason := _refusal(release, relation, accountant):
            raise BudgetError(reason)
    if accountant == "pld":
        check_resolution(runs, delta, relation)


def _refusal(release: Release, relation: NeighbouringRelation, accountant: str) -> str | None:
    replaced = relation is NeighbouringRelation.REPLACE_ONE
    if isinstance(release, Mechanism) and release.sampling_rate < 1 and replaced and accountant == "rdp":
        return "the rdp accountant has no theorem for Poisson sampling under replace_one: use accountant='pld'"
    if isinstance(release, RandomAllocation) and not replaced and accountant == "pld" and not available():
        return MISSING
    return None


def merge(runs: Iterable[Run]) -> Counter[Release]:
    """Add up the counts of equal releases: composition does not depend on the order.

    Raises:
        BudgetError: a negative count.
    """
    merged: Counter[Release] = Counter()
    for release, count in runs:
        if count < 0:
            raise BudgetError(f"a run of {count} steps: the number of steps cannot be negative")
        if count:
            merged[release] += count
    return merged


@contextlib.contextmanager
def _quiet() -> Iterator[list[str]]:
    """Collect dp-accounting's absl warnings instead of printing them; everything is restored on leaving."""
    import dp_accounting.rdp  # noqa: F401  (creates absl's logger, which must not be created by us)

    notes: list[str] = []

    def collect(record: logging.LogRecord) -> bool:
        notes.append(record.getMessage())
        return False

    logger = logging.getLogger("absl")
    logger.addFilter(collect)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # exp overflows in orders that lose
            yield notes
    finally:
        logger.removeFilter(collect)
