"""A training under an engine, alone or one of several processes, for the tests of both; load it with `runpy`."""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from pathlib import Path
from runpy import run_path
from typing import Any

import torch
from lipcompile_torch import PrivacyEngine
from torch import Tensor
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD

HELP = run_path(str(Path(__file__).with_name("private_net.py")))
Net, Wide, make_loader = HELP["Net"], HELP["Wide"], HELP["make_loader"]
SIZE, BATCH = 12, 2  # batches so small that ranks often get nothing


class Recording(SGD):
    """SGD that keeps the gradients it is given, whole."""

    def __init__(self, params: Any, lr: float = 0.5) -> None:
        super().__init__(params, lr=lr)
        self.seen: list[list[Tensor]] = []

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.seen.append([whole(p.grad).clone() for g in self.param_groups for p in g["params"]])
        super().step(closure)


def whole(tensor: Any) -> Any:
    """Return a tensor put together from its shards; not by the code under test."""
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach()


def sharded(module: Any, **options: Any) -> Any:
    """Let FSDP2 shard a module on processors, where torch would choose a GPU if there is one."""
    from torch.distributed.fsdp import fully_shard  # slow to import

    return fully_shard(module, mesh=init_device_mesh("cpu", (dist.get_world_size(),)), **options)


def weights(module: Any) -> dict[str, Tensor]:
    return {name: whole(parameter).clone() for name, parameter in module.named_parameters()}


def three_views(x: Tensor) -> Tensor:
    """Return views [B, 3, 4] of examples [B, 4]: themselves, turned round, and halved."""
    return torch.stack([x, x.flip(1), 0.5 * x], dim=1)


def two_inputs(x: Tensor) -> dict[str, Tensor]:
    """Return the entries of examples [B, 4], or of views of them, as two inputs, not in their order."""
    return {"last": x[..., 3], "first": x[..., :3]}


def two_texts(x: Tensor) -> dict[str, Tensor]:
    """Return two inputs of words, of two kinds of whole numbers."""
    words = (x > 0.5).long()
    return {"mask": words[..., 2:].int(), "ids": words[..., :2]}


class Training:
    """A module under an engine: `inner` is the emitted module, `outer` what is called.

    Replicas start from other weights on every rank, as they do if nobody sets a seed; shards from the same.
    """

    def __init__(self, kind: str = "ours", net: Any = Net, build: Any = Recording, **options: Any) -> None:
        alone = not dist.is_initialized()
        torch.manual_seed(0 if kind == "fsdp" or alone else dist.get_rank())
        self.inner = self.outer = net()
        self.inner.projection_slack = options.pop("slack", self.inner.projection_slack)
        by_layer, self.views = options.pop("by_layer", True), options.pop("views", None)
        self.inputs = options.pop("inputs", None)
        if kind == "fsdp" and not alone:
            for layer in list(self.inner.children())[:-1] if by_layer else ():
                sharded(layer)
            sharded(self.inner)
        elif kind == "ddp" and not alone:
            self.outer = DistributedDataParallel(self.inner)
        self.engine = options.pop("engine", None) or PrivacyEngine(ledger=options.pop("ledger", None))
        options = {"data_loader": make_loader(SIZE, BATCH), "noise_multiplier": 1.0, **options}
        plain = build(self.inner.parameters())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a fixed seed is not private
            private: tuple[Any, Any, Any] = self.engine.make_private(module=self.outer, optimizer=plain, **options)
        self.outer, self.optimizer, self.loader = private

    def backward(self, x: Tensor, y: Tensor, scale: float = 1.0) -> None:
        x = self.views(x) if self.views else x
        with self.inner.on_views() if self.views else nullcontext():
            output = self.outer(**self.inputs(x)) if self.inputs else self.outer(x)
        (scale * self.inner.criterion(output, y)).backward()

    def train(self, epochs: int = 1) -> None:
        for _ in range(epochs):
            for x, y in self.loader:
                self.backward(x, y)
                self.optimizer.step()

    def result(self) -> dict[str, Any]:
        seen = getattr(self.optimizer.optimizer, "seen", [])
        return {"weights": weights(self.inner), "seen": seen}
