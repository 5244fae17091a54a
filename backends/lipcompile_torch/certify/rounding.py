"""Unit roundoffs, and outward steps that pay for operations that round: each number is defined here alone.

With u the unit roundoff of a type, an operation that rounds to nearest gives (a∘b)(1 + d), |d| ≤ u, unless it
under- or overflows (IEEE 754). Numbers that belong to one formula stand beside it, with its proof. Needs no torch.
"""

from __future__ import annotations

DOUBLE = 2.0**-53
"""u of float64."""

SINGLE = 2.0**-24
"""u of float32."""

BRAIN = 2.0**-8
"""u of bfloat16."""

UP = 1 + 2.0**-48
"""Covers 30 operations on positive doubles, and the product with it: (1 - u)³¹(1 + 32u) ≥ 1 + u - 992u² > 1."""

UP_MANY = 1 + 1e-12
"""Covers 9000 of them: it is 1 + 9008u as a double, and (1 - u)⁹⁰⁰¹(1 + 9008u) ≥ 1 + 7u - 9001·9008u² > 1."""


def gamma(terms: int) -> float:
    """Return γ_k of float64 with a factor of eight to spare, see :mod:`.norms`: complex arithmetic, blocking, tiny
    entries.
    """
    return 8 * (terms + 2) * DOUBLE


def gamma_single(terms: int) -> float:
    """Return γ_k of float32, with a factor of four to spare: sums in any order, of tensor cores that truncate."""
    return 4 * (terms + 2) * SINGLE
