"""The networks of image_networks.lip with ReLU and max-pool, trained by Opacus: per-example gradients, clipped.

Poisson batches are drawn as tensors, and gradients of examples are taken in pieces, so that memory is that of a
piece. σ is calibrated by PLD, as ours.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from lipcompile_torch.accounting import Mechanism, NeighbouringRelation, calibrate_noise_multiplier, epsilon
from lipcompile_torch.averaging import LastWeights
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  (its name everywhere in this field)
from torch.optim import Adam

from benchmarks.utility.training import Budget, Recipe

_PIECE = 512  # examples at once


class Residual(nn.Module):
    """The mean of a branch and what it was given, as `residual(mean)`."""

    def __init__(self, *branch: nn.Module) -> None:
        super().__init__()
        self.branch = nn.Sequential(*branch)

    def forward(self, x: Tensor) -> Tensor:
        """Return (x + branch(x)) / 2."""
        mixed: Tensor = (x + self.branch(x)) / 2
        return mixed


class Transpose(nn.Module):
    """Tokens [N, T, C] by channels [N, C, T]."""

    def forward(self, x: Tensor) -> Tensor:
        """Swap the last two axes."""
        return x.transpose(1, 2)


def _convnet(channels: int, _: int) -> list[nn.Module]:
    return [nn.Conv2d(channels, 16, 4, 2), nn.ReLU(), nn.Conv2d(16, 32, 4, 2), nn.ReLU()]


def _vgg(channels: int, _: int, widths: tuple[int, int] = (8, 16)) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for before, width in zip((channels, *widths), widths, strict=False):
        layers += [nn.Conv2d(before, width, 3, padding=1), nn.ReLU()]
        layers += [nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return layers


def _wide_vgg(channels: int, size: int) -> list[nn.Module]:
    return _vgg(channels, size, (32, 64))


def _resnet(channels: int, _: int) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for before, width in ((channels, 8), (8, 16)):
        inner = [nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1)]
        layers += [nn.Conv2d(before, width, 2, 2), nn.ReLU(), Residual(*inner), nn.ReLU()]
    return layers


def _mixer(channels: int, size: int, width: int = 32) -> list[nn.Module]:
    tokens, inner = (size // 4) ** 2, 2 * width
    layers: list[nn.Module] = [nn.Conv2d(channels, width, 4, 4), nn.Flatten(2), Transpose()]
    for _ in range(2):
        mixed = (nn.Linear(tokens, inner), nn.ReLU(), nn.Linear(inner, tokens))
        layers.append(Residual(Transpose(), *mixed, Transpose()))
        layers.append(Residual(nn.Linear(width, inner), nn.ReLU(), nn.Linear(inner, width)))
    return layers


def _wide_mixer(channels: int, size: int) -> list[nn.Module]:
    return _mixer(channels, size, 64)


_BODIES: Mapping[str, Callable[[int, int], list[nn.Module]]] = {
    "convnet": _convnet,
    "vgg": _vgg,
    "resnet": _resnet,
    "mixer": _mixer,
    "wide_vgg": _wide_vgg,
    "wide_mixer": _wide_mixer,
}


def network(model: str, shape: tuple[int, ...]) -> nn.Module:
    """Return the network of that name for images [C, H, W], with ten outputs."""
    body = nn.Sequential(*_BODIES[model](shape[0], shape[1]), nn.Flatten())
    with torch.no_grad():
        features = body(torch.zeros(1, *shape)).shape[1]
    return nn.Sequential(body, nn.Linear(features, 10))


def train(model: nn.Module, x: Tensor, y: Tensor, recipe: Recipe, budget: Budget) -> float:
    """Train by DP-SGD with Adam; return ε by PLD.

    Args:
        recipe: `how` has `clipping`, the norm that gradients are clipped to.
    """
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    rate, steps = min(1.0, (recipe.batch or len(x)) / len(x)), recipe.steps
    relation = NeighbouringRelation("add_remove")
    sigma = calibrate_noise_multiplier(
        budget.epsilon, budget.delta, lambda sigma: Mechanism(rate, sigma), steps, relation, "pld"
    )
    module: Any = GradSampleModule(model)
    inner = Adam(module.parameters(), lr=recipe.rate)
    optimizer: Any = DPOptimizer(
        inner,
        noise_multiplier=sigma,
        max_grad_norm=recipe.how["clipping"],
        expected_batch_size=round(rate * len(x)),
    )
    last = LastWeights(module, steps, recipe.average)
    for step in range(steps):
        inner.param_groups[0]["lr"] = recipe.rate * (1 - step / steps)
        _step(module, optimizer, x, y, torch.nonzero(torch.rand(len(x)) < rate)[:, 0])
        last.after(step)
    last.load()
    return epsilon([(Mechanism(rate, sigma), steps)], budget.delta, relation, "pld")


def _step(module: Any, optimizer: Any, x: Tensor, y: Tensor, drawn: Tensor) -> None:
    """Sum clipped gradients piece by piece, and step after the last; a batch of none is one example, times 0."""
    pieces = torch.split(drawn, _PIECE) if len(drawn) else (torch.zeros(1, dtype=torch.long),)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number, piece in enumerate(pieces, start=1):
            optimizer.zero_grad()
            loss = F.cross_entropy(module(x[piece]), y[piece])
            (loss if len(drawn) else 0.0 * loss).backward()  # type: ignore[no-untyped-call]
            optimizer.signal_skip_step(do_skip=number < len(pieces))
            optimizer.step()
