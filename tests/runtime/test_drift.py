"""Bounds of a drift are never below its operator norm, for any matrix, at any scale, and near it for noise."""

from __future__ import annotations

import math

import pytest
import torch
from lipcompile_torch.runtime import drift
from lipcompile_torch.runtime.drift import difference, difference_error, frobenius_length, spectral_length
from lipcompile_torch.runtime.single import spectral_bound
from torch import Tensor

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


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("scale", [1.0, 1e-12, 1e9])
def test_no_bound_is_below_the_norm(kind: str, shape: tuple[int, int, int], scale: float) -> None:
    stack = matrices(kind, shape, scale)
    length = float(frobenius_length(stack))
    assert float(stack.double().norm()) <= length
    if length > 0 and stack.any():
        norm = float(spectral_length(stack, length))
        assert exact(stack) <= norm * (1 + 1e-12)
        assert norm <= 1.1 * length


@pytest.mark.parametrize(("shape", "ratio"), [((1, 40, 60), 1.3), ((1, 200, 300), 2.2), ((2, 500, 600), 2.9)])
def test_it_is_near_the_norm_of_noise(shape: tuple[int, int, int], ratio: float) -> None:
    stack = matrices("gauss", shape)
    length = float(frobenius_length(stack))
    assert float(spectral_length(stack, length)) <= ratio * exact(stack) < length


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite_has_no_bound(value: float) -> None:
    stack = torch.ones(1, 3, 3)
    stack[0, 1, 1] = value
    assert not float(frobenius_length(stack)) < math.inf


@pytest.mark.parametrize("scale", [1e-30, 1e-44, 1e30])
def test_squares_that_under_or_overflow_are_counted(scale: float) -> None:
    stack = torch.full((1, 200, 200), scale)
    length = float(frobenius_length(stack))
    assert length >= float(stack.double().norm())
    assert float(spectral_length(stack, min(length, 1e38))) >= exact(stack)


def test_a_square_that_was_rounded_to_bfloat16_is_paid_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries just above what bfloat16 holds are all rounded down by 2^-8: the norm of ones falls by as much."""
    stack = torch.full((1, 256, 256), 1 + 2.0**-8 - 2.0**-20)
    length = float(frobenius_length(stack))
    assert float(spectral_length(stack, length)) >= exact(stack)
    monkeypatch.setattr(drift, "_BRAIN", 0.0)
    assert float(spectral_length(stack, length)) < exact(stack)


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
    from lipcompile_torch.runtime import single

    matrix = matrices("gauss", (1, 100, 120))[0]
    for guess in (1e-9, 1e-3, 1.0, 5.0):
        monkeypatch.setattr(single, "_guess", lambda _, guess=guess: guess)
        assert exact(matrix) <= spectral_bound(matrix)


def test_certificates_of_what_is_not_finite() -> None:
    assert not spectral_bound(torch.full((70, 70), math.nan)) < math.inf
    assert not spectral_bound(torch.full((70, 70), math.inf)) < math.inf
    assert spectral_bound(torch.zeros(70, 70)) < 1e-15
