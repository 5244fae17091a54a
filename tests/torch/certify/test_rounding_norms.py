"""What certified norms add for rounding: each term by itself, where computed norms are below true ones."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest
import torch
from lipcompile_torch.certify import norms
from lipcompile_torch.certify.norms import (
    EuclideanNorm,
    GramStack,
    LargestNorm,
    frobenius_norms,
    gram_stack,
    matrix_norm,
    normalised,
)
from lipcompile_torch.certify.rounding import UP, gamma
from torch import Tensor

from tests.rounding import DIGITS, Groups, Place, each_is_needed, length, nearly_rank_one, only

OFF: dict[Place, Any] = {(norms, "UP"): 1.0, (norms, "gamma"): lambda _: 0.0}


def gauss(seed: int, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def whole(seed: int, *shape: int) -> Tensor:
    """Small whole numbers: their products, and sums of these, are exact."""
    return torch.randint(-9, 10, shape, generator=torch.Generator().manual_seed(seed)).double()


@pytest.mark.parametrize("terms", [0, 1, 2, 100, 10**6, 10**9])
def test_gamma_is_above_what_theorems_ask_for(terms: int) -> None:
    """√2·γ_2k for complex numbers, with two roundings more: √2·(2k + 4)·u/(1 - (2k + 4)·u) < 4(k + 2)·u."""
    unit = Fraction(1, 2**53)
    most = 2 * terms + 4
    assert Fraction(gamma(terms)) ** 2 >= 2 * (most * unit / (1 - most * unit)) ** 2


ALONE: list[tuple[int, dict[Place, Any]]] = [(2, {(norms, "UP"): UP}), (3000, {(norms, "gamma"): gamma})]


@pytest.mark.parametrize(("entries", "on"), ALONE)
def test_euclidean_norms_are_rounded_up(entries: int, on: dict[Place, Any]) -> None:
    vectors = [gauss(seed, entries) for seed in range(20)]
    each_is_needed(OFF, {"it": on}, lambda x: EuclideanNorm(x).bound, length, vectors)
    each_is_needed(OFF, {"it": on}, lambda x: LargestNorm(x[None]).bound, length, vectors)


@pytest.mark.parametrize("norm", [EuclideanNorm, LargestNorm, matrix_norm])
def test_a_bound_is_a_limit_that_is_kept(norm: Any) -> None:
    found = norm(gauss(0, 1, 5))
    assert found.at_most(found.coarse)
    assert not found.at_most(found.bound * (1 - 1e-4))


def test_the_longest_row_counts() -> None:
    table = torch.tensor([[3.0, 4.0], [1.0, 0.0], [0.0, 2.0]])
    for rows in (table, table.flip(0)):
        assert 5 <= LargestNorm(rows).bound <= 5 + 1e-12
    assert LargestNorm(torch.tensor([[1.0], [-7.0], [2.0]])).bound == 7


@pytest.mark.parametrize("norm", [EuclideanNorm, LargestNorm, matrix_norm])
def test_a_bound_below_the_normal_numbers_is_rounded_up(norm: Any) -> None:
    """The norm of two equal numbers is √2 times one; of 5·2^-1074 it is 7.07·2^-1074, which rounds to 7."""
    for count in range(1, 60):
        entries = torch.full((1, 2), math.ldexp(count, -1074), dtype=torch.float64)
        assert Fraction(norm(entries).bound) ** 2 >= 2 * Fraction(count, 2**1074) ** 2


def test_the_bound_of_a_matrix_of_one_row_is_rounded_up_below_the_normal_numbers() -> None:
    for count in range(1, 60):
        stack = GramStack(torch.full((1, 1, 1), 2.0, dtype=torch.float64), 0.0, 0.0, math.ldexp(count, -1074))
        assert Fraction(stack.bound) ** 2 >= 2 * Fraction(count, 2**1074) ** 2


def test_the_frobenius_norm_of_a_matrix_in_pieces_is_rounded_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one piece its own rounding counts, of pieces of one number that of their sum."""

    def coarse(matrix: Tensor) -> float:
        return matrix_norm(matrix).coarse

    rows = [gauss(seed, 1, 3000) for seed in range(20)]
    each_is_needed(OFF, {"γ of all": {(norms, "gamma"): only(gamma, 3000)}}, coarse, length, rows)
    monkeypatch.setattr(norms, "_PIECE", 1)
    monkeypatch.setattr(norms, "_COLUMNS", 3)
    on: Groups = {"γ of pieces": {(norms, "gamma"): only(gamma, 1000)}}
    each_is_needed(OFF, on, coarse, length, rows)
    monkeypatch.setattr(norms, "_COLUMNS", 1)
    on = {"one step": {(norms, "UP"): UP}}
    each_is_needed(OFF, on, coarse, length, [gauss(seed, 1, 2) for seed in range(20)])


