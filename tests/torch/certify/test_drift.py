"""Bounds of a drift are never below its operator norm, for any matrix, at any scale, and near it for noise."""

from __future__ import annotations

import math

import pytest
import torch
from lipcompile_torch.certify import drift
from lipcompile_torch.certify.drift import (
    COARSE,
    FINE,
    Blocks,
    difference,
    difference_error,
    drift_length,
    drift_norm,
    frobenius_length,
    read_norms,
)
from lipcompile_torch.certify.single_precision import spectral_bound
from torch import Tensor

from tests.nights import by_day

BLOCKS = pytest.mark.parametrize("blocks", [COARSE, FINE], ids=["coarse", "fine"])
SHAPES = [(1, 1, 1), (1, 7, 3), (2, 5, 40), (3, 40, 5), (1, 130, 200), (1, 300, 131), (2, 257, 260)]
KINDS = ("gauss", "one", "orthogonal", "diagonal", "sparse", "heavy")


def matrices(kind: str, shape: tuple[int, int, int], scale: float = 1.0) -> Tensor:
    torch.manual_seed(sum(shape))
    gauss = torch.randn(shape)
    made = {
        "gauss": gauss,
        "one": torch.ones(shape),
        "orthogonal": torch.stack([torch.nn.init.orthogonal_(torch.empty(shape[1:])) for _ in range(shape[0])]),
        "diagonal": gauss * torch.eye(shape[1], shape[2]),
        "sparse": gauss * (torch.rand(shape) < 0.02),
        "heavy": gauss.exp() ** 4,
    }[kind]
    return made * scale


def exact(stack: Tensor) -> float:
    return float(torch.linalg.svdvals(stack.double()).max())


def norms(stack: Tensor, blocks: Blocks = COARSE) -> tuple[float, float]:
    """Bounds of the Frobenius and the operator norm of a drift from zero."""
    (found,) = read_norms([drift_norm(stack, torch.zeros_like(stack), 1.0, blocks)])
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("scale", [1.0, 1e-12, 1e9])
@BLOCKS
@pytest.mark.usefixtures("passes")
def test_no_bound_is_below_the_norm(kind: str, shape: tuple[int, int, int], scale: float, blocks: Blocks) -> None:
    stack = matrices(kind, shape, scale)
    true = float(stack.double().norm())
    assert true <= float(frobenius_length(stack))
    length, norm = norms(stack, blocks)
    assert true * (1 - 1e-15) <= length
    assert exact(stack) <= norm * (1 + 1e-12)
    if kind != "heavy" or scale < 1e9:
        assert norm <= 1.1 * length
        assert length <= 1.02 * true + 1e-12 * scale


