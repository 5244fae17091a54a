"""The networks of image_networks.lip with ReLU and max-pool."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn


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
