"""The common parts of functions with their own backward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def apply(function: Any, *arguments: Any) -> Any:
    """Apply an autograd function, given all arguments of its forward pass; torch leaves ``apply`` untyped.

    Torch looks for missing arguments at every call, which takes as long as a small layer: it is passed by.
    """
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return function.apply(*arguments)
    return super(torch.autograd.Function, function).apply(*arguments)


def instances_first(size: int, dimensions: tuple[int | None, ...], *tensors: Tensor) -> tuple[Tensor, ...]:
    """Return the operands of ``size`` instances, under `torch.vmap`, with the dimension of instances first.

    A function whose axes count from the end then takes all instances as it takes one.

    Args:
        size: number of instances.
        dimensions: that of each operand, None if it is the same for all instances.
        tensors: the operands, in the order of ``dimensions``, which may be longer.
    """
    pairs = zip(tensors, dimensions, strict=False)
    return tuple(x.expand(size, *x.shape) if d is None else x.movedim(d, 0) for x, d in pairs)


def write(place: Tensor, operation: Callable[..., Tensor], *operands: Tensor) -> None:
    """Write the result of one of torch's operations to a view. Not differentiable: for use in forward passes."""
    if torch.compiler.is_compiling():  # which has no views to write results to, but fuses copies
        place.copy_(operation(*operands))
    else:
        operation(*operands, out=place)
