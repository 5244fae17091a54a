"""The networks that are timed: each as a `.lip` file and, of the same shape, of torch's own layers.

The latter have ReLU and max-pooling in place of GroupSort and L2-pooling, and no biases either: all contestants
train the same parameters. Some are of torch's own layers alone, with biases: nothing but a clip bounds their
gradients, so contestants with bounds by theorem are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from benchmarks.harness import emitted
from benchmarks.utility import image_peers
from benchmarks.utility.image_peers import Transpose

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


class _Skip(nn.Sequential):
    """x + f(x)."""

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = super().forward(x)  # type: ignore[no-untyped-call]
        return x + found


class _Mean(nn.Module):
    """Of the tokens."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1)


def _mixer() -> nn.Module:
    """Tolstikhin et al. (2021), "MLP-Mixer", without normalisation."""

    def perceptron(width: int) -> tuple[nn.Module, ...]:
        return _dense(64, width), nn.ReLU(), _dense(width, 64)

    stem = nn.Conv2d(3, 64, 4, stride=4, bias=False), nn.Flatten(2), Transpose()
    blocks = [(_Skip(Transpose(), *perceptron(64), Transpose()), _Skip(*perceptron(128))) for _ in range(4)]
    return nn.Sequential(*stem, *chain(*blocks), _Mean(), _dense(64, CLASSES))


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


class _Placed(nn.Module):
    """Fixed positions of 64 tokens, added: Opacus has no rule for raw parameters."""

    positions: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("positions", torch.sin(torch.arange(64.0)[:, None] / 2 ** torch.arange(width)))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.positions


def _vit(width: int = 64, blocks: int = 4) -> nn.Module:
    """Dosovitskiy et al. (2021) in a small size."""

    def block() -> tuple[nn.Module, ...]:
        perceptron = nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        return _Skip(nn.LayerNorm(width), _Attention(width, 4)), _Skip(nn.LayerNorm(width), *perceptron)

    stem = nn.Conv2d(3, width, 4, stride=4), nn.Flatten(2), Transpose(), _Placed(width)
    return nn.Sequential(*stem, *chain(*(block() for _ in range(blocks))), _Mean(), nn.Linear(width, CLASSES))


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
        Network("mixer", (3, 32, 32), 25 * 2048, _mixer),
        Network("opacus", (1, 28, 28), 30 * 2048, _opacus, proved=False),
        *(
            Network(name, (3, 32, 32), 25 * 2048, partial(image_peers.network, name, (3, 32, 32)), proved=False)
            for name in ("vgg", "resnet")
        ),
        Network("vit", (3, 32, 32), 25 * 2048, _vit, proved=False),
        TINY,
    )
}
