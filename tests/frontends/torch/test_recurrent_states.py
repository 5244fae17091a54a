"""Recurrent layers that begin in a state of the example, and that read several sequences.

Oracle: the module itself, by torch alone, as in `test_computed_parameters`. Without biases: torch has two that do
the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.frontends.torch.test_computed_parameters import examples, held_to_torch, private

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:the output does not depend on")]
KINDS = pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])


class States(nn.Module):
    """A layer that begins in the last state of another, as a decoder does."""

    def __init__(self, kind: Callable[..., nn.Module], layers: int, both: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        options = {"num_layers": layers, "bidirectional": both, "batch_first": True, "bias": False}
        self.first, self.second = kind(4, 3, **options), kind(2, 3, **options)
        self.head = nn.Linear(6 if both else 3, 3)

    def forward(self, x: Tensor) -> Tensor:
        _, state = self.first(x[:, :2])
        return self.head(self.second(x[:, 1:, :2], state)[0].mean(1))  # type: ignore[no-any-return]


class Far(nn.Module):
    """A layer that begins in numbers far outside of [-1, 1], where states that begin in zeros stay."""

    def __init__(self, kind: Callable[..., nn.Module]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.start, self.layer, self.head = nn.Linear(4, 3), kind(4, 3, bias=False), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        start = 9 * self.start(x[:, 0]).unsqueeze(0)
        states, _ = self.layer(x.transpose(0, 1), (start, -start) if isinstance(self.layer, nn.LSTM) else start)
        return self.head(states.mean(0))  # type: ignore[no-any-return]


class Learned(nn.Module):
    """A learned initial state that is not zero."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.start, self.layer, self.head = (
            nn.Parameter(torch.randn(1, 1, 3)),
            nn.GRU(4, 3, bias=False),
            nn.Linear(3, 3),
        )

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.layer(x.transpose(0, 1), self.start.expand(-1, x.size(0), -1).contiguous())
        return self.head(states.sum(0))  # type: ignore[no-any-return]


class Texts(nn.Module):
    """One layer reads two sequences."""

    def __init__(self, kind: Callable[..., nn.Module]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = kind(4, 3, bidirectional=True, batch_first=True, bias=False)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        left, right = self.layer(x)[0].mean(1), self.layer(x[:, 1:])[0].mean(1)
        return self.head(left * right)  # type: ignore[no-any-return]


def held(net: nn.Module) -> None:
    x = examples(3, 4)
    module: Any = private(net, x)
    with torch.no_grad():
        assert torch.allclose(module.eval()(x), net(x), atol=1e-6)
    held_to_torch(net, module.train(), x)


@KINDS
@pytest.mark.parametrize(("layers", "both"), [(2, False), (1, True)])
def test_a_layer_begins_in_the_state_of_another(kind: Any, layers: int, both: bool) -> None:
    held(States(kind, layers, both))


@KINDS
def test_states_may_begin_anywhere(kind: Any) -> None:
    held(Far(kind))


def test_an_initial_state_is_learned() -> None:
    held(Learned())


@KINDS
def test_one_layer_reads_two_sequences(kind: Any) -> None:
    held(Texts(kind))
