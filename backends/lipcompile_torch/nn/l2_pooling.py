"""Euclidean norms over windows, with a backward pass in closed form.

The gradient of y = √Σx² in x is x/y: it takes the input and the output of the forward pass and nothing else. Sums
over windows, and their transposes, go axis by axis, tap by tap, on views, in the memory format of the input.
"""

from __future__ import annotations

from functools import reduce
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  (its name everywhere in this field)

from .autograd import apply, instances_first, write


class Axis(NamedTuple):
    """A window along one axis."""

    axis: int  # from the end: negative
    kernel: int
    stride: int
    dilation: int

    def taps(self, x: Tensor) -> list[Tensor]:
        """View what each tap sees of ``x``.

        Raises:
            ValueError: the window is larger than the axis.
        """
        size = x.shape[self.axis]
        steps = (size - self.dilation * (self.kernel - 1) - 1) // self.stride
        if steps < 0:
            raise ValueError(f"a window of {self.kernel} taps, {self.dilation} apart, exceeds an axis of {size}")
        index: list[Any] = [slice(None)] * x.dim()
        views = []
        for start in range(0, self.dilation * self.kernel, self.dilation):
            index[self.axis] = slice(start, start + steps * self.stride + 1, self.stride)
            views.append(x[tuple(index)])
        return views

    def tiles(self, x: Tensor) -> bool:
        """Whether each entry of the axis is in one window."""
        return self.stride == self.kernel and self.dilation == 1 and x.shape[self.axis] % self.kernel == 0

    def sums(self, x: Tensor) -> Tensor:
        """Sum each window."""
        return reduce(torch.add, self.taps(x))

    def spread(self, totals: Tensor, like: Tensor) -> Tensor:
        """Give each entry the sum of ``totals`` over the windows that it is in: the transpose of :meth:`sums`.
        Size of the axis and memory format are those of ``like``.
        """
        for place in range(-like.dim(), self.axis):
            like = like.narrow(place, 0, totals.shape[place])
        if self.tiles(like):
            result = torch.empty_like(like)
            for tap in self.taps(result):
                tap.copy_(totals)
            return result
        result = torch.zeros_like(like)
        for tap in self.taps(result):
            tap.add_(totals)
        return result


Axes = tuple[Axis, ...]


class _Norms(torch.autograd.Function):
    """√Σx² of each window."""

    @staticmethod
    def forward(x: Tensor, axes: Axes) -> Tensor:
        first, *others = axes[0].taps(x)
        total = first * first
        for tap in others:
            total.addcmul_(tap, tap)
        for axis in axes[1:]:
            total = axis.sums(total)
        return total.sqrt_()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Axes], output: Tensor) -> None:
        x, ctx.axes = inputs
        ctx.save_for_backward(x, output)
        tiny, eps = torch.finfo(x.dtype).tiny, torch.finfo(x.dtype).eps
        ctx.floor = (prod([axis.kernel for axis in ctx.axes]) * tiny / eps) ** 0.5

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor, None]:
        x, norms = ctx.saved_tensors
        quotients = cotangents[0] / F.threshold(norms, ctx.floor, torch.inf)  # 0 up to the floor, derivatives too
        return apply(_Scaled, x, quotients, ctx.axes), None

    @staticmethod
    def vmap(info: Any, dimensions: Any, x: Tensor, axes: Axes) -> tuple[Any, int]:
        return apply(_Norms, *instances_first(info.batch_size, dimensions, x), axes), 0


class _Scaled(torch.autograd.Function):
    """Multiply each entry by the sum of ``factors`` over the windows that it is in."""

    @staticmethod
    def forward(x: Tensor, factors: Tensor, axes: Axes) -> Tensor:
        for axis in reversed(axes[1:]):
            factors = axis.spread(factors, x)
        if not axes[0].tiles(x):
            return axes[0].spread(factors, x).mul_(x)
        result = torch.empty_like(x)
        for tap, place in zip(axes[0].taps(x), axes[0].taps(result), strict=True):
            write(place, torch.mul, tap, factors)
        return result

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Axes], output: Tensor) -> None:  # noqa: ARG004
        x, factors, ctx.axes = inputs
        ctx.save_for_backward(x, factors)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor, Tensor, None]:
        x, factors = ctx.saved_tensors
        products = x * cotangents[0]
        for axis in ctx.axes:
            products = axis.sums(products)
        return apply(_Scaled, cotangents[0], factors, ctx.axes), products, None

    @staticmethod
    def vmap(info: Any, dimensions: Any, x: Tensor, factors: Tensor, axes: Axes) -> tuple[Any, int]:
        return apply(_Scaled, *instances_first(info.batch_size, dimensions, x, factors), axes), 0


def window_norms(x: Tensor, axes: Axes) -> Tensor:
    """Return √Σx² over windows of the last axes of ``x``, float32 or float64.

    The gradient is x/√Σx², and 0 where Σx² < T·tiny/eps, T the number of taps.

    Raises:
        ValueError: a window is larger than its axis.
    """
    norms: Tensor = apply(_Norms, x, axes)
    return norms
