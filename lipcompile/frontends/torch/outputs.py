"""Several outputs of a module as one, and apart again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from math import prod
from typing import TYPE_CHECKING, Any

from lipcompile.core.record import Shape

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module


@dataclass(frozen=True, slots=True)
class Structure:
    """What a module returns: how its tensors are nested, and the shape that each has for one example."""

    nesting: Any
    shapes: tuple[Shape, ...]

    def __call__(self, output: Tensor) -> Any:
        """Return the structure of an output [B, K] in which its tensors lie one after another."""
        import torch
        from torch.utils import _pytree

        parts = torch.split(output, [prod(shape) for shape in self.shapes], dim=1)
        shaped = [part.reshape(-1, *shape) for part, shape in zip(parts, self.shapes, strict=True)]
        return _pytree.tree_unflatten(shaped, self.nesting)

    def __deepcopy__(self, memo: Any) -> Structure:
        return self  # nothing in it changes


@contextmanager
def joined(module: Module) -> Iterator[list[Structure]]:
    """Let a module that returns several tensors [B, …] return one [B, K] meanwhile; yield what was joined."""
    import torch
    from torch.utils import _pytree

    kind, seen = type(module), list[Structure]()

    @wraps(kind.forward)
    def forward(self: Module, *args: Any, **kwargs: Any) -> Any:
        returned = kind.forward(self, *args, **kwargs)
        tensors, nesting = _pytree.tree_flatten(returned)
        if len(tensors) < 2 or not all(_is_rows(one) for one in tensors):
            return returned
        seen.append(Structure(nesting, tuple(tuple(map(int, one.shape[1:])) for one in tensors)))
        return torch.cat([one.reshape(one.shape[0], prod(one.shape[1:])) for one in tensors], 1)

    # Of the class, as copies of the module keep it.
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    module.__class__ = type(kind.__name__, (kind,), {"forward": forward, **names})
    try:
        yield seen
    finally:
        module.__class__ = kind


def _is_rows(value: Any) -> bool:
    """Whether this is numbers with an axis for the batch."""
    import torch

    return isinstance(value, torch.Tensor) and value.dim() > 0 and value.is_floating_point()
