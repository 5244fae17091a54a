"""The module itself as something that computes: its import is held against it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lipcompile.frontends.onnx.file.session import parts
from lipcompile.frontends.original import OriginalError
from lipcompile.frontends.silence import silence
from lipcompile.frontends.torch.places import summary
from lipcompile.frontends.torch.tracing import Example, batch, real

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch.nn import Module

    Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class ModuleRun:
    """A module that runs, in evaluation mode for as long as it does: see `Original`."""

    module: Module
    examples: Sequence[Example]
    batch: int | None
    precision: str
    runner: str = "the torch module"

    def __call__(self, x: Array) -> Array:
        """Map examples to outputs; raises OriginalError."""
        import numpy as np
        import torch

        likes, named = batch(self.module, self.examples, len(x))
        arrays = [torch.from_numpy(part.copy()) for part in parts(x, [one.shape for one in self.examples])]
        given = iter(arrays)
        args = [next(given).to(like) for like in likes]
        kwargs = {name: next(given).to(like) for name, like in named.items()}
        try:
            with silence(), _evaluating(self.module), torch.no_grad():
                (output,) = torch.utils._pytree.tree_leaves(self.module(*args, **kwargs))
        except Exception as error:
            raise OriginalError(f"the module fails: {summary(error)}") from None
        return np.asarray(output.double().cpu().numpy())


def precision(module: Module) -> str:
    """Return the name of the numbers that a module computes with, such as float32."""
    return str(real(module)).removeprefix("torch.")


@contextmanager
def _evaluating(module: Module) -> Iterator[None]:
    """Put a module into evaluation mode, and every part back into its own."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode
