"""What certificates in float32 add for rounding: each term by itself, where what was computed is too small."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from lipcompile_torch import native
from lipcompile_torch.certify import single_precision as single
from lipcompile_torch.certify.rounding import SINGLE, gamma_single
from lipcompile_torch.certify.single_precision import Transform, transform_bound
from torch import Tensor

from tests.rounding import Groups, each_is_needed, length

UP = 1 + 2.0**-48
UNIT = 2.0**-24


def nothing(_: int) -> float:
    return 0.0


def gauss(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def eigenvalue(vector: Tensor) -> float:
    """The largest one of vvᵀ, each entry rounded to float32; less what float64 may be off by."""
    return float(torch.linalg.eigvalsh(torch.outer(vector, vector).double())[-1]) * (1 - 1e-12)


def below(number: float) -> float:
    """A number of float32 that is next to it, but not above."""
    near = torch.tensor(number, dtype=torch.float64).float()
    return float(torch.nextafter(near, torch.tensor(0.0)) if float(near) > number else near)


@pytest.mark.parametrize("terms", [0, 1, 40, 3000, 10**5])
def test_gamma_of_float32_is_above_what_theorems_ask_for(terms: int) -> None:
    """√2·γ_2k for complex numbers, u = 2^-24, with a rounding more."""
    most = (2 * terms + 1) * Fraction(1, 2**24)
    assert Fraction(gamma_single(terms)) ** 2 >= 2 * (most / (1 - most)) ** 2


@pytest.mark.parametrize("size", [3, 30, 90])
def test_what_a_factorisation_rounds_is_paid_for(size: int) -> None:
    """τI - vvᵀ is not positive for τ just below the eigenvalue, but with rounding Cholesky may run to its end.

    Both terms, for the factorisation and for the diagonal, cover that in matrices so small.
    """
    off = {(single, "gamma_single"): nothing, (single, "SINGLE"): 0.0}
    on: Groups = {"γ": {(single, "gamma_single"): gamma_single}, "diagonal": {(single, "SINGLE"): SINGLE}}
    vectors = [gauss(seed, size) for seed in range(100)]

    def bound(vector: Tensor) -> float:
        return single._proved(torch.outer(vector, vector), below(eigenvalue(vector)))

    each_is_needed(off, on, bound, eigenvalue, vectors)


class _JustBelow:
    """Of the matrix vvᵀ, of which the guess is a little too small."""

    def __init__(self, vector: Tensor) -> None:
        kernels = torch.zeros(1, len(vector), len(vector), 1)
        kernels[0, :, 0, 0] = vector  # a matrix v·e₁ᵀ
        transform = Transform(kernels, torch.zeros(1, 1, dtype=torch.float64))
        self._inner = native.spectra(kernels, *transform.waves()) or single._ByTorch(transform.maps())
        self._guess = below(eigenvalue(vector))

    def largest_trace(self) -> float:
        return self._inner.largest_trace()

    def guess(self) -> float:
        return self._guess

    def prove(self, limit: float) -> float:
        return self._inner.prove(limit)

    def are_proved(self) -> bool:
        return self._inner.are_proved()


@pytest.mark.usefixtures("passes")
@pytest.mark.parametrize("size", [3, 30])
def test_what_factorisations_at_frequencies_round_is_paid_for(size: int) -> None:
    off = {(single, "gamma_single"): nothing, (single, "SINGLE"): 0.0, (single, "_FREQUENCY_SLACKS"): (0.0,)}
    on: Groups = {
        "γ": {(single, "gamma_single"): gamma_single},
        "diagonal": {(single, "SINGLE"): SINGLE},
    }
    vectors = [gauss(seed, size) for seed in range(100)]

    def bound(vector: Tensor) -> float:
        return single._largest_proved(_JustBelow(vector), size)

    each_is_needed(off, on, bound, eigenvalue, vectors)


@pytest.mark.usefixtures("passes")
def test_a_gram_matrix_in_float32_that_is_too_small_is_paid_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one row it is a sum of squares, and that is the largest eigenvalue."""
    monkeypatch.setattr(single, "_guess", lambda gram: float(gram.max()))
    monkeypatch.setattr(single, "_proved", lambda _, limit: limit)
    monkeypatch.setattr(single, "_SLACKS", (0.0,))
    monkeypatch.setattr(single, "_largest_proved", lambda grams, _: grams.largest_trace())
    rows = [gauss(seed, 1, 3000) for seed in range(20)]

    def at_frequencies(row: Tensor) -> float:
        return transform_bound(Transform(row[None, :, :, None], torch.zeros(1, 1, dtype=torch.float64)))

    for module, bound in ((single, single.spectral_bound), (single, at_frequencies)):
        off = {(module, "gamma_single"): nothing, (module, "UP"): 1.0}
        on = {"γ": {(module, "gamma_single"): gamma_single}}
        each_is_needed(off, on, bound, length, rows)
        each_is_needed(off, on, bound, length, [row.mT for row in rows])


