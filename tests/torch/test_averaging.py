"""The mean of the last weights: which steps count, and what a stored one goes on to."""

from __future__ import annotations

import copy

import pytest
import torch
from lipcompile_torch.averaging import LastWeights
from torch import nn


def _walk(module: nn.Linear, last: LastWeights, steps: range) -> None:
    """Let the weights be 0, 1, 2, … after each step."""
    for step in steps:
        with torch.no_grad():
            module.weight.fill_(float(step))
        last.after(step)


@pytest.mark.parametrize(("share", "mean"), [(0.0, 9.0), (0.1, 9.0), (0.2, 8.5), (0.5, 7.0), (1.0, 4.5)])
def test_the_last_share_of_the_steps_counts(share: float, mean: float) -> None:
    module = nn.Linear(2, 2, bias=False)
    last = LastWeights(module, 10, share)
    _walk(module, last, range(10))
    last.load()
    torch.testing.assert_close(module.weight, torch.full((2, 2), mean))


def test_a_stored_mean_goes_on_to_the_same() -> None:
    module = nn.Linear(2, 2, bias=False)
    first, second = (LastWeights(module, 10, 0.5) for _ in range(2))
    _walk(module, first, range(8))
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    _walk(module, second, range(8, 10))
    second.load()
    torch.testing.assert_close(module.weight, torch.full((2, 2), 7.0))


def test_weights_stay_before_any_of_them_counts() -> None:
    module = nn.Linear(2, 2, bias=False)
    last = LastWeights(module, 10, 0.5)
    _walk(module, last, range(3))
    last.load()
    torch.testing.assert_close(module.weight, torch.full((2, 2), 2.0))
