"""Gram iteration: never below the largest eigenvalue, as near as its formula says, at any scale."""

from __future__ import annotations

import pytest
import torch
from lipcompile_torch.certify.gram import gram_iteration
from torch import Tensor


def exact(grams: Tensor) -> Tensor:
    largest: Tensor = torch.linalg.eigvalsh(grams).amax(dim=1)
    return largest


def gaussian(count: int, size: int, dtype: torch.dtype = torch.float64, scale: float = 1.0) -> Tensor:
    maps = torch.randn(count, size, size, dtype=dtype, generator=torch.Generator().manual_seed(size)) * scale
    return maps @ maps.mH


@pytest.mark.parametrize("size", [1, 2, 5, 40])
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_it_falls_to_the_eigenvalue_from_above(size: int, dtype: torch.dtype) -> None:
    grams = gaussian(6, size, dtype)
    ratios = [gram_iteration(grams, steps) / exact(grams) for steps in range(12)]
    for steps, ratio in enumerate(ratios):
        assert bool((ratio >= 1 - 1e-14).all())  # what rounding of the oracle may take
        assert bool((ratio <= size ** (0.5 / 2**steps) * (1 + 1e-10)).all())
    assert float(ratios[-1].max()) <= 1 + 1e-3


def test_an_orthogonal_matrix_is_its_worst_case() -> None:
    """All eigenvalues are 1: ‖I‖_F = √n, so the bound is n^(1/(2·2^t)) exactly, up to rounding."""
    eye = torch.eye(64, dtype=torch.float64)[None]
    for steps in range(6):
        assert float(gram_iteration(eye, steps)) == pytest.approx(64 ** (0.5 / 2**steps), rel=1e-10)


@pytest.mark.parametrize("scale", [1e-150, 1e-70, 1e70, 1e150])
def test_powers_neither_vanish_nor_overflow(scale: float) -> None:
    """Unscaled, a matrix of norm 0.3 is 0 in float32 after six squarings: no projection, and no noise."""
    grams = gaussian(3, 8, scale=scale)
    bound = gram_iteration(grams, 12)
    assert bool(((bound >= exact(grams) * (1 - 1e-14)) & (bound <= exact(grams) * (1 + 1e-3))).all())


def test_zero_is_zero_beside_others() -> None:
    grams = torch.cat([torch.zeros(1, 4, 4, dtype=torch.float64), gaussian(1, 4)])
    bounds = gram_iteration(grams)
    assert float(bounds[0]) == 0
    assert float(bounds[1]) >= float(exact(grams)[1])


def test_what_is_not_finite_is_refused() -> None:
    with pytest.raises(ValueError, match="finite"):
        gram_iteration(torch.full((1, 2, 2), torch.nan, dtype=torch.float64))
