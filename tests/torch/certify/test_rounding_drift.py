"""What bounds of a drift add for rounding: each term by itself, where what was measured is too small."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import partial
from typing import Any

import pytest
import torch
from lipcompile_torch import native
from lipcompile_torch.certify import drift
from lipcompile_torch.certify.drift import (
    COARSE,
    Moments,
    difference_error,
    drift_length,
    drift_norm,
    frobenius_length,
    read_norms,
)
from lipcompile_torch.certify.rounding import DOUBLE, UP, gamma, gamma_single
from torch import Tensor

from tests.rounding import DIGITS, each_is_needed, length, only

OFF = {
    (drift, "gamma"): lambda _: 0.0,
    (drift, "gamma_single"): lambda _: 0.0,
    (drift, "_vanished"): lambda _: 0.0,
    (drift, "UP"): 1.0,
    (drift, "DOUBLE"): 0.0,
}


def gauss(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def whole(seed: int, *shape: int) -> Tensor:
    return torch.randint(-9, 10, shape, generator=torch.Generator().manual_seed(seed)).float()


def from_zero(stack: Tensor) -> tuple[float, float]:
    """The bounds of both norms of a drift from zero."""
    (found,) = read_norms([drift_norm(stack, torch.zeros_like(stack), 1.0)])
    return found


def test_a_difference_is_off_by_no_more_than_is_added_for_it() -> None:
    """A product and a difference in float32, and a sum of those: 3u(|W| + |a·W₀|), and |W| ≤ |D| + |a·W₀|."""
    unit = 2.0**-24
    assert difference_error(1.0, 0.0) >= 3 * unit
    assert difference_error(0.0, 1.0) >= 6 * unit


@pytest.mark.parametrize("entries", [1, 100, 10**6])
def test_what_vanishes_is_bounded(entries: int) -> None:
    """Squares below 2^-126, the smallest normal number of float32; and entries below it, in bfloat16."""
    assert drift._vanished(entries) >= math.sqrt(entries) * 2.0**-63


def test_each_part_of_a_frobenius_norm_is_rounded_up() -> None:
    def bound(stack: Tensor) -> float:
        return float(frobenius_length(stack))

    rows = [gauss(seed, 1, 1, 3000) for seed in range(20)]
    each_is_needed(OFF, {"rows": {(drift, "gamma_single"): gamma_single}}, bound, length, rows)
    on = {"rows together": {(drift, "gamma"): gamma}}
    each_is_needed(OFF, on, bound, length, [row.mT for row in rows])
    tiny = [torch.full((1, 2, 50), scale) for scale in (2e-23, 1e-30, 1e-40)]
    each_is_needed(OFF, {"squares": {(drift, "_vanished"): drift._vanished}}, bound, length, tiny)


@pytest.mark.skipif(native.kernels is None, reason="the package was installed without a compiler")
def test_each_part_of_the_length_of_a_drift_is_rounded_up() -> None:
    def bound(stack: Tensor) -> float:
        return float(drift_length(stack, torch.zeros_like(stack), 1.0))

    on = {"γ": {(drift, "gamma"): gamma}}
    each_is_needed(OFF, on, bound, length, [gauss(seed, 1, 3, 1000) for seed in range(20)])


def test_differences_below_the_normal_numbers_are_counted() -> None:
    """k·2^-149 less 3/4 of m·2^-149: float32 keeps whole ones. Relative errors do not cover that."""
    cases = [(k, m) for k in range(1, 12) for m in range(1, 12) if 3 * m % 4 and 4 * k != 3 * m]

    def bound(case: tuple[int, int]) -> float:
        weight, copy = (torch.full((1, 1, 9), math.ldexp(k, -149)) for k in case)
        copied = 0.75 * float(copy.double().norm())
        found = float(drift_length(weight, copy, 0.75))
        return found + difference_error(found, copied)

    def exact(case: tuple[int, int]) -> Any:
        return abs(DIGITS.mpf(case[0]) - DIGITS.mpf(case[1]) * 3 / 4) * 3 / DIGITS.mpf(2) ** 149

    each_is_needed(OFF, {"squares": {(drift, "_vanished"): drift._vanished}}, bound, exact, cases)


@pytest.mark.usefixtures("without_kernels")
def test_the_length_of_a_drift_in_pieces_is_rounded_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pieces' lengths are taken to be exact; added up they are not."""
    monkeypatch.setattr(drift, "_PIECE", 1)

    def bound(seed: int) -> float:
        parts = iter(gauss(seed, 500, dtype=torch.float64).abs())
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(drift, "frobenius_length", lambda _: next(parts))
            zero = torch.zeros(1, 500 * COARSE.height, 1)
            return float(drift_length(zero, zero, 1.0))

    def exact(seed: int) -> Any:
        return length(gauss(seed, 500, dtype=torch.float64))

    each_is_needed(OFF, {"γ": {(drift, "gamma"): gamma}}, bound, exact, range(20))


def test_small_matrices_are_rounded_up() -> None:
    """Of rank one and whole numbers, so that both norms are one number, in every part of what bounds them."""
    stacks = [whole(seed, 1, 40, 1) @ whole(seed + 1, 1, 1, 60) for seed in range(0, 200, 2)]
    on = {"γ of all": {(drift, "gamma"): only(gamma, 2400)}}
    each_is_needed(OFF, on, lambda stack: from_zero(stack)[0], length, stacks)
    on = {
        "γ of columns": {(drift, "gamma"): only(gamma, 60)},
        "γ of rows": {(drift, "gamma"): only(gamma, 40)},
        "γ of squares": {(drift, "gamma"): only(gamma, 1600)},
    }
    each_is_needed(OFF, on, lambda stack: from_zero(stack)[1], length, stacks)


