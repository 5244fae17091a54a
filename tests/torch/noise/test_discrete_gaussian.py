"""Exact draws: the integers of the table, single decisions against mpmath, and the distribution that comes out."""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterator
from typing import Any

import mpmath
import numpy as np
import pytest
from lipcompile_torch.noise import discrete_gaussian as module
from lipcompile_torch.noise.discrete_gaussian import GRID_BITS, Words, draw
from numpy.typing import NDArray

R = 2**GRID_BITS
CELLS = 1024


def words_from(seed: int) -> Words:
    source = np.random.Generator(np.random.PCG64(seed))
    return lambda count: source.integers(0, 2**64, count, dtype=np.uint64)


def given(*words: int) -> Words:
    """Hand out these words, in order."""
    left = list(words)
    return lambda count: np.array([left.pop(0) for _ in range(count)], np.uint64)


# --- the law, by hand ---


def test_the_table_has_the_stated_weights_to_128_bits() -> None:
    # Independent: what the arrays give each cell, against mpmath at 300 bits.
    table = module._table()
    found = [0] * CELLS
    for column in range(CELLS):
        own = (int(table.high[column]) << 64) + int(table.low[column])
        assert 0 <= own <= 2**118
        found[column] += own
        found[int(table.other[column])] += 2**118 - own
    with mpmath.workprec(300):
        heights = [mpmath.exp(-(mpmath.mpf(cell) ** 2) / 2**13) for cell in range(CELLS)]
        total = mpmath.fsum(heights)
        errors = [abs(weight - height / total * 2**128) for weight, height in zip(found, heights, strict=True)]
    assert sum(found) == 2**128
    assert max(errors[1:]) <= 0.5
    assert sum(errors) / 2 / 2**128 < 2**-117  # total variation
    # The largest draw there is: the end of the last cell with a weight.
    assert max(cell for cell, weight in enumerate(found) if weight) + 1 == 13.046875 * 64


def cell_of(word: int, *more: int) -> int:
    return int(module._cells(np.array([word], np.uint64), given(*more))[0])


def test_a_column_is_split_at_its_threshold_to_the_last_of_118_bits() -> None:
    table = module._table()
    column = next(c for c in range(CELLS) if int(table.other[c]) != c and 0 < int(table.low[c]) < 2**64 - 1)
    start, high, low = column << 54, int(table.high[column]), int(table.low[column])
    other = int(table.other[column])
    assert cell_of(start + high - 1) == column
    assert cell_of(start + high + 1) == other
    assert cell_of(start + high, low - 1) == column
    assert cell_of(start + high, low) == other


def proposal(cell: int, negative: int, offset: int, test: int) -> tuple[float, bool]:
    """Run one proposal for the given cell, by the beginning of its own column."""
    assert int(module._table().high[cell]) > 0
    draws, accepted = module._propose(1, given(cell << 54, negative | offset << 1 | test << 35))
    return float(draws[0]), bool(accepted[0])


def test_points_are_those_of_the_grid_each_side_of_zero_once() -> None:
    # Positive cells begin at their inner end, negative ones end at their outer end: 0 is met once.
    last = 2**34 - 1
    assert proposal(0, 0, 0, 0) == (0.0, True)
    assert proposal(0, 1, 0, 0) == (-1 / R, True)
    assert proposal(0, 1, last, 0) == (-(2.0**-6), True)
    assert proposal(1, 0, 0, 0) == (2.0**-6, True)
    assert proposal(70, 0, last, 0) == (71 * 2.0**-6 - 1 / R, True)
    assert proposal(70, 1, last, 0) == (-71 * 2.0**-6, True)


def test_acceptance_is_the_exponential_to_the_last_bit() -> None:
    # r and t as they are defined, exp by mpmath at 200 bits: one bit of the test below and above it.
    source = np.random.Generator(np.random.PCG64(0))
    for _ in range(300):
        cell, negative = int(source.integers(0, 300)), int(source.integers(0, 2))
        offset = int(source.integers(0, 2**34))
        with mpmath.workprec(200):
            r = mpmath.mpf(offset + negative) / R
            limit = mpmath.exp(-r * (mpmath.mpf(cell) / 64 + r / 2)) * 2**29
        whole = min(int(limit), 2**29)
        for test, expected in ((whole - 1, True), (whole + 1, False)):
            if 0 <= test < 2**29:
                assert proposal(cell, negative, offset, test)[1] is expected