def test_roots_are_rounded_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the sum of two squares of whole numbers, which is exact."""
    monkeypatch.setattr(single, "_guess", lambda gram: float(gram.max()))
    monkeypatch.setattr(single, "_proved", lambda _, limit: limit)
    monkeypatch.setattr(single, "_SLACKS", (0.0,))
    monkeypatch.setattr(single, "_largest_proved", lambda grams, _: grams.largest_trace())
    rows = [torch.tensor([[float(k), float(k + 1)]]) for k in range(1, 60)]

    def at_frequencies(row: Tensor) -> float:
        return transform_bound(Transform(row[None, :, :, None], torch.zeros(1, 1, dtype=torch.float64)))

    for module, bound in ((single, single.spectral_bound), (single, at_frequencies)):
        off = {(module, "gamma_single"): nothing, (module, "UP"): 1.0}
        each_is_needed(off, {"one step": {(module, "UP"): module.UP}}, bound, length, rows)


def test_roundings_on_the_way_of_a_product_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """In native code 512 columns are added up in 16 sums of 32 products, these in four steps, and the sum of all,
    in float64, is rounded once; by torch's operations 128 products at a time, and then these sums.
    """
    rows = torch.zeros(2, 1000)
    if native.kernels is not None:
        assert single._gram(rows)[1] >= 512 // 16 + 4 + 1
        assert native.ROUNDINGS >= 512 // 16 + 4
        monkeypatch.setattr(native, "kernels", None)
    assert single._gram(rows)[1] >= 128 + math.ceil(1000 / 128)


@pytest.mark.usefixtures("passes")
@pytest.mark.parametrize("shape", [(1, 1, 3000), (1, 3000, 1)])
def test_the_error_at_frequencies_is_that_of_long_sums(
    shape: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums of 3000 products of complex numbers are off by √2·γ_6000 of the sum of moduli, here of 3000."""
    monkeypatch.setattr(single, "_largest_proved", lambda *_: 0.0)
    found = transform_bound(Transform(torch.ones(*shape, 1), torch.zeros(1, 1, dtype=torch.float64)))
    assert found**2 >= math.sqrt(2) * 6000 * UNIT * 3000


def test_the_least_of_both_norms_counts() -> None:
    """Of the identity the operator norm, and of one entry the Frobenius norm."""
    assert 1 <= single.spectral_bound(torch.eye(90)) <= 1.02
    assert (
        single.spectral_bound(torch.zeros(90, 90).index_fill_(0, torch.tensor([3]), 1.0)) <= math.sqrt(90) * 1.01
    )


def test_the_largest_of_all_traces_counts() -> None:
    """Of matrices that are proved at different limits: what each factorisation rounds grows with its trace."""

    class Grams:
        def __init__(self) -> None:
            self.traces = [1e6, 0.0]

        def largest_trace(self) -> float:
            return 1.0

        def guess(self) -> float:
            return 1.0

        def prove(self, _: float) -> float:
            return self.traces.pop(0)

        def are_proved(self) -> bool:
            return not self.traces

    assert single._largest_proved(Grams(), 10) >= 1 + 10 * UNIT * 1e6


def test_the_largest_trace_of_all_frequencies_counts() -> None:
    """Of I and 100·I; what is factorised at 101 are 100·I and I."""
    spectra = single._ByTorch(torch.stack((torch.eye(2), 10 * torch.eye(2))).to(torch.complex64))
    assert spectra.largest_trace() == 200
    assert spectra.prove(101.0) == 200
