"""Gram matrices of a kernel at many frequencies, one in each lane: what native code computes of each of them."""

from __future__ import annotations

import math

import pytest
import torch
from lipcompile_torch import native
from lipcompile_torch.certify import single_precision
from lipcompile_torch.certify.single_precision import Transform, _ByTorch, _largest_proved, transform_bound
from torch import Tensor

pytestmark = pytest.mark.skipif(native.kernels is None, reason="the package was installed without a compiler")

SHAPES = [(1, 1, 1), (1, 7, 3), (2, 2, 9), (3, 5, 9), (4, 4, 1), (5, 9, 25), (6, 33, 2)]
SHAPES += [(31, 34, 9), (33, 64, 4), (64, 65, 1), (65, 65, 2), (66, 70, 9)]
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


@pytest.mark.parametrize("frequencies", [16, 48])
def test_no_lane_is_forgotten(frequencies: int) -> None:
    """Each in turn has another matrix than all others, which are alike: a larger one, or a smaller one."""
    for place in range(frequencies):
        angles = torch.full((frequencies, 2), math.pi, dtype=torch.float64)
        angles[:, 0] = 0.0
        angles[place, 1] = 0.0
        kernels = torch.eye(3).reshape(1, 3, 3, 1) * torch.tensor([1.0, 0.5])
        spectra = spectra_of(Transform(kernels, angles))  # 3/2 at one place, 1/2 else
        spectra.prove(1.0)
        assert spectra._open.flatten().nonzero().tolist() == [[place]]
        assert not spectra.are_proved()
        opposite = spectra_of(Transform(kernels * torch.tensor([1.0, -1.0]), angles))  # 1/2 there
        assert opposite.prove(4.0) == 3 * (4.0 - 0.25)
        assert opposite.are_proved()


@pytest.mark.parametrize("entry", [math.nan, math.inf, -math.inf, 1e30])
@pytest.mark.parametrize("place", [(0, 0), (2, 1), (3, 4)])
def test_of_what_is_not_finite_nothing_is_proved(entry: float, place: tuple[int, int]) -> None:
    transform = random_transform(3, 4, 5, 2, 16)
    transform.kernels[(1, *place, 0)] = entry
    spectra = spectra_of(transform)
    for limit in (1.0, 1e10, 3e38):
        spectra.prove(limit)
    assert spectra._open.reshape(3, 16).sum(1).tolist() == [0, 16, 0]
    assert transform_bound(transform) == math.inf


class Scripted:
    """Says what it was told to, and notes at what limits a proof was tried."""

    def __init__(self, guess: float, traces: list[float]) -> None:
        self.limits: list[float] = []
        self._guess, self._traces = guess, traces

    def largest_trace(self) -> float:
        return 1.0

    def guess(self) -> float:
        return self._guess

    def prove(self, limit: float) -> float:
        self.limits.append(limit)
        return self._traces.pop(0)

    def are_proved(self) -> bool:
        return not self._traces


@pytest.mark.parametrize("size", [1, 7, 500])
@pytest.mark.parametrize("traces", [[1.0], [9.0, 2.0], [1.0, 5.0, 3.0]])
def test_what_a_factorisation_rounds_is_added(size: int, traces: list[float]) -> None:
    """Also that of one before the last, of which some matrices are left out."""
    for guess in (1.0, 1.0 + 2.0**-26, 1 / 3):
        script = Scripted(guess, list(traces))
        found = _largest_proved(script, size)
        assert len(script.limits) == len(traces)
        assert all(limit == float(torch.tensor(limit, dtype=torch.float32)) for limit in script.limits)
        terms = math.sqrt(2) * (2 * size + 2) * 2.0**-24
        assert found >= script.limits[-1] + (terms / (1 - terms) + 2.0**-24) * max(traces) + 2.0**-24 * guess
    assert _largest_proved(Scripted(1.0, [1.0] * 9), size) == math.inf


@pytest.mark.parametrize("guess", [0.0, -1.0, math.nan, math.inf, 1e39])
def test_a_guess_that_is_no_limit_proves_nothing(guess: float) -> None:
    script = Scripted(guess, [1.0])
    assert _largest_proved(script, 3) == math.inf
    assert not script.limits


@pytest.mark.parametrize("shape", [(1, 1), (3, 100), (70, 3)])
def test_what_sums_round_is_added(shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def proved(_: object, size: int) -> float:
        sizes.append(size)
        return 1.0

    monkeypatch.setattr(single_precision, "_largest_proved", proved)
    transform = random_transform(2, *shape, 3, 4)
    square = float(exact_grams(transform).diagonal(dim1=1, dim2=2).real.sum(1).max())
    terms = math.sqrt(2) * 2 * max(shape) * 2.0**-24
    assert transform_bound(transform) >= math.sqrt(1 + terms / (1 - terms) * square)
    assert sizes == [min(shape)]


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
