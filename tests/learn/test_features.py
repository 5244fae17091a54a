"""Public maps of a row: their norm, for every row."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lipcompile.learn.features import Features
from lipcompile.learn.recipe import Recipe


@pytest.mark.parametrize("kind", ["plain", "waves"])
@pytest.mark.parametrize("columns", [1, 2, 7, 300])
def test_no_row_has_longer_features(kind: str, columns: int) -> None:
    source = np.random.default_rng(columns)
    features = Features.of(columns, Recipe(kind=kind, width=64, constant=0.3))  # type: ignore[arg-type]
    rows = source.standard_normal((400, columns)) * 10.0 ** source.integers(-30, 30, (400, 1))
    norms = np.linalg.norm(features(rows), axis=1)
    assert features(rows).shape == (400, features.count(columns))
    assert norms.max() <= features.radius
    # The bound is attained: a radius that is 5 % smaller fails.
    assert norms.max() > 0.999 * features.radius
    assert features.radius == pytest.approx(math.sqrt(1.09), rel=1.1e-5)


@pytest.mark.parametrize("constant", [0.0, 0.3, 1.0, 1.7])
def test_the_radius_has_room_for_rounding(constant: float) -> None:
    """1e-5 of the length √(1 + c²), and the digits that are cut off are not taken from it."""
    assert Features(None, constant).radius >= 1.00001 * math.sqrt(1 + constant**2)


@pytest.mark.parametrize("columns", [3, 54, 200, 600, 2000])
def test_the_features_of_a_row_are_its_own(columns: int) -> None:
    """A batch of other length would take another path through products of matrices, and be rounded otherwise."""
    rows = np.clip(40 * np.random.default_rng(columns).standard_normal((1100, columns)), -40.0, 40.0)
    features = Features.of(columns, Recipe(frequency=1.1))
    together = features(rows)
    for count in (1, 2, 3, 5, 13, 14, 100, 1099):
        np.testing.assert_array_equal(features(rows[-count:]), together[-count:])


@pytest.mark.parametrize("kind", ["plain", "waves"])
def test_wide_rows_in_single_precision_keep_to_the_radius_however_they_lie(kind: str) -> None:
    """Added one after the other in single precision, the squares of 12,000 columns are off by 8e-5."""
    source = np.random.default_rng(1)
    columns = 12_000
    rows = source.uniform(0.0, 40.0, (40, columns)).astype(np.float32)
    features = Features.of(columns, Recipe(kind=kind, width=8, constant=0.1))  # type: ignore[arg-type]
    together = features(rows)
    assert np.linalg.norm(together.astype(np.float64), axis=1).max() <= features.radius
    one_by_one = np.asfortranarray(rows)  # as columns that are chosen lie
    np.testing.assert_array_equal(features(one_by_one), together)
    for index in (0, 7, 39):
        np.testing.assert_array_equal(features(one_by_one[index : index + 1]), together[index : index + 1])


def test_rows_that_are_no_numbers_are_refused() -> None:
    features = Features.of(2, Recipe(width=8))
    with pytest.raises(ArithmeticError, match="NaN or infinity"):
        features(np.array([[np.nan, 0.0]]))


def test_waves_come_from_a_fixed_seed() -> None:
    one, other = (Features.of(4, Recipe(width=16)).directions for _ in range(2))
    assert one is not None
    assert other is not None
    np.testing.assert_array_equal(one, other)
    # On one, two, three and all columns in turn.
    assert [np.count_nonzero(column) for column in one.T] == [1, 2, 3, 4, 1, 2, 3, 4]


@pytest.mark.parametrize(
    "wrong",
    [{"moments": 0.0}, {"moments": 0.95}, {"steps": 0}, {"width": 7}, {"kind": "trees"}, {"loss_clip": 0.0}],
)
def test_recipes_are_checked(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"between|positive|at least|must be"):
        Recipe(**wrong)  # type: ignore[arg-type]
