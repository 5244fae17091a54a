"""Sorting along an axis of each example. Names are re-exported by :mod:`.functional`.

Pairs are sorted by two operations that write where their results belong, and cotangents go back by two more: no
stack, no `where` (which processors do entry by entry), in the memory format of what arrives. The backward pass
keeps one Boolean for each pair.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..autograd import apply, instances_first, write
from ..devices import is_processor


def dimension_of(x: Tensor, axis: int) -> int:
    """Return the dimension of ``x`` that ``axis`` of its examples is.

    Raises:
        ValueError: there is no such axis in an example.
    """
    rank = x.dim() - 1
    if not -rank <= axis < rank:
        raise ValueError(f"axis {axis} is outside an example of shape {tuple(x.shape[1:])}")
    return axis % rank + 1


def _places(x: Tensor, axis: int, halves: bool) -> tuple[Tensor, Tensor]:
    """View where the smaller and the larger entries of the pairs of ``axis`` < 0 go: neighbours, or the second
    half and the first.
    """
    if halves:
        larger, smaller = x.chunk(2, axis)
        return smaller, larger
    pairs = torch.unflatten(x, axis, (x.shape[axis] // 2, 2))
    return pairs.select(axis, 0), pairs.select(axis, 1)


def _exceeds(first: Tensor, second: Tensor, room: Tensor) -> Tensor:
    """Return ``first > second``. On processors, where entries lie side by side, torch takes twice as long to write
    Booleans as to write numbers, for which there is ``room``, and convert them.
    """
    if torch.compiler.is_compiling() or not is_processor(first.device) or 1 not in first.stride():
        return first > second
    return torch.gt(first, second, out=room).to(torch.bool)


class _SortPairs(torch.autograd.Function):
    """Sort pairs, and say which of them were swapped. The axis counts from the end."""

    @staticmethod
    def forward(x: Tensor, axis: int, halves: bool) -> tuple[Tensor, Tensor]:
        first, second = _places(x, axis, halves)
        result = torch.empty_like(x)
        low, high = _places(result, axis, halves)
        swapped = _exceeds(first, second, low)
        write(low, torch.minimum, first, second)
        write(high, torch.maximum, first, second)
        return result, swapped

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, int, bool], output: tuple[Tensor, Tensor]) -> None:
        _, ctx.axis, ctx.halves = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor, None, None]:
        (swapped,) = ctx.saved_tensors
        return apply(_SwapPairs, cotangents[0], swapped, ctx.axis, ctx.halves), None, None

    @staticmethod
    def vmap(info: Any, dimensions: Any, x: Tensor, axis: int, halves: bool) -> tuple[Any, tuple[int, int]]:
        (x,) = instances_first(info.batch_size, dimensions, x)
        return apply(_SortPairs, x, axis, halves), (0, 0)


class _SwapPairs(torch.autograd.Function):
    """Swap the pairs that are marked: a permutation that is its own inverse, so its own transpose."""

    @staticmethod
    def forward(x: Tensor, swapped: Tensor, axis: int, halves: bool) -> Tensor:
        first, second = _places(x, axis, halves)
        if is_processor(x.device) and not torch.compiler.is_compiling():
            swapped = swapped.view(torch.uint8)  # Booleans are converted one by one
        weight = swapped.to(x.dtype)
        result = torch.empty_like(x)
        low, high = _places(result, axis, halves)
        # With weights 0 and 1 an interpolation is exact, and finite unless the difference of a pair overflows.
        write(low, torch.lerp, first, second, weight)
        write(high, torch.lerp, second, first, weight)
        return result

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, int, bool], output: Tensor) -> None:  # noqa: ARG004
        _, swapped, ctx.axis, ctx.halves = inputs
        ctx.save_for_backward(swapped)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor, None, None, None]:
        (swapped,) = ctx.saved_tensors
        return apply(_SwapPairs, cotangents[0], swapped, ctx.axis, ctx.halves), None, None, None

    @staticmethod
    def vmap(info: Any, dimensions: Any, x: Tensor, swapped: Tensor, axis: int, halves: bool) -> tuple[Any, int]:
        x, swapped = instances_first(info.batch_size, dimensions, x, swapped)
        return apply(_SwapPairs, x, swapped, axis, halves), 0


def _sort_pairs(x: Tensor, dimension: int, *, halves: bool) -> Tensor:
    result: Tensor = apply(_SortPairs, x, dimension - x.dim(), halves)[0]
    return result


def group_sort(x: Tensor, group_size: int, axis: int = 0) -> Tensor:
    """Sort ascending within consecutive groups of ``group_size`` entries of ``axis`` (Anil, Lucas, Grosse,
    ICML 2019).

    Formal guarantees: norm-preserving; the Jacobian is a permutation, so 1-Lipschitz.

    Raises:
        ValueError: the axis does not divide into such groups.
    """
    dimension = dimension_of(x, axis)
    if group_size < 1 or x.shape[dimension] % group_size:
        raise ValueError(f"an axis of {x.shape[dimension]} entries does not divide into groups of {group_size}")
    if group_size == 2:
        return _sort_pairs(x, dimension, halves=False)
    count = x.shape[dimension] // group_size
    groups = x.reshape(*x.shape[:dimension], count, group_size, *x.shape[dimension + 1 :])
    return torch.sort(groups, dim=dimension + 1).values.reshape(x.shape)


def max_min(x: Tensor, axis: int = 0) -> Tensor:
    """Compare entry i of the first half of ``axis`` with entry i of the second: maxima first, then minima.

    Formal guarantees: as for :func:`group_sort`. Faster than it, for halves are contiguous; pairs are other
    ones.

    Raises:
        ValueError: the axis has an odd number of entries.
    """
    dimension = dimension_of(x, axis)
    if x.shape[dimension] % 2:
        raise ValueError(f"an axis of {x.shape[dimension]} entries does not divide into two halves")
    return _sort_pairs(x, dimension, halves=True)


def full_sort(x: Tensor, axis: int = 0) -> Tensor:
    """Sort ascending along ``axis``. Norm-preserving and 1-Lipschitz."""
    return x.sort(dim=dimension_of(x, axis)).values
