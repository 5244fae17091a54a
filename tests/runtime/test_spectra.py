"""Gram matrices of a kernel at many frequencies, one in each lane: what native code computes of each of them."""

from __future__ import annotations

import math

import pytest
import torch
from lipcompile_torch.runtime import native
from lipcompile_torch.runtime.spectra import Transform, _ByTorch, transform_bound
from torch import Tensor

pytestmark = pytest.mark.skipif(native.kernels is None, reason="the package was installed without a compiler")

SHAPES = [(1, 1, 1), (1, 7, 3), (2, 2, 9), (3, 5, 9), (4, 4, 1), (5, 9, 25), (31, 34, 9), (33, 64, 4), (66, 70, 9)]
"""Rows, columns and positions: around tiles of 4 × 2, and panels of 32."""


def random_transform(groups: int, rows: int, columns: int, positions: int, frequencies: int) -> Transform:
    torch.manual_seed(rows * columns + positions)
    angles = torch.rand(frequencies, positions, dtype=torch.float64) * 2 * math.pi
    return Transform(torch.randn(groups, rows, columns, positions), angles)


def exact_grams(transform: Transform) -> Tensor:
    """[groups·N, n, n] in complex128: groups one after the other, as lanes have them."""
    waves = torch.polar(torch.ones_like(transform.angles), transform.angles)
    maps = torch.einsum("grcp,np->gnrc", transform.kernels.to(torch.complex128), waves).flatten(0, 1)
    return maps @ maps.mH if maps.shape[1] <= maps.shape[2] else (maps.mH @ maps).mT


def spectra_of(transform: Transform) -> native.Spectra:
    found = native.spectra(transform.kernels, *transform.waves())
    assert found is not None
    return found


def grams_of(spectra: native.Spectra, groups: int, frequencies: int) -> Tensor:
    """The lower triangles, of frequencies that were asked for, [groups·N, n, n]."""
    rows = spectra._size[1]
    entries = spectra._grams.permute(0, 3, 1, 2).reshape(groups, -1, spectra._grams.shape[1], 2)
    entries = entries[:, :frequencies].flatten(0, 1).double()
    found = torch.zeros(len(entries), rows, rows, dtype=torch.complex128)
    i, j = torch.tril_indices(rows, rows)
    found[:, i, j] = torch.complex(entries[..., 0].contiguous(), entries[..., 1].contiguous())
    return found


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("groups", "frequencies"), [(1, 16), (1, 1), (3, 37)])
def test_gram_matrices_are_off_by_no_more_than_is_added_for_it(
    shape: tuple[int, int, int], groups: int, frequencies: int
) -> None:
    for rows, columns in {shape[:2], shape[1::-1]}:
        transform = random_transform(groups, rows, columns, shape[2], frequencies)
        exact, found = exact_grams(transform), grams_of(spectra_of(transform), groups, frequencies)
        square = float(exact.diagonal(dim1=1, dim2=2).real.sum(1).max())
        moduli = float(transform.kernels.double().square().sum((1, 2, 3)).max()) * shape[2]
        allowed = (4 * (max(rows, columns) + 2) * square + 2 * 8 * (shape[2] + 2) * moduli) * 2.0**-24
        lower = exact.tril()
        lower.diagonal(dim1=1, dim2=2).imag.zero_()
        found.diagonal(dim1=1, dim2=2).imag.zero_()  # nothing reads it
        assert float((lower - found).abs().max()) <= allowed


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("threads", [1, 2])
def test_each_matrix_is_proved_by_itself(shape: tuple[int, int, int], threads: int) -> None:
    """Those below a limit are dropped, whatever the others beside them are, and those above it never."""
    rows, columns, positions = shape
    transform = random_transform(2, rows, columns, positions, 24)
    largest = torch.linalg.eigvalsh(exact_grams(transform))[:, -1]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for quantile in (0.0, 0.3, 0.7, 1.0):
            limit = float(largest.quantile(quantile)) * (1 + 1e-3)
            spectra = spectra_of(transform)
            spectra.prove(limit)
            left = spectra._open.reshape(2, -1)[:, :24].flatten() > 0
            assert bool(left[largest > limit * (1 + 2e-4)].all())
            assert not bool(left[largest < limit * (1 - 2e-4)].any())
        assert spectra.are_proved()
    finally:
        torch.set_num_threads(before)


def test_what_is_proved_stays_proved_and_what_is_left_is_tried_again() -> None:
    transform = random_transform(1, 6, 6, 9, 40)
    largest = torch.linalg.eigvalsh(exact_grams(transform))[:, -1].sort().values
    spectra = spectra_of(transform)
    for place in (10, 30, 5):
        spectra.prove(float(largest[place - 1] + largest[place]) / 2)
        left = spectra._open.flatten()[:40].sum()
        assert int(left) == 40 - max(place, 30 if place == 5 else 0)
    assert spectra.guess() == pytest.approx(float(largest[-1]), rel=1e-4)
    assert not spectra.are_proved()


@pytest.mark.usefixtures("passes")
@pytest.mark.parametrize("shape", SHAPES)
def test_the_largest_trace_is_that_of_all_matrices(shape: tuple[int, int, int]) -> None:
    transform = random_transform(2, *shape, 20)
    traces = exact_grams(transform).diagonal(dim1=1, dim2=2).real.sum(1)
    spectra = spectra_of(transform) if native.kernels is not None else _ByTorch(transform.maps())
    assert spectra.largest_trace() == pytest.approx(float(traces.max()), rel=1e-5)


