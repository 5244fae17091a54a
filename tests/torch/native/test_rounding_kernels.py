"""Native code rounds no more often than its bounds count: what a second rounding would lose is there."""

from __future__ import annotations

import math

import pytest
import torch
from lipcompile_torch import native
from lipcompile_torch.certify.single_precision import Transform
from lipcompile_torch.nn.functional import clip_norm
from torch import Tensor

pytestmark = pytest.mark.skipif(native.kernels is None, reason="the package was installed without a compiler")

# (1 + 2^-12)² - (1 + 2^-11) = 2^-24, of which nothing is left if the square is rounded to float32 first.
NEAR, ITS_SQUARE, LEFT = 1 + 2.0**-12, 1 + 2.0**-11, 2.0**-24


def two_rows(columns: int, second: int) -> Tensor:
    """Of which the product is 2^-24: in columns 0 and `second`, that are added up one after the other."""
    rows = torch.zeros(2, columns)
    rows[0, 0], rows[1, 0] = -ITS_SQUARE, 1.0
    rows[:, second] = NEAR
    return rows


@pytest.mark.parametrize("lane", range(16))
def test_products_of_rows_are_fused_with_their_sums(lane: int) -> None:
    rows = torch.zeros(2, 64)
    rows[:, lane : lane + 40] = two_rows(40, 16)[:, : 64 - lane]
    found = native.gram_matrix(rows)
    assert found is not None
    assert float(found[0, 1]) == float(found[1, 0]) == LEFT


def test_products_at_frequencies_are_fused_with_their_sums() -> None:
    """Rows are real, and one of them times i, of which the product is imaginary."""
    kernels = torch.zeros(1, 2, 2, 2)
    kernels[0, 0, :, 0], kernels[0, 1, :, 1] = two_rows(2, 1)
    both = Transform(kernels, torch.zeros(1, 2, dtype=torch.float64))
    turned = Transform(kernels, torch.tensor([[0.0, math.pi / 2]], dtype=torch.float64))
    for transform, part in ((both, 0), (turned, 1)):
        spectra = native.spectra(transform.kernels, *transform.waves())
        assert spectra is not None
        assert abs(float(spectra._grams[0, 1, part, 0])) == LEFT  # (1, 0) of the lower triangle


@pytest.mark.parametrize("turned", [False, True])
def test_sums_over_positions_are_fused(turned: bool) -> None:
    """With waves that are no cosines: -(1 + 2^-11) times 1, and the square of 1 + 2^-12."""
    kernels = torch.tensor([-ITS_SQUARE, NEAR]).reshape(1, 1, 1, 2)
    waves, nothing = torch.tensor([[1.0, NEAR]]), torch.zeros(1, 2)
    spectra = native.spectra(kernels, *((nothing, waves) if turned else (waves, nothing)))
    assert spectra is not None
    assert spectra.largest_trace() == LEFT**2


def test_differences_are_rounded_once() -> None:
    for dtype, share, copied in ((torch.float32, NEAR, NEAR), (torch.float16, ITS_SQUARE, 1.0)):
        weight = torch.full((1, 70, 70), ITS_SQUARE + (0.0 if dtype == torch.float32 else 2.0**-23))
        copy = torch.full((1, 70, 70), copied, dtype=dtype)
        found = native.difference_norm(weight, copy, share)
        left = LEFT if dtype == torch.float32 else 2.0**-23
        assert found is not None
        assert float(found) == pytest.approx(70 * left, rel=1e-12)
    half = 1 + 2.0**-10  # (1 + 2^-10)·(1 + 2^-14) = 1 + 2^-10 + 2^-14 + 2^-24
    weight = torch.full((1, 70, 70), 1 + 2.0**-10 + 2.0**-14)
    found = native.difference_norm(weight, torch.full((1, 70, 70), half, dtype=torch.float16), 1 + 2.0**-14)
    assert found is not None
    assert float(found) == pytest.approx(70 * 2.0**-24, rel=1e-12)


def test_the_smallest_numbers_of_half_precision_are_read() -> None:
    copy = torch.full((1, 4, 4), 2.0**-24, dtype=torch.float16)
    found = native.difference_norm(torch.zeros(1, 4, 4), copy, 1.0)
    assert found is not None
    assert float(found) == 4 * 2.0**-24


