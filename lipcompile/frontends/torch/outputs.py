"""Several outputs of a module, or one within a structure, as one tensor, and apart again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from inspect import getattr_static, isfunction
from math import prod
from threading import RLock
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.utils import _pytree

from lipcompile.core.record import Shape

_ONE_AT_A_TIME = RLock()  # or one of two threads would find the other's class on a module, and leave it there


@dataclass(frozen=True, slots=True)
class Structure:
    """How the tensors that a module returns are nested, and the shape of each for one example; None stays None."""

    nesting: Any
    shapes: tuple[Shape | None, ...]

    def __call__(self, output: Tensor) -> Any:
        """Return the structure of an output [B, K], or of views [B, V, K], whose parts lie one after another."""
        leading = output.shape[:-1]
        parts = iter(torch.split(output, [prod(shape) for shape in self.shapes if shape is not None], dim=-1))
        shaped = [None if shape is None else next(parts).reshape(*leading, *shape) for shape in self.shapes]
        return _pytree.tree_unflatten(shaped, self.nesting)

    def __deepcopy__(self, memo: Any) -> Structure:
        return self  # nothing in it changes


@contextmanager
def joined(module: Module) -> Iterator[list[Structure]]:
    """Let a module that returns a structure of tensors [B, …] return one [B, K]; yield what was joined."""
    with _ONE_AT_A_TIME:
        kind, seen = type(module), list[Structure]()
        if not isfunction(getattr_static(kind, "forward")):  # of TorchScript, whose code has no class in Python
            yield seen
            return

        @wraps(kind.forward)
        def forward(self: Module, *args: Any, **kwargs: Any) -> Any:
            returned = kind.forward(self, *args, **kwargs)
            leaves, nesting = _pytree.tree_flatten(returned)
            tensors = [leaf for leaf in leaves if leaf is not None]
            if isinstance(returned, torch.Tensor) or not tensors or not all(_is_rows(one) for one in tensors):
                return returned
            shapes = (None if leaf is None else tuple(map(int, leaf.shape[1:])) for leaf in leaves)
            seen.append(Structure(nesting, tuple(shapes)))
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
    return isinstance(value, torch.Tensor) and value.dim() > 0 and value.is_floating_point()
