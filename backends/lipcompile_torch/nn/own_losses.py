"""Losses of one's own: functions of Python, of each example alone. Emitted files find :func:`own` in `losses`."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from threading import RLock
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from ..clip.example_passes import forgetting
from .constrained import ConstrainedLayer
from .examples_alone import OneByOneWarning as OneByOneWarning
from .examples_alone import each_alone


def own(output: Tensor, target: Any, function: Callable[[Tensor, Any], Tensor] | None) -> Tensor:
    """Return a function's values, [B], of each example alone: it is given outputs [1, …] and targets [1, …].

    The targets are a tensor [B, …], or a tuple or a mapping of some. What a module writes into its buffers and
    attributes, as a running mean, is forgotten after each example.

    Formal guarantees: no loss depends on another example, if the function depends on its arguments alone, and no
    `torch.autograd.Function` in it has a `vmap` of its own, which is given all examples. No Lipschitz constant is
    known.

    Raises:
        ValueError: there is no function, or it returns no real number, or several, for one example.
    """
    if function is None:
        raise ValueError(
            "the loss `own` is a function, which only Python can give: lipcompile.private(module, example, "
            "loss=function)"
        )

    if not len(output):
        return output.flatten(1).sum(1)

    def of_one(row: Tensor, wanted: Any) -> Tensor:
        with _forgetting(function):
            value = function(row[None], tree_map(lambda part: part[None], wanted))
        if not isinstance(value, Tensor) or not value.is_floating_point():
            kind = value.dtype if isinstance(value, Tensor) else type(value).__name__
            raise ValueError(f"the loss returns {kind} for one example: return a real number that torch computed")
        if value.numel() != 1:
            raise ValueError(f"the loss returns {value.numel()} numbers for one example: return their mean or sum")
        return value.reshape(())

    with _ONE_LOSS:
        return each_alone(of_one, output, target, what="the loss", owner=function)


_ONE_LOSS = RLock()
"""A loss has its own attributes meanwhile, so no other thread's may begin."""


def _modules(function: Any) -> Iterator[nn.Module]:
    """Yield the modules that a function refers to: itself, in a partial one, by its variables, or as a method."""
    if isinstance(function, partial):
        for part in (function.func, *function.args, *function.keywords.values()):
            yield from _modules(part)
        return
    found, owner = [function], getattr(function, "__self__", None)
    if isinstance(function, FunctionType):
        known = inspect.getclosurevars(function)
        found += [*known.nonlocals.values(), *known.globals.values()]
    elif not isinstance(owner, nn.Module | ModuleType | None):
        found += [*getattr(owner, "__dict__", {}).values()]
    for one in (*found, owner):
        if isinstance(one, nn.Module):
            yield from _not_private(one)


def _not_private(module: nn.Module) -> Iterator[nn.Module]:
    """Yield a module, or its parts, without those whose gradients are watched."""
    if not any(isinstance(part, ConstrainedLayer) for part in module.modules()):
        yield module
    elif not isinstance(module, ConstrainedLayer):
        for part in module.children():
            yield from _not_private(part)


@contextmanager
def _forgetting(function: Any) -> Iterator[None]:
    """Let the modules of a function have copies of their attributes, and of their buffers, meanwhile."""
    with ExitStack() as stack:
        for module in _modules(function):
            stack.enter_context(forgetting(module))
            for part in module.modules():
                stored = {name: one.clone() for name, one in part._buffers.items() if one is not None}
                part._buffers.update(stored)
        yield


class MixingWarning(UserWarning):
    """A loss of a batch is made of more than the losses of its examples."""


@torch.no_grad()
def warn_of_mixing(function: Callable[[Tensor, Any], Tensor], output: Tensor, target: Any, losses: Tensor) -> None:
    """Warn of a function whose value for a batch is neither the mean nor the sum of its values for the examples.

    Args:
        function: as that of :func:`own`.
        output, target: of B >= 2 examples.
        losses: its values for each example alone, [B].
    """
    if torch.compiler.is_compiling():
        return

    def value() -> Tensor:  # of copies, which the function may write into
        given = tree_map(
            lambda part: part.clone() if isinstance(part, Tensor) else part, (output.detach(), target)
        )
        with _forgetting(function):
            return function(*given).double().reshape(-1)

    try:
        with _ONE_LOSS, torch.random.fork_rng(devices=[]):
            values = [value() for _ in range(2)]
    except Exception:
        return
    alone = losses.double()
    known = [alone] if values[0].numel() > 1 else [alone.sum()[None], alone.mean()[None]]
    whole, again = values
    is_fixed = bool(whole.isfinite().all()) and torch.equal(whole, again)  # with dropout no two values are one
    if is_fixed and not any(one.shape == whole.shape and torch.allclose(whole, one, 1e-3, 1e-6) for one in known):
        nothing = " Of each it is 0, so nothing is learned." if not losses.any() else ""
        warnings.warn(
            "the loss of this batch is neither the mean nor the sum of the losses of its examples: it compares "
            "examples, or divides by what they share. It is given one example at a time."
            f"{nothing} What is compared, such as a pair, must be one example, with several inputs. Class "
            "weights have no effect on the mean over one example: write them as factors",
            MixingWarning,
            stacklevel=4,
        )
