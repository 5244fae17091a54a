"""Ways to train a network: each is a generator that takes one step whenever it is asked for the next item.

Its first item is a 0, when the network is there and nothing for training yet; all others are the number of
examples of the step just taken. A step is a whole iteration: the batch is drawn and copied out of the data set,
forward and backward pass, the optimizer's step and all that privacy adds to it.

All use plain SGD at one learning rate, and noise of σ = 1. Our batches come from the private loader, at its cost;
those of all others are slices of tensors by a random order, which is as fast as can be: a `DataLoader`, which
handles examples one by one, would cost them more.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from lipcompile_torch import PrivacyEngine
from lipcompile_torch.factorisation import Blt, MinSeparation
from torch import Tensor, nn
from torch.optim import SGD, Optimizer
from torch.utils.data import DataLoader, TensorDataset

import lipcompile

from .networks import Network

SIGMA = 1.0
RATE = 1e-4
"""Learning rate for each example of a batch, so that noise moves weights equally far at every batch size. On MNIST
it is the best of those that `rates.py` tries for the perceptron, and below the best for the ConvNet.
"""
FIXED_SIZE = {"sampling": "fixed_size"}  # Poisson sampling would not give batches of exactly b


@dataclass(frozen=True)
class Task:
    """What all contestants train.

    Args:
        batch: b; the learning rate is `rate`·b.
    """

    network: Network
    batch: int
    device: torch.device
    rate: float = RATE

    @cached_property
    def data(self) -> TensorDataset:
        """N examples on the device."""
        return self.network.data(self.device)

    def sgd(self, module: nn.Module) -> SGD:
        """Return the optimizer."""
        return SGD(module.parameters(), lr=self.rate * self.batch)

    def relu(self) -> nn.Module:
        """Return the network of torch's own layers."""
        return self.network.relu().to(self.device)

    def shuffled(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield batches of exactly b examples in random orders, for ever."""
        x, y = self.data.tensors
        while True:
            order = torch.randperm(len(y), device=self.device)
            for start in range(0, len(y) - self.batch + 1, self.batch):
                indices = order[start : start + self.batch]
                yield x[indices], y[indices]


Contestant = Callable[[Task], Iterator[int]]


def _relu(task: Task) -> Iterator[int]:
    """Plain SGD on torch's own layers, ReLU and max-pooling."""
    return _plain(task, task.relu())


def _same_layers(task: Task) -> Iterator[int]:
    """Plain SGD on the forward pass that was emitted, less the two things in it that serve privacy alone."""
    module = task.network.emitted()()
    module.clip_input = module.release = lambda x: x
    return _plain(task, module.to(task.device))


def _plain(task: Task, module: nn.Module) -> Iterator[int]:
    yield 0
    yield from _loop(task, module, task.sgd(module), nn.CrossEntropyLoss())


def _loop(task: Task, module: nn.Module, optimizer: Optimizer, criterion: Any) -> Iterator[int]:
    for x, y in task.shuffled():
        optimizer.zero_grad()
        criterion(module(x), y).backward()
        optimizer.step()
        yield len(x)


def ours(how: Mapping[str, Any]) -> Contestant:
    """Return private training of the emitted module, with options of `make_private`."""

    def train(task: Task) -> Iterator[int]:
        module = task.network.emitted()().to(task.device)
        yield 0
        yield from _private(task, module, how)

    return train


def _private(task: Task, module: Any, how: Mapping[str, Any]) -> Iterator[int]:
    module, optimizer, loader = PrivacyEngine(neighbours="replace_one").make_private(
        module=module,
        optimizer=task.sgd(module),
        data_loader=DataLoader(task.data, batch_size=task.batch),
        noise_multiplier=SIGMA,
        **how,
    )
    while True:
        for x, y in loader:
            optimizer.zero_grad()
            module.criterion(module(x), y).backward()
            optimizer.step()
            yield len(x)


def _clip(how: Mapping[str, Any]) -> Contestant:
    """Return private training of torch's own layers, ReLU and max-pooling, each example's gradient clipped as a
    whole, with options of `make_private`.
    """

    def train(task: Task) -> Iterator[int]:
        module = lipcompile.private(task.relu().cpu(), tuple(task.data.tensors[0].shape[1:]), bounds="clip")
        yield 0
        yield from _private(task, module.to(task.device), how)

    return train


def _correlated(task: Task) -> Iterator[int]:
    """As ours, with correlated noise of three buffers, the most that are planned by default.

    Their numbers, on which no time depends, are not optimised for the run: that takes seconds.
    """
    steps, apart = 2000, task.network.size // task.batch
    strategy = Blt((0.99, 0.9, 0.5), (0.1, 0.2, 0.2), steps, MinSeparation(apart, -(-steps // apart)))
    return ours({"noise": "optimal", "correlation": strategy, "max_steps": steps})(task)


def opacus(mode: str) -> Contestant:
    """Return DP-SGD by Opacus on torch's own layers, its per-example gradients clipped at 1."""

    def train(task: Task) -> Iterator[int]:
        engine = importlib.import_module("opacus").PrivacyEngine()
        module = task.relu()
        yield 0
        made = engine.make_private(
            module=module,
            optimizer=task.sgd(module),
            data_loader=DataLoader(task.data, batch_size=task.batch),
            noise_multiplier=SIGMA,
            max_grad_norm=1.0,
            poisson_sampling=False,  # its loader is not used: see above
            grad_sample_mode=mode,
        )
        criterion = made[2] if mode == "ghost" else nn.CrossEntropyLoss()
        yield from _loop(task, made[0], made[1], criterion)

    return train


CONTESTANTS: dict[str, Contestant] = {
    "relu": _relu,
    "same layers": _same_layers,
    "global": ours(FIXED_SIZE | {"noise": "global"}),
    "per_layer": ours(FIXED_SIZE | {"noise": "per_layer"}),
    "optimal": ours(FIXED_SIZE | {"noise": "optimal"}),
    "clip": _clip(FIXED_SIZE),
    "fixed shape": _clip(FIXED_SIZE | {"fixed_shape": True}),
    "correlated": _correlated,
    "secure": ours(FIXED_SIZE | {"noise": "optimal", "secure": True}),
    "hooks": opacus("hooks"),
    "ghost": opacus("ghost"),
}
DEFAULT = tuple(name for name in CONTESTANTS if name not in ("secure", "fixed shape"))


def start(name: str, task: Task) -> Iterator[int]:
    """Return a contestant whose network and data are there."""
    assert task.data
    training = CONTESTANTS[name](task)
    next(training)
    return training