def test_a_gram_matrix_that_is_too_small_is_paid_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one row it is a sum of squares, and that is the largest eigenvalue."""
    monkeypatch.setattr(norms, "_eigenvalue_bound", lambda grams, _: float(grams.max()))
    rows = [gauss(seed, 1, 3000) for seed in range(20)]

    def alone(row: Tensor) -> float:
        return gram_stack(row[None], 1.0, float(length(row)) * UP).bound

    each_is_needed(OFF, {"γ": {(norms, "gamma"): gamma}}, alone, length, rows)
    each_is_needed(OFF, {"γ": {(norms, "gamma"): gamma}}, lambda row: alone(row.mT), length, rows)
    on = {"γ": {(norms, "gamma"): only(gamma, 3001)}}  # one piece

    def of_matrix(row: Tensor) -> float:
        stack = next(matrix_norm(row).descriptions())
        return stack.bound

    monkeypatch.setattr(norms, "_PIECE", 3000)
    each_is_needed(OFF, on, of_matrix, length, rows)


@pytest.mark.parametrize("shape", [(2, 900), (900, 2)])
def test_the_error_of_a_gram_matrix_is_that_of_long_sums(shape: tuple[int, int]) -> None:
    """A sum of 900 products is off by 900·u of the sum of their moduli, u = 2^-53, of which ‖W‖_F² = 4 is one."""
    least = 900 * Fraction(1, 2**53) * 4
    assert Fraction(gram_stack(torch.zeros(1, *shape, dtype=torch.float64), 1.0, 2.0).gram_error) >= least


FOUND = [(1.0, 3.0, 5.0, 0.1), (2.0, 0.0, 0.0, 0.7), (7.0, 1e-3, 0.3, 1.1), (0.3, 0.1, 1e-3, 3.7)]
FOUND += [(k / 7, k / 11, k / 13, k / 17) for k in range(1, 60)]


def test_a_bound_is_made_of_all_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """factor·(√(λ + gram_error) + map_error), rounded up."""
    monkeypatch.setattr(norms, "_eigenvalue_bound", lambda grams, _: float(grams.max()))

    def bound(parts: tuple[float, float, float, float]) -> float:
        largest, gram_error, map_error, factor = parts
        return GramStack(torch.full((1, 1, 1), largest, dtype=torch.float64), gram_error, map_error, factor).bound

    def exact(parts: tuple[float, float, float, float]) -> Any:
        largest, gram_error, map_error, factor = map(DIGITS.mpf, parts)
        return factor * (DIGITS.sqrt(largest + gram_error) + map_error)

    each_is_needed({(norms, "UP"): 1.0}, {"one step": {(norms, "UP"): UP}}, bound, exact, FOUND)


def test_what_is_certified_to_be_at_most_a_limit_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proof that λ ≤ t must give factor·(√(t + gram_error) + map_error) ≤ limit: t is rounded down."""
    tried: list[float] = []

    def proved(grams: Tensor, limit: float) -> Tensor:
        tried.append(limit)
        return grams[:0]

    monkeypatch.setattr(norms, "_not_certified", proved)

    def least_room(parts: tuple[float, float, float, float]) -> float:
        """Return how far the limit is above what was proved; a negative number would be a false proof."""
        share, gram_error, map_error, factor = parts
        limit = factor * (math.sqrt(share + gram_error) + map_error)
        stack = GramStack(torch.zeros(1, 1, 1, dtype=torch.float64), gram_error, map_error, factor)
        if not stack.at_most(limit):
            return 0.0
        exact = DIGITS.mpf(factor) * (DIGITS.sqrt(DIGITS.mpf(tried[-1]) + gram_error) + map_error)
        return float(DIGITS.mpf(limit) - exact)

    # Next to nothing is left of the limit, and of its square.
    near = [(s * t, 1.0 + t, 0.0, 0.3 + t) for s in (1e-9, 1e-7, 1.0) for _, _, t, _ in FOUND]
    near += [(s * t, 0.0, 1.0 + t, 0.3 + t) for s in (1e-9, 1e-7, 1.0) for _, _, t, _ in FOUND]
    cases = [*near, *FOUND]
    each_is_needed({(norms, "UP"): 1.0}, {"both": {(norms, "UP"): UP}}, least_room, lambda _: 0, cases)


