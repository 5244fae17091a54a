"""The networks that are timed: each as a `.lip` file and, of the same shape, of torch's own layers.

The latter have ReLU and max-pooling in place of GroupSort and L2-pooling, and no biases either: all contestants
train the same parameters. Some are of torch's own layers alone, with biases: nothing but a clip bounds their
gradients, so contestants with bounds by theorem are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from benchmarks.harness import emitted
from benchmarks.utility import image_peers

CLASSES = 10


def _mlp() -> nn.Module:
    return nn.Sequential(_dense(784, 512), nn.ReLU(), _dense(512, 512), nn.ReLU(), _dense(512, CLASSES))


def _mnist() -> nn.Module:
    return nn.Sequential(
        _conv(1, 32), nn.ReLU(), nn.MaxPool2d(2), _conv(32, 64), nn.ReLU(), nn.MaxPool2d(2), *_head(3136)
    )


def _cifar() -> nn.Module:
    return nn.Sequential(*_stage(3, 32), *_stage(32, 64), *_stage(64, 128), *_head(2048))


def _tiny() -> nn.Module:
    return nn.Sequential(_conv(1, 2), nn.ReLU(), nn.MaxPool2d(2), *_head(32))


class _Skip(nn.Module):
    """x + f(x)."""

    def __init__(self, first: int, hidden: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(_dense(first, hidden), nn.ReLU(), _dense(hidden, first))

    def forward(self, x: Tensor) -> Tensor:
        return x + self._mixed(x)

    def _mixed(self, x: Tensor) -> Tensor:
        mixed: Tensor = self.inner(x)
        return mixed


class _SkipOverTokens(_Skip):
    def _mixed(self, x: Tensor) -> Tensor:
        return super()._mixed(x.transpose(1, 2)).transpose(1, 2)


class _Mixer(nn.Module):
    """Tolstikhin et al. (2021), "MLP-Mixer", without normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 64, 4, stride=4, bias=False)
        self.blocks = nn.Sequential(
            *(part for _ in range(4) for part in (_SkipOverTokens(64, 64), _Skip(64, 128)))
        )
        self.head = _dense(64, CLASSES)

    def forward(self, image: Tensor) -> Tensor:
        tokens = self.stem(image).flatten(2).transpose(1, 2)
        logits: Tensor = self.head(self.blocks(tokens).mean(1))
        return logits


def _opacus() -> nn.Module:
    """The network of Opacus' MNIST tutorial, which papers use as well: 26,010 weights."""
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 8, 2, padding=3), nn.ReLU(), nn.MaxPool2d(2, 1)),
        *(nn.Conv2d(16, 32, 4, 2), nn.ReLU(), nn.MaxPool2d(2, 1)),
        *(nn.Flatten(), nn.Linear(512, 32), nn.ReLU(), nn.Linear(32, CLASSES)),
    )


class _Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.taken = nn.Linear(width, 3 * width)
        self.given = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        split = self.taken(x).reshape(batch, tokens, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4).unbind(0)
        scores = torch.softmax(query @ key.transpose(2, 3) * (width // self.heads) ** -0.5, dim=-1)
        found: Tensor = self.given((scores @ value).transpose(1, 2).reshape(batch, tokens, width))
        return found


class _ViT(nn.Module):
    """Dosovitskiy et al. (2021) in a small size, with fixed positions: Opacus has no rule for raw parameters."""

    def __init__(self, width: int = 64, blocks: int = 4) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 4, stride=4)
        self.register_buffer("positions", torch.sin(torch.arange(64.0)[:, None] / 2 ** torch.arange(width)))
        self.mixing = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), _Attention(width, 4)) for _ in range(blocks)
        )
        self.thinking = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
            for _ in range(blocks)
        )
        self.head = nn.Linear(width, CLASSES)

    def forward(self, image: Tensor) -> Tensor:
        x = self.stem(image).flatten(2).transpose(1, 2) + self.positions
        for mixed, thought in zip(self.mixing, self.thinking, strict=True):
            x = x + mixed(x)
            x = x + thought(x)
        logits: Tensor = self.head(x.mean(1))
        return logits


def _dense(features: int, width: int) -> nn.Module:
    return nn.Linear(features, width, bias=False)


def _conv(channels: int, width: int) -> nn.Module:
    return nn.Conv2d(channels, width, 3, padding=1, bias=False)


def _stage(channels: int, width: int) -> tuple[nn.Module, ...]:
    return _conv(channels, width), nn.ReLU(), _conv(width, width), nn.ReLU(), nn.MaxPool2d(2)


def _head(features: int) -> tuple[nn.Module, ...]:
    return nn.Flatten(), _dense(features, 512), nn.ReLU(), _dense(512, CLASSES)


@dataclass(frozen=True)
class Network:
    """A network to be trained.

    Args:
        name: of its `.lip` file.
        input_shape: of an example.
        size: N, the number of examples: near that of the data set that it is meant for, and a multiple of 2048.
        relu: builds the network of torch's own layers.
        proved: there is a `.lip` file with bounds by theorem.
    """

    name: str
    input_shape: tuple[int, ...]
    size: int
    relu: Callable[[], nn.Module]
    proved: bool = True

    def emitted(self) -> Any:
        """Return the emitted class.

        Raises:
            ValueError: bounds are by clip alone.
        """
        if not self.proved:
            raise ValueError("no theorem is claimed of this network")
        return emitted(Path(__file__).parent / f"{self.name}.lip")

    def data(self, device: torch.device) -> TensorDataset:
        """Return N examples with random entries and labels.

        They are windows of one long vector, each 64 entries after the one before: what a step takes is a copy of
        the windows, and N examples need no memory to speak of.
        """
        strides = torch.empty(1, *self.input_shape).stride()[1:]
        entries = torch.empty(self.input_shape).numel()
        values = torch.rand(64 * (self.size - 1) + entries, device=device)
        examples = values.as_strided((self.size, *self.input_shape), (64, *strides))
        return TensorDataset(examples, torch.randint(CLASSES, (self.size,), device=device))


TINY = Network("tiny", (1, 8, 8), 64, _tiny)
NETWORKS = {
    network.name: network
    for network in (
        Network("mlp", (784,), 30 * 2048, _mlp),
        Network("mnist", (1, 28, 28), 30 * 2048, _mnist),
        Network("cifar", (3, 32, 32), 25 * 2048, _cifar),
        Network("mixer", (3, 32, 32), 25 * 2048, _Mixer),
        Network("opacus", (1, 28, 28), 30 * 2048, _opacus, proved=False),
        *(
            Network(name, (3, 32, 32), 25 * 2048, partial(image_peers.network, name, (3, 32, 32)), proved=False)
            for name in ("vgg", "resnet")
        ),
        Network("vit", (3, 32, 32), 25 * 2048, _ViT, proved=False),
        TINY,
    )
}
