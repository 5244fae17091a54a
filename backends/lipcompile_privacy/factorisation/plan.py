"""From what a `train` block says of correlated noise to a strategy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import FactorisationError
from .optimise import optimal_banded, optimal_blt
from .participation import Cyclic, check_positive
from .strategies import Strategy


def planned_strategy(correlation: Mapping[str, Any], epochs: int, steps_per_epoch: int) -> Strategy:
    """Return the strategy of least mean squared error for a training of so many epochs and steps.

    =========================================  ====================================================================
    {"kind": "correlated", "bands": b}         `BandedToeplitz` under `Cyclic(b)`: cyclic Poisson sampling
    {"kind": "blt", "buffers": m or None}      `Blt` under `MinSeparation(steps_per_epoch, epochs)`: a fixed order
    =========================================  ====================================================================

    Raises:
        FactorisationError: another kind, or more bands than steps in an epoch (a sampling rate above 1).
    """
    check_positive("epochs", epochs)
    check_positive("steps per epoch", steps_per_epoch)
    steps = epochs * steps_per_epoch
    if correlation.get("kind") == "correlated":
        bands: Any = correlation.get("bands")
        check_positive("bands", bands)
        if bands > steps_per_epoch:
            raise FactorisationError(
                f"{bands} bands need {bands} batches of different examples, but an epoch has {steps_per_epoch}: "
                "use fewer bands, or smaller batches"
            )
        return optimal_banded(steps, bands, Cyclic(bands))
    if correlation.get("kind") == "blt":
        return optimal_blt(steps, steps_per_epoch, epochs, correlation.get("buffers"))
    raise FactorisationError(f"{dict(correlation)!r} is no correlated noise: its kind must be correlated or blt")
