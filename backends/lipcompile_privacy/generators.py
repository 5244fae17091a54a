"""Generators of random bits that noise comes from, by the names that ledgers give them. Needs no torch."""

from __future__ import annotations

import warnings
from collections.abc import Iterable

AES = "AES-128-CTR"
CHACHA = "ChaCha20"
SFC = "SFC64"
PHILOX = "Philox of torch"

UNKNOWN = "unknown"
"""In place of a name: that of a ledger that was written before they were recorded."""

CRYPTOGRAPHIC = frozenset({AES, CHACHA})
"""Nobody who sees some of the output of one of these is known to be able to compute any of the rest."""


def is_cryptographic(name: str) -> bool | None:
    """Whether noise of a generator is as hard to predict as a cipher to break; None if it is unknown."""
    return None if name == UNKNOWN else name in CRYPTOGRAPHIC


class GeneratorWarning(UserWarning):
    """Noise comes from a generator that is not cryptographic."""


def warn_of(names: Iterable[str], stacklevel: int) -> None:
    """Warn if a generator among these is not cryptographic; stacklevel: see `warnings.warn`."""
    weak = [name for name in names if is_cryptographic(name) is False]
    if weak:
        warnings.warn(
            f"noise comes from {', '.join(weak)}, which is not cryptographic: an attacker who sees part "
            "of its output may compute the rest; use make_private(..., secure=True) to draw noise from "
            "a cipher",
            GeneratorWarning,
            stacklevel + 1,
        )
