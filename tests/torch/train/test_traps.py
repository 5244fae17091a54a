"""Traps of training itself: what releases data unseen, or leaves a parameter without its noise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lipcompile_torch import layers
from lipcompile_torch.train.checks import PrivacyError
from lipcompile_torch.train.data import load_npz
from torch import Tensor
from torch.optim import SGD

from tests.torch.private_net import Net, Recorder, backward, seeded


def test_trap_14_no_statistic_of_the_data_set_enters_an_example(tmp_path: Path) -> None:
    """One example changes beyond all measure: what is trained on from the others stays bit for bit."""
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(40, 4)).astype(np.float32), generator.integers(0, 3, 40)
    other = x.copy()
    other[0] *= 1e6
    found = []
    for name, examples in (("one", x), ("other", other)):
        np.savez(tmp_path / f"{name}.npz", x_train=examples, y_train=y, x_test=examples, y_test=y)
        found.append(load_npz(tmp_path / f"{name}.npz", (4,), 3).x_train)
    np.testing.assert_array_equal(found[0][1:], found[1][1:])


class Unused(Net):
    """A layer of the network is left out of the forward pass at hand."""

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.inner(self.clip_input(x))).detach()
        return self.release(self.outer(hidden))


def test_trap_23_a_parameter_without_a_gradient_gets_its_noise() -> None:
    module, optimizer, loader = seeded(lambda ps: Recorder(ps), module=Unused(), noise_multiplier=1.0, seed=0)
    for x, y in loader:
        backward(module, x, y)
        optimizer.step()
    for step in optimizer.optimizer.seen:
        assert all(float(gradient.abs().min()) > 0 for gradient in step)


def test_trap_23_sparse_gradients_get_noise_in_every_entry() -> None:
    module, optimizer, loader = seeded(lambda ps: Recorder(ps), seed=0)
    x, y = next(iter(loader))
    backward(module, x, y)
    module.inner.weight.grad = module.inner.weight.grad.to_sparse()
    optimizer._gradients._watch.reset()  # as if it had come so
    optimizer.step()
    gradient = optimizer.optimizer.seen[-1][[name for name, _ in module.named_parameters()].index("inner.weight")]
    assert not gradient.is_sparse
    assert float(gradient.abs().min()) > 0


class Decaying(SGD):
    """Keeps the gradients that it is given."""

    seen: list[Tensor]

    def step(self, closure: Any = None) -> Any:
        self.seen = [p.grad.clone() for group in self.param_groups for p in group["params"]]
        return super().step(closure)


def test_trap_24_weight_decay_acts_on_the_released_gradient_alone() -> None:
    """The noisy gradient of two runs is one and the same: decay is added by the optimizer, to what is public."""
    seen = []
    for decay in (0.0, 0.5):
        torch.manual_seed(0)
        module, optimizer, loader = seeded(lambda ps, d=decay: Decaying(ps, lr=0.1, weight_decay=d), seed=3)
        x, y = next(iter(loader))
        backward(module, x, y)
        optimizer.step()
        seen.append(optimizer.optimizer.seen)
    assert all(torch.equal(one, other) for one, other in zip(*seen, strict=True))


def test_trap_24_the_loss_is_not_scaled_before_backward() -> None:
    module, optimizer, loader = seeded(seed=0)
    x, y = next(iter(loader))
    (128.0 * module.criterion(module(x), y)).backward()
    with pytest.raises(PrivacyError):
        optimizer.step()
    optimizer.zero_grad()


def test_trap_25_an_embedding_neither_counts_the_batch_nor_renormalises() -> None:
    """A token that the whole batch holds: its gradient is the sum of the examples' own; the table stays."""
    torch.manual_seed(0)
    layer = layers.Embedding(5, 3, bound=1.0)
    before = layer.table.detach().clone()
    tokens = torch.tensor([[1, 1], [1, 2], [1, 1]])
    target = torch.randn(3, 2, 3)
    (layer(tokens) * target).sum().backward()
    together = layer.table.grad
    alone = torch.zeros_like(before)
    for row, weight in zip(tokens, target, strict=True):
        alone.index_add_(0, row, weight)
    assert together is not None
    torch.testing.assert_close(together, alone)
    assert torch.equal(layer.table.detach(), before)
