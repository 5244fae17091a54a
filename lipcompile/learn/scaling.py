"""Scales of columns: ranges and moments of private rows, released with noise; and the map of a row that they make.

Both are sums over all rows of vectors whose norm is known, so each is one Gaussian mechanism of the ledger.

*Ranges.* A row says, for each column without a public range, in which interval its value lies: one of fixed
intervals, finer towards zero as floating-point numbers are. That is a vector of zeros with a one for each column,
of norm √c for c columns. A range is the hull of the intervals whose noisy counts stand out of the noise.

*Moments.* A row gives its scaled values, their squares, and an indicator of its class (or its scaled target and
the square of that), cut to a ball. An indicator is its own square, and given once. The columns that a model reads
follow from the released means: numbers, booleans, other indicators that stand out of the noise, and, of a table of
categories, the products of indicators.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lipcompile.learn.recipe import PRODUCTS
from lipcompile.tables.encode import Indicators, release

Array = NDArray[np.floating[Any]]
Release = Callable[[Array, float], Array]
"""Takes a sum [n] and the norm that one row adds at most; gives the sum with noise, paid for."""

Rows = Callable[[slice], Array]
"""Gives vectors [n, …] of some rows."""

ROWS = 8192
"""Rows at once, where something is computed for all rows."""
_ENTRIES = 2**23  # of all columns at once: of 65,536 buckets even a thousand rows take half a gigabyte

# Intervals reach from 2^-20 to 2^40, in either direction; values nearer to zero count as zero.
_OCTAVES = (-20, 40)
_MISTAKE = 1e-3  # probability that noise makes any interval stand out, and a range far too wide
_FINEST = 8  # intervals of an octave
_USUAL = 0.6  # of the longest row of numbers that can be, most rows have no more
_CLEARLY = 2.0  # standard deviations of the noise, of products
_MOST = 2000  # columns and products


def chunks(rows: int, most: int = ROWS) -> list[slice]:
    """Return slices that cover so many rows, of `most` rows each."""
    return [slice(start, min(start + most, rows)) for start in range(0, rows, most)]


def pieces(x: Array) -> Iterator[tuple[slice, Array]]:
    """Yield slices that cover the rows, and those rows; of a file no more than a piece stays in memory."""
    for some in chunks(len(x), max(1, min(ROWS, _ENTRIES // x.shape[1]))):
        yield some, x[some]
        release(x)


@dataclass(frozen=True, slots=True)
class Units:
    """A map of each column to [-1, 1] by its range; 0 stays 0 if the range holds it, else its nearest end does.

    Args:
        low, high: ends of the ranges, [d].
    """

    low: Array
    high: Array

    def __call__(self, x: Array) -> Array:
        """Return scaled values [N, d] of values [N, d], as precise as those; NaN, a missing value, stays NaN."""
        with np.errstate(over="ignore"):  # ends beyond single precision are infinite there, and cut nothing
            low, high, anchor, widest = (
                one.astype(x.dtype) for one in (self.low, self.high, self._anchor, self._widest)
            )
        return np.asarray((np.clip(x, low, high) - anchor) / widest)

    def inverse(self, units: Array) -> Array:
        """Return the values [N, d] of scaled values [N, d]."""
        return np.asarray(self._anchor + self._widest * units)

    def of(self, columns: NDArray[np.int64]) -> Units:
        """Return the map of some columns."""
        return Units(self.low[columns], self.high[columns])

    @property
    def _anchor(self) -> Array:
        return np.asarray(np.clip(0.0, self.low, self.high))

    @property
    def _widest(self) -> Array:
        widest = np.maximum(self.high - self._anchor, self._anchor - self.low)
        return np.where(widest > 0, widest, 1.0)


@dataclass(frozen=True, slots=True)
class Scaling:
    """From values to standardised values, by public numbers and by what was released.

    Args:
        units: by the ranges of the k columns that are kept.
        mean, scale: of those columns, scaled, and of p products of them, [k + p].
        kept: which of the d columns they are, [k].
        products: of which two of the k columns, [p, 2].
    """

    units: Units
    mean: Array
    scale: Array
    kept: NDArray[np.int64]
    products: NDArray[np.int64]

    @property
    def width(self) -> int:
        """k + p."""
        return len(self.mean)

    def __call__(self, x: Array) -> Array:
        """Return standardised values [N, k + p] of values [N, d], as precise as x; a missing value becomes 0."""
        units = self.units(x[:, self.kept])
        if len(self.products):
            first, second = self.products.T
            units = np.concatenate([units, units[:, first] * units[:, second]], axis=1)
        units -= self.mean.astype(x.dtype)
        units /= self.scale.astype(x.dtype)
        return np.nan_to_num(units, copy=False, nan=0.0)


def released_ranges(values: Rows, rows: int, release: Release, noise: float) -> tuple[Array, Array]:
    """Return ranges of columns, [c] and [c].

    Args:
        values: gives the values [n, c] of some rows, NaN where missing.
        rows: N.
        release: of a sum.
        noise: standard deviation, over the norm, of its noise.
    """
    columns = values(slice(0, 1)).shape[1]
    norm = math.nextafter(math.sqrt(columns), math.inf)  # the root may be rounded down
    # Octaves are cut as finely as lets an interval with a tenth of the rows stand out.
    edges = _edges(max(1, min(_FINEST, int(rows / (50 * noise * norm)))))
    # P(z > t) <= exp(-t²/2) for a normal z, of which there is one for each interval of each column.
    least = noise * norm * math.sqrt(2 * math.log(columns * len(edges) / _MISTAKE))
    counts = np.zeros((columns, len(edges) - 1))
    for some in chunks(rows):
        for row, column in zip(counts, values(some).T, strict=True):
            row += np.histogram(column[~np.isnan(column)].astype(np.float64), edges)[0]
    noisy = release(counts.ravel(), norm).reshape(counts.shape)
    ranges = [_hull(edges, found, least) for found in noisy]
    low, high = np.array(ranges).T
    return low, high


def _hull(edges: Array, counts: Array, least: float) -> tuple[float, float]:
    """Return the ends of what the intervals with counts above `least` cover; of the largest, if there is none."""
    kept = np.flatnonzero(counts > least)
    first, last = (kept[0], kept[-1]) if len(kept) else (counts.argmax(), counts.argmax())
    return _finite(edges[first], edges[first + 1]), _finite(edges[last + 1], edges[last])


def _edges(per_octave: int) -> Array:
    """Return the edges of all intervals, from -inf to inf."""
    first, last = _OCTAVES
    steps = np.arange(per_octave) / per_octave
    positive = np.concatenate([2.0**octave * (1 + steps) for octave in range(first, last)])
    positive = np.append(positive, 2.0**last)
    return np.concatenate([[-np.inf], -positive[::-1], positive, [np.inf]])


def _finite(edge: float, other: float) -> float:
    """Return the edge, or twice the other one if it is infinite."""
    return float(edge if np.isfinite(edge) else 2 * other)


def released_moments(
    x: Array, targets: Rows, units: Units, indicators: Indicators, floor: float, release: Release, noise: float
) -> tuple[Scaling, Array, float]:
    """Return the scaling, the means of what `targets` gives, and the standard deviation of the noise of all means.

    Args:
        x: values [N, d], NaN where missing.
        targets: indicators of classes [n, K - 1] of some rows, or a scaled target and its square [n, 2].
        units: by the ranges of the columns.
        indicators: which columns are.
        floor: least scale, in units of the range.
        release: of a sum.
        noise: standard deviation, over the norm, of its noise.
    """
    rows, columns = x.shape
    numbers = np.flatnonzero(~indicators.which)
    width = targets(slice(0, 1)).shape[1]
    # Indicators have norm √ones as a rule. Numbers of size 1 everywhere have √(2n + 1) with their squares and a
    # class; most rows have less, and noise grows with this radius.
    radius = max(1.0, math.sqrt(indicators.ones + _USUAL**2 * (2 * len(numbers) + 1)))
    total = np.zeros(columns + len(numbers) + width)
    for some, values in pieces(x):
        unit = np.nan_to_num(units(values.astype(np.float64)), nan=0.0)
        table = np.concatenate([unit, unit[:, numbers] ** 2, targets(some)], axis=1)
        total += cut(table, radius).sum(axis=0)
    means, std = release(total, radius) / rows, noise * radius / rows
    mean, of_numbers, aside = np.split(means, [columns, columns + len(numbers)])
    squares = mean.copy()
    squares[numbers] = of_numbers
    return _scaling(units, mean, squares, indicators, floor, rows, std), aside, std


def _scaling(
    units: Units, mean: Array, squares: Array, indicators: Indicators, floor: float, rows: int, std: float
) -> Scaling:
    """Return the scaling by released means [d] of values and of their squares, whose noise has deviation `std`."""
    mean = np.clip(mean, -1.0, 1.0)
    kept = np.flatnonzero(mean > indicators.threshold * std)
    if not len(kept):
        kept = np.arange(len(mean))
    mean, squares = mean[kept], squares[kept]
    products = _products(mean, indicators, kept, rows, std)
    shares = mean[products].prod(axis=1)  # as if columns were independent
    mean, squares = np.append(mean, shares), np.append(squares, shares)
    deviation = np.sqrt(np.maximum(squares - mean**2, 0.0))
    return Scaling(units.of(kept), mean, np.maximum(deviation, floor), kept, products)


def _products(
    share: Array, indicators: Indicators, kept: NDArray[np.int64], rows: int, std: float
) -> NDArray[np.int64]:
    """Return of which two kept columns products are to be read, [p, 2].

    None, unless the table has categories alone, and rows enough for all. They are of different columns of the
    table, and would stand out of the noise `std` if those were independent; `share` has the released means.
    """
    none = np.empty((0, 2), np.int64)
    if not indicators.categories_alone or len(kept) > _MOST:
        return none
    first, second = np.triu_indices(len(kept), 1)
    source = indicators.source[kept]
    pairs = np.column_stack([first, second])
    pairs = pairs[(source[first] != source[second]) & (share[first] * share[second] > _CLEARLY * std)]
    width = len(kept) + len(pairs)
    return pairs if width <= min(_MOST, rows / PRODUCTS) else none


def cut(rows: Array, radius: float) -> Array:
    """Return rows [N, n] scaled down to norm at most the radius, in float64 and up to no rounding at all."""
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    kept: Array = rows * np.minimum(1.0, radius * (1 - 1e-9) / np.maximum(norms, 1e-300))
    return kept
