"""Norms of sums and averages over windows, one axis at a time, bounded from above in exact arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from lipcompile.numbers.rounding import round_up
from lipcompile.ops.counting import Window

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]
    Floats = NDArray[np.float64]

# The most rows, and entries, of a matrix that is worked on as a whole.
_DENSE, _LARGEST = 512, 2**22


@dataclass(frozen=True, slots=True)
class Average:
    """One output of an axis: the sum of `entries`, of which there is at least one, over `divisor`."""

    entries: range
    divisor: int = 1


def sums(window: Window) -> tuple[Average, ...]:
    """Return the sum of each position of a window of zeros mode, its entries in the padding left out."""
    return tuple(Average(_within(taps, 0, window.size)) for taps in _positions(window))


def averages(window: Window, counted: tuple[int, int]) -> tuple[Average, ...]:
    """As `sums`, over the number of taps on the axis or on as much padding as is `counted` (before, after)."""
    low, high = counted
    return tuple(
        Average(_within(taps, 0, window.size), len(_within(taps, -low, window.size + high)))
        for taps in _positions(window)
    )


def adaptive(size: int, outputs: int) -> tuple[Average, ...]:
    """Return torch's adaptive averages: output i is the mean of the entries ⌊i·n/o⌋ <= j < ⌈(i+1)·n/o⌉."""
    bounds = [(i * size // outputs, -(-(i + 1) * size // outputs)) for i in range(outputs)]
    return tuple(Average(range(start, stop), stop - start) for start, stop in bounds)


def _positions(window: Window) -> list[range]:
    starts = [output * window.stride - window.padding[0] for output in range(window.outputs)]
    return [range(start, start + window.kernel * window.dilation, window.dilation) for start in starts]


def _within(taps: range, start: int, stop: int) -> range:
    """Return the taps from `start` to below `stop`."""
    first, end = (max(0, -((taps.start - bound) // taps.step)) for bound in (start, stop))
    return taps[first:end]


@lru_cache(maxsize=4096)
def averaging_gram(axis: tuple[Average, ...]) -> Fraction:
    """Return an upper bound of ‖A‖², A the matrix of an axis' averages: A = D⁻¹S, S of 0 and 1, D of the divisors.

    Collatz-Wielandt: for a non-negative matrix M and any z > 0, ρ(M) <= max_i (Mz)_i / z_i. M = D⁻²SSᵀ, similar to
    AAᵀ, and the quotients are exact; only the choice of z is approximate, which costs tightness, never truth.
    Rounded up to nine digits, to be readable, unless it is a short fraction.
    """
    import numpy as np  # here, because `check` starts faster without it

    outputs = np.repeat(np.arange(len(axis)), [len(average.entries) for average in axis])
    named = np.concatenate([np.array(average.entries) for average in axis])
    entries = np.unique(named, return_inverse=True)[1]  # entries that nothing reads would only take memory
    divisors = [average.divisor for average in axis]
    dense = len(axis) <= _DENSE and len(axis) * entries.max() <= _LARGEST
    choose = _above_perron if dense else _by_powers
    z = [max(int(weight), 1) for weight in choose(outputs, entries, np.array(divisors, dtype=np.float64))]
    totals = _twice(outputs, entries, np.array(z, dtype=object))
    pairs = zip(totals, z, divisors, strict=True)
    return _rounded_up(max(Fraction(total, weight * divisor**2) for total, weight, divisor in pairs))


def _twice(outputs: Integers, entries: Integers, z: NDArray[Any]) -> NDArray[Any]:
    """Return SSᵀz, in the arithmetic of z; S has a one at each of the places (outputs, entries)."""
    import numpy as np

    spread, gathered = np.zeros(entries.max() + 1, dtype=z.dtype), np.zeros(len(z), dtype=z.dtype)
    np.add.at(spread, entries, z[outputs])
    np.add.at(gathered, outputs, spread[entries])
    return gathered


def _above_perron(outputs: Integers, entries: Integers, divisors: Floats) -> Floats:
    """Return the z of (γ - M)z = D⁻¹1, for a γ just above ρ(M): then Mz <= γz everywhere."""
    import numpy as np

    matrix = np.zeros((len(divisors), entries.max() + 1))
    matrix[outputs, entries] = 1 / divisors[outputs]
    gram = matrix @ matrix.T
    shifted = np.linalg.eigvalsh(gram)[-1] * (1 + 2.0**-36) * np.eye(len(gram)) - gram
    found: Floats = np.abs(np.linalg.solve(shifted, np.ones(len(gram)))) / divisors
    found *= 2.0**80 / found.max()
    return found


def _by_powers(outputs: Integers, entries: Integers, divisors: Floats) -> Floats:
    """Return M⁶⁴1, for axes that are too long for dense matrices."""
    import numpy as np

    found: Floats = np.ones(len(divisors))
    for _ in range(64):
        found = np.divide(_twice(outputs, entries, found), divisors**2)
        found /= found.max()
    found *= 2.0**80
    return found


def _rounded_up(bound: Fraction) -> Fraction:
    return bound if bound.denominator < 10**6 else round_up(bound, 9)
