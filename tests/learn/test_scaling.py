"""Ranges and moments: what one row adds to a sum that is released, and what comes out."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from lipcompile.learn.features import Array
from lipcompile.learn.scaling import Scaling, Units, cut, released_moments, released_ranges
from lipcompile.tables.encode import Indicators, indicators
from lipcompile.tables.schema import Boolean, Category, Schema, Text

COLUMNS = 5
TOKENIZER = json.dumps(
    {"version": "1.0", "model": {"type": "WordLevel", "vocab": {"[UNK]": 0}, "unk_token": "[UNK]"}}
)


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


UNITS = Units(np.array([-1.0, 0.0, 2.0, -3.0, 5.0]), np.array([1.0, 1.0, 9.0, -2.0, 5.0]))


def moments(rows: Array, sums: Sums) -> None:
    released_moments(rows, ones_beside(rows), UNITS, Indicators.none(COLUMNS), 0.05, sums, 1.0)


def moments_beside_indicators(rows: Array, sums: Sums) -> None:
    """As of a schema that promises zeros and ones, at most one of them in a row; the rows need not keep it."""
    promised = of_names([True, True, True, False, False], [0, 0, 0, 1, 2], 1)
    released_moments(rows, ones_beside(rows), UNITS, promised, 0.05, sums, 1.0)


def of_names(which: list[bool], source: list[int], ones: int) -> Indicators:
    """Return indicators of names: one is read if its mean is two standard deviations of the noise."""
    threshold = np.where(which, 2.0, -math.inf)
    return Indicators(np.array(which, np.bool_), np.array(source, np.int64), ones, threshold)


def ones_beside(rows: Array) -> Callable[[slice], Array]:
    return lambda some: np.ones((len(rows[some]), 2))


@pytest.mark.parametrize("released", [ranges, moments, moments_beside_indicators])
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
    scaling, shares, std = released_moments(rows, quarter, units, Indicators.none(2), 0.05, Sums(), 10.0)
    assert std == pytest.approx(10 * 0.6 * math.sqrt(5) / 20_000)
    np.testing.assert_allclose(scaling.mean, [0.2, -0.3], atol=0.01)
    np.testing.assert_allclose(scaling.scale, [0.1, 0.2], atol=0.01)
    np.testing.assert_allclose(shares, 0.25, atol=1e-3)
    assert scaling(np.array([[np.nan, 9.0]])).tolist() == [[0.0, (1.0 - scaling.mean[1]) / scaling.scale[1]]]


def categories(shares: dict[str, list[float]], rows: int) -> tuple[Array, Indicators]:
    """Return indicators [rows, d] of independent categories with these shares, and what is known of them."""
    source = np.random.default_rng(0)
    parts = [
        np.eye(len(names))[source.choice(len(names), rows, p=names)].astype(np.float32)
        for names in shares.values()
    ]
    of = [number for number, names in enumerate(shares.values()) for _ in names]
    return np.concatenate(parts, axis=1), of_names([True] * len(of), of, len(shares))


def scaled(x: Array, known: Indicators, noise: float) -> Scaling:
    units = Units(np.zeros(x.shape[1]), np.ones(x.shape[1]))
    nothing = lambda some: np.zeros((len(x[some]), 1))  # noqa: E731
    return released_moments(x, nothing, units, known, 0.05, Sums(), noise)[0]


def test_indicators_that_are_hidden_by_noise_are_left_out() -> None:
    """Noise of the means has deviation 20·√(2 + 0.36)/1000 = 0.0307: shares above 0.0614 stand out of it."""
    x, known = categories({"job": [0.9, 0.1, 0.0], "town": [0.55, 0.4, 0.05]}, 1000)
    x[0, :3] = 0.0, 0.0, 1.0  # a share of one in a thousand
    scaling = scaled(x, known, 20.0)
    assert scaling.kept.tolist() == [0, 1, 3, 4]
    np.testing.assert_allclose(scaling.mean[:4], x[:, scaling.kept].mean(axis=0), rtol=1e-6)
    deviation = x[:, scaling.kept].std(axis=0)
    np.testing.assert_allclose(scaling.scale[:4], deviation, rtol=1e-5)
    assert scaling(np.eye(6, dtype=np.float32)[[2]])[0, :4] == pytest.approx(
        -scaling.mean[:4] / deviation, rel=1e-5
    )


def test_values_are_kept_whatever_their_noise_and_something_always_is() -> None:
    x, known = categories({"job": [0.5, 0.5]}, 100)
    mixed = np.concatenate([x, np.full((100, 1), 1e-3, np.float32)], axis=1)
    beside = of_names([True, True, False], [0, 0, 1], 1)
    assert scaled(mixed, beside, 1e3).kept.tolist() == [2]
    assert scaled(x, known, 1e3).kept.tolist() == [0, 1]


def test_a_rare_boolean_is_read_and_a_token_by_another_rule_than_a_name() -> None:
    """All shares are 0.05, and noise of the means has deviation 20·√(4 + 0.36)/1000 = 0.042: between 1 and 2."""
    columns = (Boolean("member"), Category("job", ("clerk",)), Text("note", TOKENIZER, buckets=2))
    x = np.zeros((1000, 4), np.float32)
    x[:50] = 1.0
    assert scaled(x, indicators(Schema(columns)), 20.0).kept.tolist() == [0, 2, 3]
    x[:, 0] = 0.0
    assert scaled(x, indicators(Schema(columns)), 20.0).kept.tolist() == [0, 2, 3]


def test_a_wide_table_is_summed_in_small_pieces() -> None:
    """128 rows of 65,536 columns take 64 MiB in float64, of which several copies are made."""
    asked: list[int] = []

    def targets(some: slice) -> Array:
        asked.append(len(range(*some.indices(200))))
        return np.ones((asked[-1], 1))

    x, sums = np.ones((200, 65536), np.float32), Sums()
    units, known = Units(np.zeros(65536), np.ones(65536)), of_names([True] * 65536, [0] * 65536, 1)
    released_moments(x, targets, units, known, 0.05, sums, 1.0)
    assert asked == [1, 128, 72]
    np.testing.assert_allclose(sums.total, 200 * math.sqrt(1.36 / 65537), rtol=1e-6)


def test_the_norm_of_ranges_is_not_rounded_down() -> None:
    """√3 is: three columns without a public range add three ones, whose norm it does not cover."""
    sums = Sums()
    released_ranges(lambda some: np.ones((1, 3))[some], 1, sums, 10.0)
    assert Fraction(sums.norm) ** 2 >= sum(Fraction(one) ** 2 for one in sums.total) == 3


def test_a_table_of_categories_has_the_products_of_different_columns() -> None:
    x, known = categories({"job": [0.9, 0.1], "town": [0.6, 0.4], "member": [0.5, 0.5]}, 1000)
    scaling = scaled(x, known, 5.0)  # noise of the means: 5·√3.36/1000 = 0.0092, so products above 0.0183
    pairs = [[0, 2], [0, 3], [0, 4], [0, 5], [1, 2], [1, 3], [1, 4], [1, 5], [2, 4], [2, 5], [3, 4], [3, 5]]
    assert scaling.products.tolist() == pairs
    share = x.mean(axis=0)
    both = share[0] * share[3]
    assert scaling.mean[7] == pytest.approx(both, rel=1e-6)
    assert scaling.scale[7] == pytest.approx(math.sqrt(both * (1 - both)), rel=1e-6)
    row = scaling(np.array([[1, 0, 0, 1, 1, 0]], np.float32))[0]
    assert row[7] == pytest.approx((1 - both) / math.sqrt(both * (1 - both)), rel=1e-5)
    assert row[6] == pytest.approx(-scaling.mean[6] / scaling.scale[6], rel=1e-5)
    assert scaling.width == 18
    assert [1, 3] not in scaled(x, known, 12.0).products.tolist()  # 0.04 does not stand out of 0.022


def test_other_tables_have_no_products() -> None:
    x, known = categories({"job": [0.5, 0.5], "town": [0.5, 0.5]}, 159)
    assert not len(scaled(x, known, 0.1).products)  # 8 columns want 160 rows
    x, known = categories({"job": [0.5, 0.5], "town": [0.5, 0.5]}, 160)
    assert len(scaled(x, known, 0.1).products) == 4
    texts = replace(known, ones=3)  # more ones than columns: texts
    assert not len(scaled(x, texts, 0.1).products)
    numbers = of_names([True, True, False, False], [0, 0, 1, 2], 1)
    assert not len(scaled(x, numbers, 0.1).products)


def test_noise_makes_no_scale_of_zero() -> None:
    units = Units(np.full(2, -1.0), np.ones(2))
    nothing = np.zeros((4, 2))
    scaling, _, _ = released_moments(
        nothing, lambda some: nothing[some], units, Indicators.none(2), 0.05, lambda total, _: total - 1e6, 1.0
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
