"""Exact draws of a discrete Gaussian so fine that it is a rounded continuous one: integers, no transcendentals.

Floating-point normals give away low bits (Mironov 2012; Jin et al. 2022): which doubles the sum of a gradient
and such a draw can take depends on the gradient. Here a draw is an integer J with P(J = j) proportional to
exp(-j²/2R²), R = 2^40, handed out as J/R. It is found by rejection below a staircase, in which every step is a
comparison of integers:

1. The cell i, 0 ≤ i < 1024, of width h = 2^-6 with probability proportional to exp(-(ih)²/2), by an alias table of
   integers (Vose 1991) whose probabilities are multiples of 2^-128.
2. A sign and, uniformly, one of the 2^34 grid points of the cell: ih + r with 0 ≤ r < h, or -(ih + r) with
   0 < r ≤ h.
3. Accepted with probability exp(-t), t = r·(ih + r/2): a comparison with uniform bits, of which more are taken
   as long as those at hand leave it open.

Formal guarantees, for uniform independent random words. Let Z be standard normal.

- A draw is within total variation 2^-84 of J = round(R·Z): rounding the weights of the cells costs 2^-117, the
  tail beyond |J|/R = 13.06 (where a weight is below 2^-129) being part of that; the discrete Gaussian and
  round(R·Z) differ by Σ|∫φ over a cell - φ at its middle|/2 ≤ ∫|φ''|/(48·R²) = 4φ(1)/(48·R²) < 2^-85.
- Draws are independent.

So for integers m the sum m + J is, but for 2^-84, round(m + R·Z): post-processing of the Gaussian mechanism.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import cache
from itertools import count as counting
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

GRID_BITS = 40
"""Draws are multiples of 2^-40."""

Words = Callable[[int], NDArray[np.uint64]]
"""Gives that many fresh uniform words of 64 bits, in an array that the caller may overwrite."""

_CELL_BITS = 6
_CELLS_LOG2 = 10
_OFFSET_BITS = GRID_BITS - _CELL_BITS
_TEST_BITS = 63 - _OFFSET_BITS  # of a word: one for the sign, then the offset, then the test
_TABLE_BITS = 128
_HIGH_BITS = 64 - _CELLS_LOG2  # of a threshold, whose other 64 are looked at if these are equal
_EXTRA_BITS = 128


def draw(count: int, words: Words) -> NDArray[np.float64]:
    """Return independent draws J/R, [count].

    Args:
        count: how many.
        words: where randomness comes from: 128 bits a draw and a little more.
    """
    draws, accepted = _propose(count, words)
    rejected = np.flatnonzero(~accepted)
    while rejected.size:
        again, accepted = _propose(rejected.size, words)
        draws[rejected] = again
        rejected = rejected[~accepted]
    return draws


def _propose(count: int, words: Words) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return points below the staircase and which of them are below the density as well, [count] each."""
    random = words(2 * count)
    cells = _cells(random[:count], words)
    word = random[count:]
    negative = word & np.uint64(1)
    offsets = ((word >> np.uint64(1)) & np.uint64((1 << _OFFSET_BITS) - 1)) + negative
    tests = word >> np.uint64(1 + _OFFSET_BITS)
    start = cells * 2.0**-_CELL_BITS
    offset = offsets.astype(np.int64) * 2.0**-GRID_BITS
    point = start + offset  # exact, as is start + point: at most 46 bits
    accepted = _accept(cells, offsets, offset * (start + point) / 2, tests)
    return np.where(negative == 1, -point, point), accepted


def _cells(word: NDArray[np.uint64], words: Words) -> NDArray[np.int64]:
    table = _table()
    column = (word >> np.uint64(_HIGH_BITS)).astype(np.int64)
    part = word & np.uint64((1 << _HIGH_BITS) - 1)
    high = table.high[column]
    own = part < high
    tied = np.flatnonzero(part == high)
    if tied.size:
        own[tied] = words(tied.size) < table.low[column[tied]]
    return np.where(own, column, table.other[column])


