"""Ranges and moments: what one row adds to a sum that is released, and what comes out."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from lipcompile.learn.features import Array
from lipcompile.learn.scaling import Scaling, Units, cut, released_moments, released_ranges

COLUMNS = 5


class Sums:
    """In the place of a release: keeps what it was given, and adds no noise."""

    def __init__(self) -> None:
        self.total: Array = np.empty(0)
        self.norm = 0.0

    def __call__(self, total: Array, norm: float) -> Array:
        self.total, self.norm = total.copy(), norm
        return total


def awkward_rows(source: np.random.Generator) -> Array:
    """Rows such as an adversary would choose: huge, tiny, infinite, missing, on the edges of intervals."""
    values = [0.0, -0.0, 1e-300, 1e300, math.inf, -math.inf, math.nan, 2.0**-20, -(2.0**40), 1.0, 0.999, -1.0, 3.7]
    rows: Array = source.choice(values, (1, COLUMNS)) * source.choice([1.0, 1.0, 1e-9], (1, COLUMNS))
    return rows


def ranges(rows: Array, sums: Sums) -> None:
    released_ranges(lambda some: rows[some], 1000, sums, 10.0)


def moments(rows: Array, sums: Sums) -> None:
    units = Units(np.array([-1.0, 0.0, 2.0, -3.0, 5.0]), np.array([1.0, 1.0, 9.0, -2.0, 5.0]))
    released_moments(rows, lambda some: np.ones((len(rows[some]), 2)), units, 0.05, sums, 1.0)


@pytest.mark.parametrize("released", [ranges, moments])
def test_one_row_adds_no_more_than_its_norm(released: Callable[[Array, Sums], None]) -> None:
    source = np.random.default_rng(1)
    base = source.standard_normal((3, COLUMNS))
    most = 0.0
    for _ in range(300):
        row = awkward_rows(source)
        with_row, without = Sums(), Sums()
        released(np.concatenate([base, row]), with_row)
        released(base, without)
        assert with_row.norm == without.norm
        added = float(np.linalg.norm(with_row.total - without.total))
        assert added <= with_row.norm
        most = max(most, added / with_row.norm)
    assert most > 0.96  # so that a norm that is 5 % smaller fails


def test_ranges_hold_the_values_and_little_else() -> None:
    source = np.random.default_rng(0)
    rows = np.stack([source.uniform(10, 20, 50_000), source.normal(-300, 5, 50_000), np.zeros(50_000)], axis=1)
    rows[:100, 0] = np.nan
    low, high = released_ranges(lambda some: rows[some], len(rows), Sums(), 5.0)
    for column, (least, most) in enumerate([(9.0, 21.0), (-325.0, -275.0), (-1e-5, 1e-5)]):
        assert low[column] <= np.nanquantile(rows[:, column], 0.01)
        assert high[column] >= np.nanquantile(rows[:, column], 0.99)
        assert least - abs(least) / 4 <= low[column] < high[column] <= most + abs(most) / 4


def test_without_signal_a_range_is_some_interval() -> None:
    low, high = released_ranges(lambda some: np.zeros((10, 1))[some], 10, lambda total, _: 0 * total, 1e6)
    assert np.isfinite([low, high]).all()
    assert (low < high).all()


def test_units_keep_zero_and_cut_to_the_range() -> None:
    units = Units(np.array([0.0, -2.0, 4.0, -8.0, 3.0]), np.array([10.0, 1.0, 6.0, -4.0, 3.0]))
    x = np.array([[5.0, 1.0, 5.0, -6.0, 3.0], [99.0, -99.0, 0.0, 0.0, 7.0], [np.nan, np.inf, -np.inf, -8.0, 0.0]])
    expected = [[0.5, 0.5, 0.5, -0.5, 0.0], [1.0, -1.0, 0.0, 0.0, 0.0], [np.nan, 0.5, 0.0, -1.0, 0.0]]
    np.testing.assert_allclose(units(x), expected)
    np.testing.assert_allclose(units.inverse(units(x[:1])), x[:1])


def test_moments_are_means_and_deviations() -> None:
    source = np.random.default_rng(0)
    rows = source.normal([0.2, -0.3], [0.1, 0.2], (20_000, 2))
    units = Units(np.full(2, -1.0), np.ones(2))
    quarter = lambda some: np.full((len(rows[some]), 1), 0.25)  # noqa: E731
    scaling, shares, std = released_moments(rows, quarter, units, 0.05, Sums(), 10.0)
    assert std == pytest.approx(10 * 0.6 * math.sqrt(5) / 20_000)
    np.testing.assert_allclose(scaling.mean, [0.2, -0.3], atol=0.01)
    np.testing.assert_allclose(scaling.scale, [0.1, 0.2], atol=0.01)
    np.testing.assert_allclose(shares, 0.25, atol=1e-3)
    assert scaling(np.array([[np.nan, 9.0]])).tolist() == [[0.0, (1.0 - scaling.mean[1]) / scaling.scale[1]]]


def test_noise_makes_no_scale_of_zero() -> None:
    units = Units(np.full(2, -1.0), np.ones(2))
    nothing = np.zeros((4, 2))
    scaling, _, _ = released_moments(
        nothing, lambda some: nothing[some], units, 0.05, lambda total, _: total - 1e6, 1.0
    )
    assert isinstance(scaling, Scaling)
    assert (scaling.scale >= 0.05).all()
    assert (np.abs(scaling.mean) <= 1).all()


def test_rows_are_cut_into_the_ball() -> None:
    source = np.random.default_rng(2)
    rows = source.standard_normal((1000, 7)) * 10.0 ** source.integers(-200, 150, (1000, 1))
    assert (np.linalg.norm(cut(rows, 0.7), axis=1) <= 0.7).all()
    short = rows[np.linalg.norm(rows, axis=1) < 0.69]
    np.testing.assert_array_equal(cut(short, 0.7), short)
