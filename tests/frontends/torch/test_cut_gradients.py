"""Gradients that a module cuts off or changes: the import has those of the computed function, and says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lipcompile.diagnostics import Severity
from lipcompile.pipeline import from_module

Then = Callable[[Tensor], Tensor]


class Net(nn.Module):
    """[B, 4] -> [B, 3] with a function between two layers."""

    def __init__(self, then: Then) -> None:
        super().__init__()
        self.first, self.last, self.then = nn.Linear(4, 4), nn.Linear(4, 3), then

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.last(self.then(self.first(x)))
        return result


IN_C = not isinstance(vars(torch.autograd.Function)["apply"], classmethod)


class Sevenfold(torch.autograd.Function):
    @staticmethod
    def forward(_ctx: Any, x: Tensor) -> Tensor:
        return x.tanh()

    @staticmethod
    def backward(_ctx: Any, *cotangents: Tensor) -> Tensor:
        return 7 * cotangents[0]


def without_grad(h: Tensor) -> Tensor:
    with torch.no_grad():
        gate = h.sigmoid()
    return h * gate


def hooked(h: Tensor) -> Tensor:
    if h.requires_grad:
        h.register_hook(lambda cotangent: 4 * cotangent)  # type: ignore[no-untyped-call]
    return h.tanh()


def warned(module: nn.Module) -> list[str]:
    """Return what LIP127 says of a module that is accepted."""
    loaded = from_module(module, [4], loss="cross_entropy", bounds="clip").diagnostics
    assert not [found for found in loaded if found.severity == Severity.ERROR]
    return [found.message.partition(":")[0] for found in loaded if found.code == "LIP127"]


@pytest.mark.parametrize(
    ("then", "what"),
    [
        (lambda h: h.detach(), "`detach`"),
        (lambda h: h + (h.sign() - h).detach(), "`detach`"),
        (lambda h: h * h.sigmoid().detach(), "`detach`"),
        (without_grad, "`torch.no_grad`"),
        pytest.param(
            Sevenfold.apply,
            "the function Sevenfold, which has its own backward pass",
            marks=pytest.mark.skipif(IN_C, reason="torch calls functions without asking"),
        ),
        (hooked, "a hook on a tensor"),
    ],
)
def test_other_gradients_than_those_of_the_module_are_told(then: Then, what: str) -> None:
    assert warned(Net(then)) == [what]


def test_hooks_of_backward_passes_are_told() -> None:
    net = Net(torch.tanh)
    net.last.register_full_backward_hook(lambda _module, into, _out: into)
    net.first.weight.register_hook(lambda cotangent: 5 * cotangent)  # type: ignore[no-untyped-call]
    assert warned(net) == ["a backward hook on `last`, a hook on the gradient of `first.weight`"]


def test_what_is_cut_off_and_is_not_trained_or_not_read_is_not_told() -> None:
    frozen = Net(lambda h: h.detach())
    frozen.first.requires_grad_(False)
    kept: list[Tensor] = []
    read = Net(lambda h: kept.append(h.detach()) or h.tanh())  # type: ignore[func-returns-value]
    weight = Net(torch.tanh)
    nn.utils.parametrizations.spectral_norm(weight.first)
    for net in (Net(torch.tanh), frozen, read, weight):
        assert warned(net) == []
