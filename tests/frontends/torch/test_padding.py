"""`padding_idx` of an embedding: torch hands the row no gradient, so it stays zero, whatever noise is added."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lipcompile
from tests.frontends.torch.test_padded_texts import TEXTS, attacked, compiled
from tests.torch.clip_nets import clipped


class Words(nn.Module):
    """Embedded words, whose zeros are padding, and a layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.head = nn.Embedding(10, 4, padding_idx=0), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.words(x).tanh().mean(1))  # type: ignore[no-any-return]


def trained_as(net: nn.Module, **options: Any) -> Any:
    """Return the private module, its table moved as by noise, the row of padding too."""
    module = lipcompile.private(net, TEXTS, **options)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 0.1 * parameter.requires_grad
    return module.eval()


def test_padding_has_no_gradient_and_no_effect(tmp_path: Path) -> None:
    net = Words().eval()
    module = compiled(net, TEXTS, tmp_path)
    module.normaliser = 1.0
    attacked(net, module, TEXTS)
    net(TEXTS).sum().backward()
    found = clipped(module, TEXTS, torch.tensor([0, 1, 2, 0]))["words.table"]
    assert not found[0].any()
    assert net.words.weight.grad is not None
    assert not net.words.weight.grad[0].any()
    assert found[2].any()
    with torch.no_grad():
        module.words.table.data[0] = torch.randn(4)
    torch.testing.assert_close(module(TEXTS), net(TEXTS))


def test_trained_weights_go_back_without_the_noise_of_padding() -> None:
    net = Words().eval()
    module = trained_as(net, bounds="clip")
    loaded = lipcompile.load_trained(net, module, TEXTS, bounds="clip")
    torch.testing.assert_close(loaded(TEXTS), module(TEXTS))
    assert not net.words.weight[0].any()
    torch.testing.assert_close(net.words.weight[1:], module.words.table[1:])


def test_rows_of_padding_that_theorems_train_go_back() -> None:
    net = Words().eval()
    with pytest.warns(UserWarning, match="LIP125"):
        module = trained_as(net, bounds="theorem", constraint="keep")
    loaded = lipcompile.load_trained(net, module, TEXTS, bounds="theorem")
    torch.testing.assert_close(loaded(TEXTS), module(TEXTS))
    assert net.words.weight[0].all()
