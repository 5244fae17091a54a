"""The entries that windows read, counted on each axis; and checks of claimed bounds of ‖A‖²."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from fractions import Fraction
from functools import lru_cache
from math import ceil, floor
from typing import Any, NamedTuple

from mpmath.ctx_iv import MPIntervalContext

from .document import require, spend

MOST_PLACES = 2**20
# Axes of so many outputs times entries are looked at pair by pair, with weights that are improved so often.
MOST_PAIRED, STEPS = 400, 24
Row = dict[int, Fraction]
Reading = dict[int, int]  # the entry that each output reads through one tap
Table = list[list[Any]]  # a number for each output and entry


class Counts(NamedTuple):
    """Of one axis: reads of an entry, reads of an entry through one tap, and most and fewest taps of an output."""

    reads: int
    repeats: int
    taps: int
    fewest: int


def outputs(
    size: int, kernel: int, stride: int, dilation: int, pads: tuple[int, int], ceiled: bool = False
) -> int:
    """Return the number of windows on an axis; the last may stick out if `ceiled`, unless it starts behind all."""
    room = size + sum(pads) - dilation * (kernel - 1) - 1
    count = -(-room // stride) + 1 if ceiled else room // stride + 1
    require(count > 0, f"a window of {kernel} taps is longer than an axis of {size}")
    return count - (ceiled and (count - 1) * stride >= size + pads[0])


def source(place: int, size: int, mode: str) -> int | None:
    """Return the entry at a place of a padded axis, None for a zero."""
    if 0 <= place < size:
        return place
    if mode == "reflect":
        return -place if place < 0 else 2 * (size - 1) - place
    return {"circular": place % size, "replicate": 0 if place < 0 else size - 1}.get(mode)


@lru_cache(256)
def padded(size: int, pads: tuple[int, int], mode: str) -> int:
    """Return how often padding holds the entry that it holds most; refuse what no mode defines."""
    require(size + sum(pads) <= MOST_PLACES, "the axis is too long to check")
    spend(size + sum(pads))
    require(
        max(pads) <= {"circular": size, "reflect": size - 1}.get(mode, max(pads)),
        f"{mode} padding is longer than the axis allows",
    )
    held = Counter(source(place, size, mode) for place in range(-pads[0], size + pads[1]))
    return max(count for entry, count in held.items() if entry is not None)


@lru_cache(256)
def counts(
    size: int, out: int, kernel: int, stride: int, dilation: int, pads: tuple[int, int], mode: str = "zeros"
) -> Counts:
    """Enumerate the (output, tap) pairs of an axis; tap t of output o is at o·stride + t·dilation - pads[0]."""
    require(out * kernel <= MOST_PLACES, "the window has too many taps to count")
    spend(3 * out * kernel)
    read: Counter[int] = Counter()
    through: Counter[tuple[int, int]] = Counter()
    held = [0] * out
    for output in range(out):
        for tap in range(kernel):
            entry = source(output * stride + tap * dilation - pads[0], size, mode)
            if entry is not None:
                read[entry] += 1
                through[entry, tap] += 1
                held[output] += 1
    require(bool(read), "every window lies wholly in the padding")
    return Counts(max(read.values()), max(through.values()), max(held), min(held))


@lru_cache(256)
def joint(
    size: int, out: int, kernel: int, stride: int, dilation: int, pads: tuple[int, int], mode: str = "zeros"
) -> Fraction:
    """Bound the sum over the taps of (Σ g_o·x_i over the pairs that a tap reads)² for unit x and g on an axis."""
    axis = counts(size, out, kernel, stride, dilation, pads, mode)
    simple = Fraction(min(axis.reads, axis.repeats * axis.taps))
    if simple == 1 or size * out > MOST_PAIRED:
        return simple
    read: list[Reading] = []
    for tap in range(kernel):
        places = [source(o * stride + tap * dilation - pads[0], size, mode) for o in range(out)]
        read.append({o: place for o, place in enumerate(places) if place is not None})
    shares = [Fraction(share, 16) for share in (8, 6, 4, 2, 1, 0)]
    spend(STEPS * len(shares) * sum(len(tap) ** 2 for tap in read))
    return min(simple, *(_schur(read, share, size, out) for share in shares))


def _five_digits(number: Fraction) -> Fraction:
    """The next number of five decimal digits, with the margin of rounding that claims have; from 1 to 10^5."""
    scale = Fraction(10) ** (5 - len(str(int(number))))
    return ceil(number * (1 + Fraction(1, 2**30)) * scale) / scale


def _schur(read: list[Reading], share: Fraction, size: int, out: int) -> Fraction:
    """The largest (A V)/V of all entries, for V = 1 or a better V: no eigenvalue of A, which is ≥ 0, is larger."""
    weights: Table = [[1] * size for _ in range(out)]
    first = _largest_quotient(weights, _mapped(read, share, weights))
    for _ in range(STEPS):
        image = _mapped(read, share, weights)
        top = max(map(max, image))
        weights = [[float(entry / top) for entry in row] for row in image]
    exact = [[Fraction(entry) for entry in row] for row in weights]
    return min(first, _five_digits(_largest_quotient(exact, _mapped(read, share, exact))))


def _mapped(read: list[Reading], share: Fraction, weights: Table) -> Table:
    """A V: share·Σ_t ⟨S_t, V⟩·S_t + (1 - share)·Σ_t S_t·Vᵀ·S_t, which of V = g·xᵀ have the same product with V."""
    image: Table = [[0] * len(row) for row in weights]
    exact = not isinstance(weights[0][0], float)
    mine, others = (share, 1 - share) if exact else (float(share), float(1 - share))
    for tap in read:
        whole = mine * sum(weights[o][i] for o, i in tap.items())
        for o, i in tap.items():
            row = image[o]
            row[i] += whole
            for p, j in tap.items():
                row[j] += others * weights[p][i]
    return image


def _largest_quotient(weights: Table, image: Table) -> Fraction:
    """Where both are 0 the map has a row and a column of zeros."""
    pairs = [pair for rows in zip(image, weights, strict=True) for pair in zip(*rows, strict=True)]
    return max(Fraction(new) / Fraction(old) for new, old in pairs if new)


def averages(axis: tuple[int, int, int, int, int, tuple[int, int]], by: str) -> list[Row]:
    """Return the averages of an axis (size, outputs, kernel, …), by 1, or the taps on entries, or padding too."""
    size, out, kernel, stride, dilation, pads = axis
    require(out * kernel <= MOST_PLACES, "the window has too many taps to count")
    spend(4 * out * kernel)
    rows = []
    for output in range(out):
        places = [output * stride + tap * dilation - pads[0] for tap in range(kernel)]
        held = [place for place in places if 0 <= place < size]
        counted = [place for place in places if -pads[0] <= place < size + pads[1]]
        divisor = {"sum": 1, "entries": len(held), "padding": len(counted)}[by]
        rows.append({place: Fraction(1, divisor) for place in held})
    return rows


def adaptive(size: int, out: int) -> list[Row]:
    """Return the matrix of adaptive averages: output i covers the entries from ⌊i·n/o⌋ to ⌈(i+1)·n/o⌉."""
    require(size + out <= MOST_PLACES, "the axis is too long to check")
    spend(4 * (size + 2 * out))
    spans = [range(i * size // out, -(-(i + 1) * size // out)) for i in range(out)]
    return [{place: Fraction(1, len(span)) for place in span} for span in spans]


def _cubic(x: Fraction) -> Fraction:
    """The kernel of cubic convolution with a = -3/4, as in torch."""
    x, a = abs(x), Fraction(-3, 4)
    return ((a + 2) * x - (a + 3)) * x * x + 1 if x <= 1 else ((x - 5) * x + 8) * x * a - 4 * a


def interpolation(size: int, factor: int, mode: str, aligned: bool) -> list[Row]:
    """Return the matrix of bilinear or bicubic interpolation of an axis, as in torch."""
    out = size * factor
    require(out <= MOST_PLACES, "the axis is too long to check")
    spend((16 if mode == "bilinear" else 64) * out)
    rows = []
    for i in range(out):
        at = (
            Fraction(i * (size - 1), max(out - 1, 1))
            if aligned
            else Fraction(2 * i + 1, 2 * factor) - Fraction(1, 2)
        )
        at = max(at, Fraction(0)) if mode == "bilinear" else at
        first, row = floor(at), Row()
        for place in range(first, first + 2) if mode == "bilinear" else range(first - 1, first + 3):
            weight = 1 - abs(at - place) if mode == "bilinear" else _cubic(at - place)
            entry = min(max(place, 0), size - 1)
            row[entry] = row.get(entry, Fraction(0)) + weight
        rows.append(row)
    return rows


def norm_within(matrix: list[Row], claim: Fraction) -> bool:
    """Whether ‖A‖² <= claim: by Schur, by Gershgorin on a Gram matrix G, or as claim·I - G has positive pivots."""
    columns: dict[int, Row] = {}
    for i, row in enumerate(matrix):
        for j, weight in row.items():
            columns.setdefault(j, {})[i] = weight
    if _largest(matrix) * _largest(columns.values()) <= claim:
        return True
    lines, across = (
        (dict(enumerate(matrix)), columns) if len(matrix) <= len(columns) else (columns, dict(enumerate(matrix)))
    )
    gram: dict[int, Row] = {i: Row() for i in sorted(lines)}
    spend(2 * sum(len(line) ** 2 for line in across.values()))
    for line in across.values():
        for i, left in line.items():
            for j, right in line.items():
                gram[i][j] = gram[i].get(j, Fraction(0)) + left * right
    return _largest(gram.values()) <= claim or _positive(gram, claim)


def _largest(rows: Iterable[Row]) -> Fraction:
    return max(sum(map(abs, row.values()), Fraction(0)) for row in rows)


def _positive(gram: dict[int, Row], claim: Fraction) -> bool:
    """Whether claim·I - gram is positive definite: its LDLᵀ factorisation, in intervals, has positive pivots."""
    iv = MPIntervalContext()
    iv.prec = 200
    spend(2 * sum(len(row) ** 2 for row in gram.values()))
    rows = {i: {j: (claim * (i == j) - entry) for j, entry in row.items() if j >= i} for i, row in gram.items()}
    left = {i: {j: iv.mpf(e.numerator) / e.denominator for j, e in row.items()} for i, row in rows.items()}
    for i, row in left.items():
        if (row[i] > 0) is not True:
            return False
        for j in row.keys() - {i}:
            for k in row.keys() - range(j):
                left[j][k] = left[j].get(k, 0) - row[j] * row[k] / row[i]
    return True
