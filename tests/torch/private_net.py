"""A network small enough to derive its bounds by hand, for the tests of training."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from lipcompile_torch import PrivacyEngine, layers
from lipcompile_torch.nn import losses
from lipcompile_torch.train.engine import SeededWarning
from lipcompile_torch.train.module import LipschitzModule
from torch import Tensor, nn
from torch.optim import SGD, Optimizer
from torch.utils.data import DataLoader, TensorDataset

L = math.sqrt(2)  # cross entropy


class Net(LipschitzModule):
    """4 → 8 → 3 with ReLU, spectral norms at most 1, ‖bias‖ ≤ 0.1, ‖x‖ ≤ 1."""

    input_shape = (4,)
    input_norm = 1.0
    lipschitz = 1.0
    loss_lipschitz = L
    certificate: ClassVar[dict[str, object]] = {}
    bounds: ClassVar = {"inner.weight": L, "inner.bias": L, "outer.weight": 1.1 * L}

    hidden: ClassVar = 8

    def __init__(self) -> None:
        super().__init__()
        self.inner = layers.Dense(4, self.hidden, bias=0.1)
        self.outer = layers.Dense(self.hidden, 3)
        self.project_()

    def forward(self, x: Tensor) -> Tensor:
        return self.release(self.outer(torch.relu(self.inner(self.clip_input(x)))))

    def per_example_loss(self, output: Tensor, target: Tensor) -> Tensor:
        return losses.cross_entropy(output, target)


class Wide(Net):
    """The same network with 512 hidden units, for statistics from few steps."""

    hidden = 512


def data(count: int) -> TensorDataset:
    """Return separable examples [count, 4] of three classes."""
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(0, 3, (count,), generator=generator)
    return TensorDataset(torch.eye(4)[y] + 0.1 * torch.randn(count, 4, generator=generator), y)


def make_loader(count: int = 200, batch_size: int = 20, **options: Any) -> DataLoader[Any]:
    """Return an ordinary loader over `data`."""
    return DataLoader(data(count), batch_size=batch_size, **options)


B = 20
Triple = tuple[Any, Any, Any]


def private(
    build: Callable[[Any], Optimizer] = lambda ps: SGD(ps, lr=0.1), count: int = 200, **options: Any
) -> Triple:
    engine = options.pop("engine", None) or PrivacyEngine()
    module = options.pop("module", None) or Net()
    options = {"noise_multiplier": 1.0, "data_loader": make_loader(count, B), **options}
    triple: Triple = engine.make_private(module=module, optimizer=build(module.parameters()), **options)
    return triple


def seeded(*args: Any, **options: Any) -> Triple:
    with pytest.warns(SeededWarning, match="NOT private"):
        return private(*args, **options)


def backward(module: Any, x: Any, y: Any) -> None:
    module.criterion(module(x), y).backward()


def weights(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in module.named_parameters()}


class Recorder(Optimizer):
    """Keeps the gradients it is given."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 1.0})
        self.seen: list[list[torch.Tensor]] = []

    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # noqa: ARG002
        self.seen.append([p.grad.clone() for g in self.param_groups for p in g["params"]])
