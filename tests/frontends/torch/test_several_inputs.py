"""A network of several inputs takes them one by one, or joined, in the order of its `forward`."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import lipcompile


class Weighted(nn.Module):
    """Two inputs of one size, which are not to be confused."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(4, 3)

    def forward(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.last(first - 2 * second.flatten(1))
        return found


def test_several_inputs_are_given_one_by_one_in_the_order_of_forward() -> None:
    first, second = torch.randn(5, 4), torch.randn(5, 2, 2)
    module = Weighted()
    wanted = module(first, second)
    for example in ((first, second), {"first": first, "second": second}, {"second": second, "first": first}):
        made = lipcompile.private(module, example)
        torch.testing.assert_close(made(first, second), wanted)
        torch.testing.assert_close(made(torch.cat([first, second.flatten(1)], 1)), wanted)


def test_inputs_that_together_are_no_example_are_refused() -> None:
    made = lipcompile.private(Weighted(), (torch.zeros(2, 4), torch.zeros(2, 2, 2)))
    with pytest.raises(ValueError, match=r"shape \[B, 8\] in all, got \[\(5, 4\), \(5, 3\)\]"):
        made(torch.zeros(5, 4), torch.zeros(5, 3))
    with pytest.raises(ValueError, match="in all"):
        made(torch.zeros(5, 4), torch.zeros(4, 4))
    with pytest.raises(ValueError, match="floating point"):
        made(torch.zeros(5, 4), torch.zeros(5, 4, dtype=torch.long))