def test_chunks_of_columns_are_added_up_in_float64() -> None:
    """1, 2^-24 and 2^-30 round up to 1 + 2^-23, but one after the other in float32 to 1."""
    rows = torch.zeros(1, 1536)
    rows[0, 0], rows[0, 512], rows[0, 1024] = 1.0, 2.0**-12, 2.0**-15
    found = native.gram_matrix(rows)
    assert found is not None
    assert float(found) == 1 + 2.0**-23
    moments = native.gram_moments(rows, torch.zeros_like(rows), 1.0, 64, 2)
    assert moments is not None
    assert float(moments[0, 0]) == 1 + 2.0**-24 + 2.0**-30


def test_moments_of_exact_gram_matrices_are_those_of_float64() -> None:
    """Of whole numbers, whose products and their sums are exact in float32."""
    rows = torch.randint(-60, 60, (40, 500), generator=torch.Generator().manual_seed(0)).float()
    moments = native.gram_moments(rows, torch.zeros_like(rows), 1.0, 64, 3)
    gram = rows.double() @ rows.double().mT
    trace = gram.diagonal().sum()
    rest = gram - torch.eye(40) * trace / 40
    length = torch.linalg.matrix_norm(rest)
    square = (rest / length) @ (rest / length)
    assert moments is not None
    assert float(moments[0, 0]) == float(trace)
    assert float(moments[0, 1]) == pytest.approx(float(length), rel=1e-13)
    assert float(moments[0, 2]) == pytest.approx(float(torch.linalg.matrix_norm(square)), rel=1e-5)


def test_nothing_divided_by_nothing_is_nothing() -> None:
    zero = torch.zeros(3, 70)
    moments = native.gram_moments(zero, zero, 1.0, 64, 3)
    assert moments is not None
    assert moments.tolist() == [[0.0, 0.0, 0.0]]


def test_traces_are_added_up_in_float64() -> None:
    """Of 1 - G, G of 0 and of (1 - 2^-12)²: 1 + 2^-11 - 2^-24, which float32 does not hold."""
    kernels = torch.zeros(1, 2, 2, 1)
    kernels[0, 1, 1, 0] = 1 - 2.0**-12
    transform = Transform(kernels, torch.zeros(1, 1, dtype=torch.float64))
    spectra = native.spectra(kernels, *transform.waves())
    assert spectra is not None
    assert spectra.prove(1.0) == 1 + 2.0**-11 - 2.0**-24


@pytest.mark.parametrize("count", [1, 16, 17, 40, 2**14 * 3 + 5])
def test_squares_and_their_sums_are_those_of_float64(count: int) -> None:
    """(1 + 2^-12)² takes 25 bits, and with many small ones beside it a sum takes more."""
    row = torch.full((count,), 2.0**-13)
    for place in {0, count - 1, count // 2}:
        row[place] = NEAR
        exact = (count - 1) * 2.0**-26 + NEAR * NEAR
        found = native.norm(row)
        assert found is not None
        assert float(found) == pytest.approx(math.sqrt(exact), rel=1e-15)
        drift = native.difference_norm(row, torch.zeros_like(row), 1.0)
        assert drift is not None
        assert float(drift) == pytest.approx(math.sqrt(exact), rel=1e-15)
        row[place] = 2.0**-13


def test_a_row_at_the_limit_keeps_its_bits() -> None:
    """3 and 4 have length 5: the limit as it is measured; and just above it they are scaled."""
    assert native.kernels is not None
    row = torch.tensor([[3.0, 4.0]])
    for limit, kept in ((5.0, True), (math.nextafter(5.0, 0), False)):
        found = native.clipped(row, limit, 4.0)
        assert found is not None
        assert torch.equal(found, row) is kept
    longer = torch.tensor([[3.0, 4.0, 1e-6]])  # by 1e-13, which float32 does not tell
    found = native.clipped(longer, 5.0, 4.0)
    assert found is not None
    assert float(found.norm()) < 4.1


@pytest.mark.parametrize("radius", [2.0**-100, 2.0**-126, 3 * 2.0**-140])
def test_rows_so_long_that_factors_are_subnormal_land_in_the_ball(radius: float) -> None:
    """Factors below 2^-126 are multiples of 2^-149: to the nearest they may be too large."""
    for k in range(40):
        row = torch.tensor([[(1 + k / 40) * 2.0**30, 2.0**29]])
        found = clip_norm(row, radius).double()
        assert float(torch.linalg.vector_norm(found)) <= radius
        if radius == 2.0**-100:  # of factors there are a million; else rows may become zero
            assert float(torch.linalg.vector_norm(found)) >= radius * (1 - 1e-5)
