"""Certified norms against the dense operator: never below it, and close to it."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray

from lipcompile.diagnostics import Refusal
from lipcompile.ops import norms
from lipcompile.ops.counting import Mode, Window, windows_of

Array = NDArray[np.float64]


def operator(kernel: Array, windows: tuple[Window, ...], groups: int) -> Array:
    """The dense matrix of a convolution, entry by entry from the definition."""
    filters, channels = kernel.shape[:2]
    sizes, outs = [w.size for w in windows], [w.outputs for w in windows]
    matrix = np.zeros((filters, *outs, channels * groups, *sizes))
    pairs = [tuple(w.pairs()) for w in windows]
    for combination in product(*pairs):
        out, tap, entry = (tuple(axis) for axis in zip(*combination, strict=True))
        for f in range(filters):
            first = f // (filters // groups) * channels
            for c in range(channels):
                matrix[(f, *out, first + c, *entry)] += kernel[(f, c, *tap)]
    return matrix.reshape(filters * math.prod(outs), -1)


def random_windows(rng: np.random.Generator, rank: int, mode: Mode) -> tuple[Window, ...]:
    while True:
        draw = [
            (
                int(rng.integers(1, 8 if rank < 2 else 5)),
                int(rng.integers(1, 5)),
                int(rng.integers(1, 4)),
                int(rng.integers(1, 3)),
                (int(rng.integers(0, 4)), int(rng.integers(0, 4))),
            )
            for _ in range(rank)
        ]
        try:
            sizes, kernel, stride, dilation, padding = zip(*draw, strict=True)
            return windows_of(sizes, kernel, stride, dilation, padding, mode)
        except Refusal:
            continue


@pytest.mark.parametrize("mode", ["zeros", "circular", "reflect", "replicate"])
@pytest.mark.parametrize("rank", [1, 2])
def test_a_convolution_is_never_above_its_bound(rank: int, mode: Mode) -> None:
    rng = np.random.default_rng(rank)
    ratios = []
    for _ in range(80):
        windows = random_windows(rng, rank, mode)
        groups = int(rng.integers(1, 3))
        shape = (groups * int(rng.integers(1, 4)), int(rng.integers(1, 4)), *(w.kernel for w in windows))
        kernel = rng.standard_normal(shape) if rng.random() < 0.7 else np.ones(shape)
        true = np.linalg.norm(operator(kernel, windows, groups), 2)
        bound = float(norms.convolution_norm(kernel, windows, groups).bound)
        assert bound >= true * (1 - 1e-12)
        if true > 0:
            ratios.append(bound / true)
    if mode == "zeros":
        assert np.median(ratios) < (1.15 if rank == 1 else 1.5)


def test_three_axes() -> None:
    rng = np.random.default_rng(0)
    windows = windows_of((3, 4, 3), (2, 2, 3), (1, 2, 1), (1, 1, 1), ((1, 0), (0, 1), (1, 1)))
    kernel = rng.standard_normal((2, 2, 2, 2, 3))
    true = np.linalg.norm(operator(kernel, windows, 1), 2)
    assert true <= float(norms.convolution_norm(kernel, windows).bound) <= 1.6 * true


@pytest.mark.parametrize("mode", ["zeros", "circular"])
def test_an_estimate_is_near_the_bound_from_below(mode: Mode) -> None:
    """Twelve steps find a largest singular value of at most twelve exactly, but for rounding."""
    rng = np.random.default_rng(3)
    for _ in range(20):
        windows = random_windows(rng, 2, mode)
        groups = int(rng.integers(1, 3))
        kernel = rng.standard_normal((groups * int(rng.integers(1, 4)), 3, *(w.kernel for w in windows)))
        bound = float(norms.convolution_norm(kernel, windows, groups).bound)
        assert 0.999 * bound <= float(norms.convolution_estimate(kernel, windows, groups)) <= bound


@pytest.mark.parametrize("scale", [1e-300, 1.0, 1e300])
def test_an_estimate_of_a_matrix_is_near_its_norm_from_below(scale: float) -> None:
    matrix = np.random.default_rng(0).standard_normal((200, 300))
    true = float(np.linalg.svd(matrix, compute_uv=False)[0])
    assert 0.95 * true <= float(norms.spectral_estimate(scale * matrix)) / scale <= true * (1 + 1e-12)
    assert norms.spectral_estimate(0 * matrix) == 0


def test_the_circular_grid_of_the_input_would_be_too_small() -> None:
    """A difference kernel on a short axis: the grid n misses the worst frequency, the grid n + k - 1 does not."""
    kernel = np.array([[[1.0, -1.0]]])
    windows = windows_of((3,), (2,), (1,), (1,), ((1, 1),))
    true = np.linalg.norm(operator(kernel, windows, 1), 2)
    circular = max(abs(1 - np.exp(2j * np.pi * w / 3)) for w in range(3))
    assert circular < true <= float(norms.convolution_norm(kernel, windows).bound)


@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (30, 7), (64, 64), (200, 300)])
def test_a_matrix_is_never_above_its_bound_and_close(shape: tuple[int, int]) -> None:
    matrix = np.random.default_rng(0).standard_normal(shape)
    true = float(np.linalg.svd(matrix, compute_uv=False)[0])
    assert true <= float(norms.spectral_norm(matrix).bound) <= true * (1 + 1e-7)


def test_a_wide_gap_free_matrix_beyond_the_dense_solver() -> None:
    rng = np.random.default_rng(1)
    basis = np.linalg.qr(rng.standard_normal((500, 500)))[0]
    assert 1 <= float(norms.spectral_norm(basis).bound) <= 1 + 1e-5
    gaussian = rng.standard_normal((450, 450))
    true = float(np.linalg.norm(gaussian, 2))
    assert true <= float(norms.spectral_norm(gaussian).bound) <= true * 1.01


def test_an_exactly_known_norm() -> None:
    """‖[[3, 0], [4, 0]]‖ = 5, which no bound may undercut, not even by a rounding."""
    five = norms.spectral_norm(np.array([[3.0, 0.0], [4.0, 0.0]])).bound
    assert 5 <= five <= Fraction(5) * (1 + Fraction(1, 10**7))
    assert 5 <= norms.euclidean_norm(np.array([3.0, 4.0])) <= Fraction(5) * (1 + Fraction(1, 10**7))


@pytest.mark.parametrize("scale", [1e-300, 1e-40, 1e30, 1e300])
def test_extreme_scales_neither_vanish_nor_overflow(scale: float) -> None:
    matrix = np.array([[3.0, 0.0], [4.0, 0.0]]) * scale
    bound = norms.spectral_norm(matrix).bound
    assert Fraction(4.9999999) * Fraction(scale) < bound < Fraction(5.000001) * Fraction(scale)
    assert norms.euclidean_norm(matrix) >= Fraction(4.9999999) * Fraction(scale)


def test_zero_has_norm_zero_and_nan_none() -> None:
    windows = windows_of((4,), (3,), (1,), (1,), ((1, 1),))
    assert norms.spectral_norm(np.zeros((3, 2))).bound == 0
    assert norms.euclidean_norm(np.zeros(0)) == 0
    assert norms.convolution_norm(np.zeros((2, 1, 3)), windows).bound == 0
    for bad in (np.nan, np.inf):
        with pytest.raises(ValueError, match="not finite"):
            norms.spectral_norm(np.array([[bad]]))


def test_a_kernel_of_another_size_is_refused() -> None:
    windows = windows_of((4,), (3,), (1,), (1,), ((1, 1),))
    with pytest.raises(ValueError, match="does not fit"):
        norms.convolution_norm(np.zeros((2, 1, 2)), windows)


def test_a_failed_guess_costs_tightness_not_truth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(norms, "_guess", lambda _: 1e-3)
    matrix = np.random.default_rng(0).standard_normal((6, 6))
    assert float(norms.spectral_norm(matrix).bound) >= np.linalg.norm(matrix, 2)