def test_what_29_bits_leave_open_is_decided_by_more(monkeypatch: pytest.MonkeyPatch) -> None:
    cell, offset = 200, 2**33
    with mpmath.workprec(300):
        r = mpmath.mpf(offset) / R
        limit = mpmath.exp(-r * (mpmath.mpf(cell) / 64 + r / 2)) * 2**29
        rest = int((limit - int(limit)) * 2**128)
    for extra, expected in ((0, True), (rest - 1, True), (rest + 1, False), (2**128 - 1, False)):
        monkeypatch.setattr(secrets, "randbits", lambda _, extra=extra: extra)
        assert proposal(cell, 0, offset, int(limit))[1] is expected


def test_discrete_and_rounded_gaussian_are_as_close_as_stated() -> None:
    # The difference falls as 1/R²: 4φ(1)/48 = 0.02016 of it, measured at R where sums of doubles can tell.
    for bits in (3, 5, 7):
        size = 2**bits
        points = np.arange(-14 * size, 14 * size + 1)
        discrete = np.exp(-((points / size) ** 2) / 2)
        ends = [math.erf((p + side) / size / math.sqrt(2)) / 2 for side in (-0.5, 0.5) for p in points]
        rounded = np.array(ends[len(points) :]) - np.array(ends[: len(points)])
        variation = np.abs(discrete / discrete.sum() - rounded).sum() / 2
        assert variation * size**2 == pytest.approx(4 * math.exp(-0.5) / math.sqrt(2 * math.pi) / 48, rel=0.02)


# --- the distribution that comes out ---

COUNT = 2**20


def faults(z: NDArray[np.float64]) -> set[str]:
    """Return what is wrong with 2^20 draws; each check fails by chance once in 10^8 runs or less."""
    n, found = len(z), set()
    moments = {1: (0.0, 1.0), 2: (1.0, 2.0), 3: (0.0, 15.0), 4: (3.0, 96.0)}  # of z^k: mean, variance
    for order, (mean, variance) in moments.items():
        if abs(float((z**order).mean()) - mean) > 6 * math.sqrt(variance / n):
            found.add(f"moment {order}")
    ordered = np.sort(z)
    normal = np.array([math.erfc(-x / math.sqrt(2)) / 2 for x in ordered[::64]])
    if np.abs(normal - np.arange(0, n, 64) / n).max() > 3.1 / math.sqrt(n):  # Kolmogorov: 2exp(-2·3.1²) = 9e-9
        found.add("distribution")
    for bound in (3.0, 4.0):  # binomial counts, 6 standard deviations
        expected = n * math.erfc(bound / math.sqrt(2))
        if abs(int((np.abs(z) > bound).sum()) - expected) > 6 * math.sqrt(expected):
            found.add(f"tail {bound:g}")
    integers = (z * R).astype(np.int64)
    ones = np.array([int(((integers >> bit) & 1).sum()) for bit in range(GRID_BITS - 6)])
    if np.abs(ones - n / 2).max() > 7 * math.sqrt(n) / 2:
        found.add("bits")
    for lag in (1, 2, 7, 2**15):
        if abs(float((z[:-lag] * z[lag:]).mean())) > 6 / math.sqrt(n - lag):
            found.add("correlation")
    return found


def test_draws_are_normal_into_the_tails_and_to_the_last_bit() -> None:
    z = draw(COUNT, words_from(0))
    assert not faults(z)
    assert bool(((z * R) % 1 == 0).all())


@pytest.fixture
def fresh_table() -> Iterator[None]:
    module._table.cache_clear()
    yield
    module._table.cache_clear()


def with_weights(monkeypatch: pytest.MonkeyPatch, keep: Any) -> None:
    true = module._weights()
    changed = [weight if keep(cell) else 0 for cell, weight in enumerate(true)]
    changed[0] += 2**128 - sum(changed)
    monkeypatch.setattr(module, "_weights", lambda: changed)
    module._table.cache_clear()


@pytest.mark.usefixtures("fresh_table")
def test_planted_faults_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    z = draw(COUNT, words_from(1))
    assert "moment 2" in faults(z * math.sqrt(0.5))
    assert "moment 2" in faults(z * 0.99)
    assert "correlation" in faults(np.concatenate([z[: 2**15]] * 32))
    assert "bits" in faults((z * R / 4).round() * 4 / R)
    assert "moment 1" in faults(np.abs(z))
    assert "tail 4" in faults(np.clip(z, -4, 4))
    with_weights(monkeypatch, lambda cell: cell < 4 * 64)
    assert "tail 4" in faults(draw(COUNT, words_from(1)))