def test_traces_are_those_of_what_is_factorised() -> None:
    transform = random_transform(2, 5, 8, 9, 20)
    grams = exact_grams(transform)
    limit = 2 * float(torch.linalg.eigvalsh(grams).max())
    expected = float((5 * limit - grams.diagonal(dim1=1, dim2=2).real.sum(-1)).max())
    spectra = spectra_of(transform)
    assert spectra.prove(limit) == pytest.approx(expected, rel=1e-5)
    assert spectra.are_proved()
    assert spectra.prove(limit) == 0.0  # nothing was left


@pytest.mark.parametrize("shape", SHAPES)
def test_guesses_are_near(shape: tuple[int, int, int]) -> None:
    """All matrices are looked at."""
    transform = random_transform(2, *shape, 40)
    true = float(torch.linalg.eigvalsh(exact_grams(transform)).max())
    assert true * 0.99 <= spectra_of(transform).guess() <= true * 1.0001


@pytest.mark.parametrize("size", [1e-6, 1e-10, 1e-13, 1e-16, 1e-19, 1e-30])
def test_guesses_are_near_beside_matrices_whose_squares_vanish(size: float) -> None:
    """Waves that cancel leave what sin(π) is rounded to; what is left of it after a step is no direction."""
    kernels = torch.ones(1, 6, 9, 1).expand(-1, -1, -1, 2) / 3
    angles = torch.tensor([[0.0, 0.0], [0.0, math.pi]], dtype=torch.float64)
    small = random_transform(1, 6, 9, 2, 2).kernels * size
    for kernel in (kernels, torch.cat([kernels, small])):
        assert spectra_of(Transform(kernel, angles)).guess() == pytest.approx(24.0, rel=1e-4)
    true = float(torch.linalg.eigvalsh(exact_grams(Transform(small, angles))).max())
    assert spectra_of(Transform(small, angles)).guess() <= true * 1.001 + 1e-37


def test_a_guess_finds_what_is_large_in_any_lane() -> None:
    """Of 200 frequencies one has a matrix that is not small."""
    angles = torch.zeros(200, 2, dtype=torch.float64)
    angles[:, 1] = math.pi  # K₀ - K₁, but at one frequency, the last of a block
    angles[127, 1] = 0.0
    kernel = torch.randn(1, 6, 9, 1, generator=torch.Generator().manual_seed(0)).expand(-1, -1, -1, 2)
    true = 4 * float(torch.linalg.svdvals(kernel[0, :, :, 0].double()).max()) ** 2
    spectra = spectra_of(Transform(kernel, angles))
    assert spectra.guess() == pytest.approx(true, rel=1e-4)
    spectra.prove(true / 2)
    assert spectra._open.flatten().nonzero().tolist() == [[127]]


@pytest.mark.parametrize("shape", SHAPES)
def test_bounds_are_those_of_torch_but_for_rounding(
    shape: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    transform = random_transform(2, *shape, 20)
    transform = Transform(transform.kernels / transform.kernels.abs().max() * 0.9, transform.angles)
    true = math.sqrt(float(torch.linalg.eigvalsh(exact_grams(transform)).max()))
    found = transform_bound(transform)
    monkeypatch.setattr(native, "kernels", None)
    by_torch = transform_bound(transform)
    assert true * (1 - 1e-5) <= found <= true * 1.01  # but for the rounding of the transform
    assert true * (1 - 1e-5) <= by_torch <= true * 1.06


def test_tensors_that_are_no_memory_are_left_to_torch() -> None:
    kernels, angles = torch.randn(1, 2, 3, 4), torch.rand(5, 4, dtype=torch.float64)
    waves = Transform(kernels, angles).waves()
    assert native.spectra(kernels.double(), *waves) is None
    assert native.spectra(kernels.to("meta"), *waves) is None
    transposed = kernels.transpose(2, 3).contiguous().transpose(2, 3)
    one, other = native.spectra(kernels, *waves), native.spectra(transposed, *waves)
    assert one is not None
    assert other is not None
    assert torch.equal(one._grams, other._grams)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_what_new_tensors_are_by_default_does_not_matter(dtype: torch.dtype) -> None:
    """Native code takes float32: of half as many bytes it would write past the end."""
    transform = random_transform(2, 40, 48, 9, 37)
    expected = transform_bound(transform)
    torch.set_default_dtype(dtype)
    try:
        assert {t.dtype for t in vars(spectra_of(transform)).values() if isinstance(t, Tensor)} == {
            torch.float32,
            torch.uint8,
        }
        assert transform_bound(transform) == expected
    finally:
        torch.set_default_dtype(torch.float32)
    with torch.device("meta"):
        assert transform_bound(transform) == expected


def test_tensors_that_torch_transforms_are_left_to_it() -> None:
    transform = random_transform(1, 3, 4, 9, 5)
    found: list[float] = []

    def bounded(kernels: Tensor) -> Tensor:
        found.append(transform_bound(Transform(kernels.detach(), transform.angles)))
        return kernels.sum()

    torch.func.grad(bounded)(transform.kernels)
    torch.vmap(lambda _: bounded(transform.kernels))(torch.zeros(2))
    assert found == pytest.approx([transform_bound(transform)] * 2, rel=1e-2)
