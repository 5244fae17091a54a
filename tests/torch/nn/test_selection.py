"""Selection by a constant mask, and the entrywise maximum and minimum that emitted modules use."""

from __future__ import annotations

import pytest
import torch
from lipcompile_torch.nn import functional as lf

A, B = torch.arange(6.0).reshape(1, 2, 3), -torch.arange(6.0).reshape(1, 2, 3) - 1
# Bits 101001, row by row.
MASK = "29"
EXPECTED = [[[0.0, -2.0, 2.0], [-4.0, -5.0, 5.0]]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_mask_selects_entry_by_entry(dtype: torch.dtype) -> None:
    chosen = lf.where(A.to(dtype), B.to(dtype), mask=MASK)
    assert chosen.tolist() == EXPECTED
    assert chosen.dtype == dtype


def test_a_mask_that_begins_with_zeros_is_filled_up() -> None:
    assert lf.where(A, B, mask="1")[0, 1, 2] == 5
    assert (lf.where(A, B, mask="0") == B).all()


def test_an_empty_batch_and_an_example_without_axes() -> None:
    assert lf.where(A[:0], B[:0], mask=MASK).shape == (0, 2, 3)
    assert lf.where(A[:, 0, 0], B[:, 0, 0], mask="1").tolist() == [0.0]


def test_each_cotangent_entry_goes_to_one_operand() -> None:
    a, b = A.clone().requires_grad_(), torch.full_like(B, torch.inf).requires_grad_()
    first, second = torch.autograd.grad(lf.where(a, b, mask=MASK), [a, b], torch.ones_like(A))
    assert first.flatten().tolist() == [1, 0, 1, 0, 0, 1]
    assert (first + second == 1).all()


def test_a_mask_first_used_in_inference_serves_training() -> None:
    with torch.inference_mode():
        lf.where(A, B, mask="2a")
    a = A.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(lf.where(a, B, mask="2a").sum(), a)
    assert gradient.sum() == 3


@pytest.mark.parametrize(("second", "mask"), [(B[:, :1], MASK), (B, "40")])
def test_what_does_not_fit_is_refused(second: torch.Tensor, mask: str) -> None:
    with pytest.raises(ValueError, match=r"select between|does not fit"):
        lf.where(A, second, mask=mask)


@pytest.mark.parametrize("function", [torch.maximum, torch.minimum])
@pytest.mark.parametrize("count", [2, 3, 4])
def test_torch_shares_the_cotangent_of_a_tie_with_weights_that_sum_to_one(function: object, count: int) -> None:
    """What the proof of `maximum` assumes of torch, nested as emitted modules nest it."""
    operands = [torch.zeros(3, dtype=torch.float64, requires_grad=True) for _ in range(count)]
    value = operands[0]
    for operand in operands[1:]:
        value = function(value, operand)  # type: ignore[operator]
    shares = torch.stack(torch.autograd.grad(value.sum(), operands))
    assert (shares >= 0).all()
    torch.testing.assert_close(shares.sum(0), torch.ones(3, dtype=torch.float64))
    assert (shares.square().sum(0) <= 1).all()