def test_small_matrices_of_two_entries_are_rounded_up() -> None:
    """A quotient, and a handful of operations."""
    stacks = [gauss(seed, 1, 1, 2) for seed in range(200)]
    on = {"quotient": {(drift, "DOUBLE"): DOUBLE}, "one step": {(drift, "UP"): UP}}
    with pytest.MonkeyPatch.context() as patch:
        for place, value in OFF.items():
            patch.setattr(*place, value)
        one_digit = [
            stack for stack in stacks if from_zero(stack)[1] >= length(stack) * (1 - DIGITS.mpf(2) ** -53)
        ]
    each_is_needed(OFF, on, lambda stack: from_zero(stack)[1], length, one_digit)


def test_nothing_is_no_division_by_nothing() -> None:
    found = from_zero(torch.zeros(1, 3, 4))
    assert min(found) >= 0
    assert found == pytest.approx((0.0, 0.0), abs=1e-100)


def test_lengths_of_several_matrices_are_rounded_up() -> None:
    def bound(seed: int) -> float:
        parts = gauss(seed, 2, dtype=torch.float64).abs()
        found = drift._largest([Moments(part[None], lambda values: (values[0], values[0])) for part in parts])
        return found.norms(parts.tolist())[0]

    def exact(seed: int) -> Any:
        return length(gauss(seed, 2, dtype=torch.float64))

    each_is_needed(OFF, {"one step": {(drift, "UP"): UP}}, bound, exact, range(200))


# --- blocks of rows: what their moments say, where rounding took as much as it may ---

UNIT = 2.0**-6


def bounds(values: Sequence[float], unit: float, rows: int = 1, count: int = 2) -> tuple[float, float]:
    return drift._summed(torch.Size((rows, 5)), rows, count, unit, 9, values)


@pytest.fixture
def exaggerated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is lost but what a test says."""
    for place, value in OFF.items():
        monkeypatch.setattr(*place, value)


@pytest.mark.usefixtures("exaggerated")
def test_what_sums_lose_is_added_to_both_norms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one row of length 1 the sum of squares came out as 1 - γ."""
    lost = 2.0**-6
    monkeypatch.setattr(drift, "gamma_single", lambda _: 2 * lost)  # which has as much to spare
    assert min(bounds([1 - lost, 0.0], 0.0)) >= 1


@pytest.mark.usefixtures("exaggerated")
def test_what_entries_and_sums_lose_in_bfloat16_is_added_to_both_norms() -> None:
    """Entries fell by u, so squares by 2u, and their sum was rounded down by u."""
    assert min(bounds([(1 - UNIT) ** 3, 0.0], UNIT)) >= 1 - 1e-15


@pytest.mark.usefixtures("exaggerated")
def test_what_vanished_is_added_to_both_norms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drift, "_vanished", lambda _: 1.0)
    assert min(bounds([0.0, 0.0], 0.0)) >= 1


@pytest.mark.usefixtures("exaggerated")
def test_what_moments_lose_in_float64_is_added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drift, "gamma", lambda _: 2.0**-6)
    assert bounds([(1 - 2.0**-7) ** 2, 0.0], 0.0)[1] >= 1


@pytest.mark.parametrize("norm", [0, 1])
def test_both_norms_are_rounded_up(norm: int) -> None:
    def bound(trace: float) -> float:
        return bounds([trace, 0.0], 0.0)[norm]

    traces = [1 + k / 64 for k in range(64)]
    each_is_needed(OFF, {"one step": {(drift, "UP"): UP}}, bound, DIGITS.sqrt, traces)


@pytest.mark.usefixtures("exaggerated")
def test_what_a_square_loses_is_added(monkeypatch: pytest.MonkeyPatch) -> None:
    """S of rank one has ‖S‖ = ‖S²‖ = 1; the square came out as 1 - γ."""
    monkeypatch.setattr(drift, "gamma_single", lambda _: 2.0**-6)
    assert drift._symmetric_norm([1.0, 1 - 2.0**-6]) >= 1


def test_roundings_of_a_square_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """In float32 S is off by u, so S² by 2u more than by the 36 roundings of a product of native code."""
    monkeypatch.setattr(drift, "gamma_single", lambda terms: float(terms))
    assert drift._symmetric_norm([1.0, 0.0]) ** 2 >= 36 + 2 - 1e-9


def test_a_block_has_no_more_rows_than_there_are() -> None:
    """A trace over 3 rows that are equal: of mean 1/3 and nothing beside it, in a block of 64 rows at most."""
    found = drift._summed(torch.Size((3, 5)), 64, 2, 0.0, 9, [1.0, 0.0])
    assert found[1] >= math.sqrt(Fraction(1, 3))


def test_native_moments_are_off_by_what_native_sums_are() -> None:
    """32 products and four steps; those of torch by as many as there are columns."""
    weight = gauss(0, 1, 70, 80)
    moments = drift_norm(weight, torch.zeros_like(weight), 1.0)
    given = moments.norms
    assert isinstance(given, partial)
    *_, unit, terms = given.args
    assert (unit, terms >= 36) == (0.0, True) if native.kernels is not None else (unit, terms) == (2.0**-8, 80)
