"""Usual ways to write a layer in torch: the emitted module computes the same, and the bound holds for the module.

The oracle is the module itself: its outputs, and its gradient for each example by torch.func.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad
from torch.nn import functional as F  # noqa: N812

from lipcompile.pipeline import from_module
from tests.emitters.test_emit import build

BATCH, CLASSES = 6, 3


class Around(nn.Module):
    """A linear layer, what is examined, and a linear layer."""

    def __init__(self, width: int, examined: Callable[[Tensor], Tensor], between: nn.Module | None = None) -> None:
        super().__init__()
        self.first, self.between = nn.Linear(width, 8), between or nn.Identity()
        self.last, self.examined = nn.Linear(8, CLASSES), examined

    def forward(self, x: Tensor) -> Any:
        return self.last(self.examined(self.between(self.first(x))))


def activations(h: Tensor) -> Tensor:
    """Choices by sign, torch's softplus, log σ, x/(1 + e^-x), and √(x² + eps)."""
    h = torch.where(h > 0, h, torch.zeros_like(h)) + torch.where(h < 0, torch.exp(h) - 1, h)
    h = h * torch.tanh(F.softplus(h)) + F.logsigmoid(h)
    return h / (1 + torch.exp(-h)) + torch.sqrt(h**2 + 0.1)


def standardised(h: Tensor) -> Tensor:
    """Unbiased variances, and a softmax that subtracts the largest entry twice."""
    h = (h - h.mean(-1, keepdim=True)) / torch.sqrt(h.var(-1, keepdim=True) + 0.5)
    powers = torch.exp(h - h.amax(-1, keepdim=True))
    return powers / torch.exp(h - h.amax(-1, keepdim=True)).sum(-1, keepdim=True)


def picked(h: Tensor) -> Tensor:
    """Entries by constant indices."""
    pairs = h[:, torch.tensor([[7, 0], [3, 3]])].flatten(1)
    return torch.cat([pairs, h.gather(1, torch.tensor([[2, 1, 0, 6]]).expand(h.shape[0], -1))], 1)


def written(h: Tensor) -> Tensor:
    """Parts that are written over."""
    h = h.clone()
    h[:, 1:3] += 2 * h[:, 4:6]
    h[:, ::2] = 3 * h[:, 1::2]
    h[:, -1] = h[:, 0]
    return h


def looking_back(h: Tensor) -> Tensor:
    """Attention of each token to those before it."""
    scores = (h @ h.mT / 8**0.5).masked_fill(torch.ones(5, 5).triu(1).bool(), float("-inf"))
    return (scores.softmax(-1) @ h).mean(1)


class OverTokens(nn.Module):
    """A batch normalisation of channels, the tokens of all examples in one axis, as in LeViT."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(8)
        self.norm.running_mean, self.norm.running_var = torch.randn(8), torch.rand(8) + 0.5

    def forward(self, h: Tensor) -> Tensor:
        found: Tensor = self.norm(h.flatten(0, 1)).reshape_as(h)
        return found


class CrossAttention(nn.Module):
    """Queries and the rest of one stored matrix are used apart, as in `nn.TransformerDecoderLayer`."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, h: Tensor) -> Tensor:
        found: Tensor = self.attention(h.tanh(), h, h, need_weights=False)[0]
        return found


class Pooled(nn.Module):
    """L2 pools with an eps in the root, and a pool of one entry behind a permutation, as in Swin at 32 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.pool, self.last = (
            nn.Conv2d(3, 8, 3, padding=1),
            nn.AdaptiveAvgPool2d(1),
            nn.Linear(8, CLASSES),
        )

    def forward(self, x: Tensor) -> Any:
        h = torch.sqrt(F.avg_pool2d(self.conv(x) ** 2, 4) + 1e-2).permute(0, 2, 3, 1).tanh().permute(0, 3, 1, 2)
        return self.last(self.pool(h).flatten(1))


MODULES: Mapping[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "activations": (lambda: Around(6, activations), (6,)),
    "standardised": (lambda: Around(6, standardised), (6,)),
    "picked": (lambda: Around(6, picked), (6,)),
    "written": (lambda: Around(6, written), (6,)),
    "looking back": (lambda: Around(6, looking_back, OverTokens()), (5, 6)),
    "cross attention": (lambda: Around(6, lambda h: h.mean(1), CrossAttention()), (5, 6)),
    "pooled": (Pooled, (3, 4, 4)),
}


@pytest.mark.parametrize("name", MODULES)
def test_the_module_is_understood(name: str, tmp_path: Path) -> None:
    make, shape = MODULES[name]
    torch.manual_seed(0)
    module = make().eval()
    found = from_module(module, shape, input_norm=1, loss="cross_entropy", constraint="keep")
    assert found.ok, found.diagnostics
    assert found.analysis is not None
    x = F.normalize(torch.randn(BATCH, *shape, dtype=torch.float64).flatten(1)).reshape(BATCH, *shape)
    emitted, module = build(found, tmp_path).eval(), module.double()
    torch.testing.assert_close(emitted(x), module(x), rtol=1e-5, atol=1e-6)
    norms = _gradients(module, x, torch.randint(CLASSES, (BATCH,)))
    assert norms.max() <= float(found.analysis.total.value or 0)


def _gradients(module: nn.Module, x: Tensor, labels: Tensor) -> Tensor:
    """Return the norm of the gradient of each example; frozen normalisations are not trained."""
    trained = {name: p.detach() for name, p in module.named_parameters() if ".norm." not in name}

    def loss(parameters: dict[str, Tensor], one: Tensor, label: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(module, parameters, (one[None],)), label[None])

    gradients = [grad(loss)(trained, one, label).values() for one, label in zip(x, labels, strict=True)]
    return torch.stack([torch.cat([part.flatten() for part in one]).norm() for one in gradients])


def _over_all(h: Tensor) -> Tensor:
    h = h.clone()
    h[1:] += h[:-1]
    return h


@pytest.mark.parametrize(
    "across", [_over_all, lambda h: h[torch.tensor([0, 0])], lambda h: h.gather(0, torch.tensor([[0] * 8]))]
)
def test_parts_of_the_batch_are_refused(across: Callable[[Tensor], Tensor]) -> None:
    found = from_module(Around(6, across), (6,), input_norm=1, loss="cross_entropy")
    assert found.analysis is None
    assert "LIP108" in [d.code for d in found.diagnostics]


def test_a_trained_filling_is_no_relu() -> None:
    """What takes the place of entries below zero is trained: it begins at zero, and does not stay there."""

    class Filled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.filling = nn.Linear(6, CLASSES), nn.Parameter(torch.zeros(CLASSES))

        def forward(self, x: Tensor) -> Any:
            h = self.first(x)
            return torch.where(h > 0, h, self.filling)

    found = from_module(Filled(), (6,), input_norm=1, loss="cross_entropy")
    assert found.analysis is None
    assert [d.code for d in found.diagnostics] == ["LIP100"]