@pytest.mark.parametrize("size", [4, 10])
def test_a_factorisation_that_should_not_end_proves_nothing(size: int) -> None:
    """τI - G is not positive for τ just below an eigenvalue, but with rounding Cholesky may run to its end."""
    ended = 0
    for seed in range(100):
        rows, eigenvalue = nearly_rank_one(gauss(seed, size).tolist())
        grams, limit = torch.tensor([rows], dtype=torch.float64), float(eigenvalue)
        while limit >= eigenvalue:
            limit = math.nextafter(limit, 0)
        shifted = limit * torch.eye(size, dtype=torch.float64) - grams
        ended += int(torch.linalg.cholesky_ex(shifted).info) == 0
        assert len(norms._not_certified(grams, limit)) == 1
        assert len(norms._not_certified(grams, limit * (1 + 1e-9))) == 0
    assert ended


STACK = torch.stack([torch.eye(3, dtype=torch.float64) * k for k in (1, 5, 2)])


def test_without_a_proof_the_largest_frobenius_norm_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(norms, "_not_certified", lambda grams, _: grams)
    assert norms._eigenvalue_bound(STACK, 5.0) == pytest.approx(5 * math.sqrt(3))


def test_after_a_guess_that_is_too_low_eigenvalues_of_all_are_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(norms, "guess_eigenvalue", lambda _: 0.5)
    assert 5 <= norms._eigenvalue_bound(STACK, 0.5) <= 5 * (1 + 1e-8)


def test_a_limit_that_is_not_a_number_proves_nothing() -> None:
    assert len(norms._not_certified(STACK, math.nan)) == 3


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_frobenius_norms_of_gram_matrices_are_rounded_up(dtype: torch.dtype) -> None:
    matrices = [gauss(seed, 40, 40, dtype=dtype) for seed in range(10)]

    def true(matrix: Tensor) -> Any:
        return length(torch.view_as_real(matrix) if matrix.is_complex() else matrix)

    off = {(norms, "gamma"): lambda _: 0.0}
    on = {"γ": {(norms, "gamma"): gamma}}
    each_is_needed(off, on, lambda matrix: float(frobenius_norms(matrix[None])), true, matrices)


def test_the_power_above_is_that_of_the_largest_entry() -> None:
    for entries in ([-8.0, 1.0], [1.0, 8.0], [-8.0, -9.0]):
        found, power = normalised(torch.tensor(entries))
        assert power == 16
        assert found.tolist() == [entry / 16 for entry in entries]
