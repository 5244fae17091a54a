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


def in_place(operand: Tensor, operation: str, *others: Any, **options: Any) -> Tensor:
    """Return the result of a method of tensors, such as "sqrt", in the memory of an operand that is done with.

    Torch 2.11 compiles a function whose result is computed in place to one through which nothing flows back.
    """
    name = operation if torch.compiler.is_compiling() else f"{operation}_"
    result: Tensor = getattr(operand, name)(*others, **options)
    return result


def write(place: Tensor, operation: Callable[..., Tensor], *operands: Tensor) -> None:
    """Write the result of one of torch's operations to a view. Not differentiable: for use in forward passes."""
    if torch.compiler.is_compiling():  # which has no views to write results to, but fuses copies
        place.copy_(operation(*operands))
    else:
        operation(*operands, out=place)
