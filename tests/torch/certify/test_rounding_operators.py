"""What norms of convolutions add for rounding: each factor by itself, where a product was rounded down."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest
import torch
from lipcompile_torch.certify import operators
from lipcompile_torch.certify.norms import EuclideanNorm
from lipcompile_torch.certify.operators import Convolution, Dense
from lipcompile_torch.certify.rounding import UP_MANY
from lipcompile_torch.certify.single_precision import Transform
from torch import Tensor

from tests.rounding import DIGITS, each_is_needed

UNIT = 2.0**-53
OFF = {(operators, "UP_MANY"): 1.0}
ONE_STEP = {"one step": {(operators, "UP_MANY"): UP_MANY}}
NUMBERS = torch.rand(60, generator=torch.Generator().manual_seed(0), dtype=torch.float64).add_(0.5).tolist()


def convolution(reads: int, taps: int = 3) -> Convolution:
    """Three taps on five entries."""
    return Convolution((3,), (5,), reads, taps, (1,), ((1, 1),), (1,))


def test_factors_are_rounded_up() -> None:
    """√reads, and √taps, which counts in descriptions alone; times a scale that is a power of two."""
    cases = [n for n in range(1, 60) if math.isqrt(n) ** 2 != n]

    def root(n: int) -> Any:
        return DIGITS.sqrt(n)

    each_is_needed(OFF, ONE_STEP, lambda n: convolution(n).factor, root, cases)
    kernel = torch.ones(1, 1, 3, dtype=torch.float64)

    def by_rows(n: int) -> float:
        return next(convolution(n)._reshaped(kernel, 1.0, 1.0)).factor

    def by_columns(n: int) -> float:
        return [*convolution(1, n)._reshaped(kernel, 1.0, 1.0)][1].factor

    each_is_needed(OFF, ONE_STEP, by_rows, root, cases)
    each_is_needed(OFF, ONE_STEP, by_columns, root, cases)


def test_the_coarse_bound_is_rounded_up() -> None:
    """√reads times a norm that is known."""

    def coarse(case: tuple[int, float]) -> float:
        reads, length = case
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(EuclideanNorm, "bound", length)
            return convolution(reads).norm(torch.full((1, 1, 3), 0.5, dtype=torch.float64)).coarse

    cases = [(n, length) for n, length in enumerate(NUMBERS, 2)]
    exact: Any = lambda case: DIGITS.sqrt(case[0]) * DIGITS.mpf(case[1])  # noqa: E731
    each_is_needed(OFF, ONE_STEP, coarse, exact, cases)


def test_a_coarse_bound_below_the_normal_numbers_is_rounded_up() -> None:
    for count in range(1, 60):
        kernel = torch.full((1, 1, 3), math.ldexp(count, -1074), dtype=torch.float64)
        assert Fraction(convolution(3).norm(kernel).coarse) ** 2 >= 9 * Fraction(count, 2**1074) ** 2


def test_what_repeats_is_rounded_up() -> None:
    """√(repeats of an axis) times the bound of a transform and what that is off."""
    cases = [(n, bound, error) for n, (bound, error) in enumerate(zip(NUMBERS, NUMBERS[::-1], strict=True), 2)]

    def prepared(patch: pytest.MonkeyPatch, case: tuple[int, float, float]) -> None:
        repeats, bound, error = case
        patch.setattr(Convolution, "_repeats", math.sqrt(repeats))
        patch.setattr(Convolution, "_frequencies_win", lambda _: True)
        patch.setattr(operators, "transform_bound", lambda _: bound)
        transform = Transform(torch.zeros(1, 1, 1, 1), torch.zeros(1, 1, dtype=torch.float64))
        patch.setattr(Convolution, "_transform", lambda *_: (transform, 1.0, error))

    def quick(case: tuple[int, float, float]) -> float:
        with pytest.MonkeyPatch.context() as patch:
            prepared(patch, case)
            return convolution(3).quick_bound(torch.full((1, 1, 3), 0.5))

    def exact(case: tuple[int, float, float]) -> Any:
        repeats, bound, error = case
        return DIGITS.mpf(math.sqrt(repeats)) * (DIGITS.mpf(bound) + DIGITS.mpf(error))

    each_is_needed(OFF, ONE_STEP, quick, exact, cases)

    def described(case: tuple[int, float, float]) -> float:
        with pytest.MonkeyPatch.context() as patch:
            prepared(patch, case)
            return convolution(3)._frequency_stack(torch.ones(1, 1, 3), 1.0, 1.0).factor

    # The root of a whole number is itself rounded.
    roots: list[tuple[int, float, float]] = [(n, 0.0, 0.0) for n in range(2, 60) if math.isqrt(n) ** 2 != n]
    each_is_needed(OFF, ONE_STEP, described, lambda case: DIGITS.sqrt(case[0]), roots)


@pytest.mark.parametrize(("dtype", "unit"), [(torch.float64, UNIT), (torch.float32, 2.0**-24)])
def test_what_a_transform_rounds_is_bounded(dtype: torch.dtype, unit: float) -> None:
    """Sums of three products with waves: γ_3 of each, and phases of at most 6π, which a dozen roundings turn by a
    hundred units; of matrices of Frobenius norm √3·‖K‖.
    """
    _, largest, error = convolution(3)._transform(torch.ones(1, 1, 3, dtype=dtype), 1.0)
    assert Fraction(largest) ** 2 >= 3
    assert error >= math.sqrt(3) * (4 * unit + 100 * UNIT)
    assert error >= math.sqrt(3) * 5 * 8 * unit  # half of γ, with which waves are rounded as well


def test_phases_alone_are_bounded() -> None:
    """Cosines of angles up to 6π that are rounded a dozen times."""
    assert 12 * math.tau * UNIT <= operators._PHASE_ERROR
    longest = operators._angles([operators._Axis(1, 11, 1)] * 3, [5, 5, 5], torch.device("cpu"))
    assert float(longest.max()) <= 6 * math.pi


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_where_single_precision_has_no_proof_there_is_no_quick_bound(
    value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operators, "transform_bound", lambda _: value)
    monkeypatch.setattr(Convolution, "_frequencies_win", lambda _: True)
    kernel = torch.ones(1, 1, 3)
    assert 2 <= convolution(3).quick_bound(kernel) <= 3.1


def test_matrices_that_are_large_both_ways_are_certified_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, ...]] = []

    def bound(weight: Tensor) -> float:
        asked.append(tuple(weight.shape))
        return 1.0

    monkeypatch.setattr(operators, "spectral_bound", bound)
    for shape in ((70, 80), (70, 30), (30, 70)):
        Dense().quick_bound(torch.ones(shape))
    assert asked == [(70, 80)]