@pytest.mark.parametrize("piece", by_day([2**30], [1, 2**30]))
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(1, 300, 131), (2, 129, 140), (3, 64, 65)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@BLOCKS
@pytest.mark.usefixtures("passes")
def test_no_bound_of_a_drift_is_below_it(
    kind: str,
    shape: tuple[int, int, int],
    dtype: torch.dtype,
    piece: int,
    blocks: Blocks,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of weights and copies of other dtypes, in pieces of any size."""
    monkeypatch.setattr(drift, "_PIECE", piece)
    weight = matrices("gauss", shape).to(dtype)
    for size in (1.0, 1e-3, 0.0):
        copy = (weight.float() + size * matrices(kind, shape)).clamp(-6e4, 6e4).to(torch.float16)
        true = weight.double() - 0.9 * copy.double()
        error = difference_error(float(true.norm()), 0.9 * float(copy.double().norm()))
        ((length, norm),) = read_norms([drift_norm(weight, copy, 0.9, blocks)])
        assert float(true.norm()) <= length + error
        assert float(true.norm()) <= float(drift_length(weight, copy, 0.9)) + error
        assert exact(true) <= norm + error


@pytest.mark.parametrize(
    ("shape", "coarse", "fine"),
    [((1, 40, 60), 1.3, 1.3), ((1, 200, 300), 2.3, 1.4), ((2, 500, 600), 2.9, 1.7)],
)
@pytest.mark.usefixtures("passes")
def test_it_is_near_the_norm_of_noise(shape: tuple[int, int, int], coarse: float, fine: float) -> None:
    stack = matrices("gauss", shape)
    for blocks, ratio in ((COARSE, coarse), (FINE, fine)):
        assert norms(stack, blocks)[1] <= ratio * exact(stack) < float(frobenius_length(stack))


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("shape", [(1, 3, 3), (1, 100, 90), (2, 3, 3), (2, 100, 90)])
@pytest.mark.parametrize("place", [0, -1])
@BLOCKS
@pytest.mark.usefixtures("passes")
def test_what_is_not_finite_has_no_bound(
    value: float, shape: tuple[int, int, int], place: int, blocks: Blocks
) -> None:
    stack = torch.ones(shape)
    stack[place, 1, 1] = value
    assert not float(frobenius_length(stack)) < math.inf
    assert not any(bound < math.inf for bound in norms(stack, blocks))


@pytest.mark.parametrize("shape", [(1, 200, 200), (1, 60, 60)])
@pytest.mark.parametrize("scale", [1e-19, 1e-22, 1e-30, 1e-44, 1e22, 1e30])
@BLOCKS
@pytest.mark.usefixtures("passes")
def test_squares_that_under_or_overflow_are_counted(
    shape: tuple[int, int, int], scale: float, blocks: Blocks
) -> None:
    stack = torch.full(shape, scale)
    length, norm = norms(stack, blocks)
    assert float(frobenius_length(stack)) >= float(stack.double().norm())
    assert not length < float(stack.double().norm()) * (1 - 1e-15)
    assert not norm < exact(stack)


@pytest.mark.usefixtures("without_kernels")
@pytest.mark.parametrize("squarings", [0, 1, 2, 3])
def test_a_square_that_was_rounded_to_bfloat16_is_paid_for(
    squarings: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entries just above what bfloat16 holds are all rounded down by 2^-8: the norm of ones falls by as much."""
    one = Blocks(256, squarings)  # of one block of ones the bound is nearly the norm
    stack = torch.full((1, 256, 256), 1 + 2.0**-8 - 2.0**-20)
    length, norm = norms(stack, one)
    assert length >= float(stack.double().norm())
    assert norm >= exact(stack)
    monkeypatch.setattr(drift, "BRAIN", 0.0)
    length, norm = norms(stack, one)
    assert length < float(stack.double().norm())
    assert norm < exact(stack)


@pytest.mark.usefixtures("without_kernels")
@pytest.mark.parametrize("squarings", [0, 2])
def test_both_roundings_are_paid_for(squarings: int) -> None:
    """Entries lose 2^-8 of themselves, and so do products of rows: of 257 ones bfloat16 keeps 256."""
    stack = torch.full((1, 256, 257), 1 + 2.0**-8 - 2.0**-20)
    length, norm = norms(stack, Blocks(256, squarings))
    assert length >= float(stack.double().norm())
    assert exact(stack) <= norm <= 1.01 * exact(stack)


@pytest.mark.parametrize("squarings", [0, 1, 2])
@pytest.mark.usefixtures("passes")
def test_the_bound_of_one_block_is_that_of_its_gram_matrix(
    squarings: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B = I + J/128 has norm 2, and BBᵀ = I + 3J/128: its mean μ is 1 + 3/128, and of what is left, E, eigenvalues
    are 3 - 3/128, and 127 times -3/128. Hence ‖E^p‖_F. All is exact in bfloat16; 0.2 per cent are for sums in
    float32.
    """
    monkeypatch.setattr(drift, "BRAIN", 0.0)
    power = 2**squarings
    rest = math.sqrt((3 - 3 / 128) ** (2 * power) + 127 * (3 / 128) ** (2 * power)) ** (1 / power)
    expected = math.sqrt(1 + 3 / 128 + rest)
    one = Blocks(128, squarings)
    assert expected * (1 - 1e-6) <= norms((torch.eye(128) + 1 / 128)[None], one)[1] <= 1.002 * expected
    assert norms(torch.diag(torch.full((128,), 2.0))[None], one)[1] == pytest.approx(2, rel=3e-3)


@pytest.mark.parametrize("bits", range(12, 24))
@pytest.mark.usefixtures("passes")
def test_what_sums_in_float32_lose_is_paid_for(bits: int) -> None:
    """From some sum on, squares of 1 + 2^-bits are all rounded the same way. One block of equal entries leaves no
    slack: its Gram matrix, less the mean, has one large eigenvalue.
    """
    stack = torch.full((1, 128, 16_000), 1 + 2.0**-bits)
    length, norm = norms(stack, FINE)
    true = math.sqrt(128 * 16_000) * (1 + 2.0**-bits)
    assert length >= true * (1 - 1e-15)
    assert norm >= true * (1 - 1e-15)


@pytest.mark.usefixtures("passes")
def test_one_large_entry_among_small_ones_is_counted() -> None:
    for rows in (64, 100, 200):
        stack = torch.full((1, rows, 4096), 1 / 3)
        stack[0, :, 0] = 300.0
        for blocks in (COARSE, FINE):
            length, norm = norms(stack, blocks)
            assert length >= float(stack.double().norm()) * (1 - 1e-15)
            assert norm >= exact(stack) * (1 - 1e-15)


@pytest.mark.parametrize("share", [1.0, 0.9, 0.3])
def test_what_a_difference_rounds_is_bounded(share: float) -> None:
    torch.manual_seed(0)
    copy = torch.randn(60, 70).to(torch.float16)
    weight = (copy.float() * share * (1 + 1e-6 * torch.randn(60, 70))).contiguous()
    computed = difference(weight, copy, share)
    true = weight.double() - share * copy.double()
    copied = share * float(copy.double().norm())
    error = float((computed.double() - true).norm())
    assert error <= difference_error(float(frobenius_length(computed[None])), 0.0 if share == 1.0 else copied)


@pytest.mark.parametrize("shape", [(1, 5), (70, 90), (200, 100), (65, 300), (300, 301)])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scale", [1.0, 1e-12, 1e9])
def test_certificates_in_float32_hold(shape: tuple[int, int], kind: str, scale: float) -> None:
    matrix = matrices(kind, (1, *shape), scale)[0]
    bound = spectral_bound(matrix)
    assert exact(matrix) <= bound <= float(frobenius_length(matrix[None]))
    if kind != "heavy" and matrix.any():
        assert bound <= exact(matrix) * 1.03


def test_a_guess_that_is_wrong_costs_tightness_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from lipcompile_torch.certify import single_precision as single

    matrix = matrices("gauss", (1, 100, 120))[0]
    for guess in (1e-9, 1e-3, 1.0, 5.0):
        monkeypatch.setattr(single, "_guess", lambda _, guess=guess: guess)
        assert exact(matrix) <= spectral_bound(matrix)


def test_certificates_of_what_is_not_finite() -> None:
    assert not spectral_bound(torch.full((70, 70), math.nan)) < math.inf
    assert not spectral_bound(torch.full((70, 70), math.inf)) < math.inf
    assert spectral_bound(torch.zeros(70, 70)) < 1e-15