def _accept(
    cells: NDArray[np.int64], offsets: NDArray[np.uint64], t: NDArray[np.float64], tests: NDArray[np.uint64]
) -> NDArray[np.bool_]:
    """Return whether a uniform number, of which `tests` are the first bits, is below exp(-t).

    A first look compares with 1 - t ≤ exp(-t), a second with exp(-t) as the library computes it; both keep a
    whole unit of the last bit at hand, 2^-29, away from what they compare with, where the library errs by
    2^-50. What they leave open, one draw in 10^8, is decided exactly.
    """
    scale, uniform = float(1 << _TEST_BITS), tests.astype(np.float64)
    accepted = uniform + 2 <= scale * (1 - t)
    open_ = np.flatnonzero(~accepted)
    limit = scale * np.exp(-t[open_])
    accepted[open_] = uniform[open_] + 2 <= limit
    for index in open_[np.abs(uniform[open_] - limit) < 3]:
        offset = Fraction(int(offsets[index]), 1 << GRID_BITS)
        exponent = offset * (Fraction(int(cells[index]), 1 << _CELL_BITS) + offset / 2)
        accepted[index] = _below_exponential(int(tests[index]), exponent)
    return accepted


def _below_exponential(bits: int, t: Fraction) -> bool:
    """Whether a uniform number with these first bits is below exp(-t), 0 ≤ t ≤ 1; by 128 more bits."""
    digits = _TEST_BITS + _EXTRA_BITS
    uniform = Fraction((bits << _EXTRA_BITS) + secrets.randbits(_EXTRA_BITS), 1 << digits)
    upper = term = Fraction(1)
    for order in counting(1, 2):  # partial sums of the alternating series enclose exp(-t)
        lower = upper - term * t / order
        if uniform < lower:
            return True
        if uniform >= upper or upper - lower < Fraction(1, 1 << digits):
            return False
        term *= t * t / (order * (order + 1))
        upper = lower + term
    raise AssertionError  # pragma: no cover


class _Table(NamedTuple):
    """Column c stands for cell c if the 118 bits after the column's are below its threshold, else for another."""

    high: NDArray[np.uint64]
    low: NDArray[np.uint64]
    other: NDArray[np.int64]


@cache
def _table() -> _Table:
    thresholds, other = _alias(_weights())
    return _Table(
        np.array([threshold >> 64 for threshold in thresholds], np.uint64),
        np.array([threshold & (2**64 - 1) for threshold in thresholds], np.uint64),
        np.array(other, np.int64),
    )


def _weights() -> list[int]:
    """Return exp(-(ih)²/2) over their sum, for every cell i, as integers that add up to 2^128."""
    with localcontext(prec=60):
        heights = [(Decimal(-(i**2)) / (2 << 2 * _CELL_BITS)).exp() for i in range(1 << _CELLS_LOG2)]
        unit = Decimal(1 << _TABLE_BITS) / sum(heights)
        weights = [int((height * unit).to_integral_value()) for height in heights]
    weights[0] += (1 << _TABLE_BITS) - sum(weights)
    return weights


def _alias(weights: list[int]) -> tuple[list[int], list[int]]:
    """Return a threshold and another cell of each of 1024 equally likely columns, exactly (Vose 1991)."""
    full = 1 << (_TABLE_BITS - _CELLS_LOG2)
    left, other = list(weights), list(range(len(weights)))
    below = [cell for cell, weight in enumerate(left) if weight < full]
    above = [cell for cell, weight in enumerate(left) if weight >= full]
    thresholds = [full] * len(weights)
    while below:
        cell, donor = below.pop(), above[-1]
        thresholds[cell], other[cell] = left[cell], donor
        left[donor] -= full - left[cell]
        if left[donor] < full:
            below.append(above.pop())
    return thresholds, other
