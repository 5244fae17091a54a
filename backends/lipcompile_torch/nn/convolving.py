"""Convolutions whose gradients of parameters are sums of :mod:`.sums`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  (its name everywhere in this field)

from ..clip.clipping import Ticket, ticket_of
from ..clip.example_gradients import ExampleGradients
from ..clip.outer_products import Windows
from ..clip.uses import Products
from .autograd import apply
from .reading import summed
from .sums import DEPTH, sum_of_products


@dataclass(frozen=True, slots=True)
class Geometry:
    """A convolution of any rank, with one integer an axis; zeros are added on both sides.

    Args:
        transposed: the adjoint of that convolution, with ``output_padding`` more entries behind.
    """

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    transposed: bool = False
    output_padding: tuple[int, ...] = ()

    def arguments(self) -> tuple[Any, ...]:
        """Return the arguments that torch's operations on convolutions end with."""
        extra = self.output_padding or (0,) * len(self.stride)
        return self.stride, self.padding, self.dilation, self.transposed, extra, self.groups

    def windows(self, kernel: torch.Size) -> Windows:
        """Return the windows that a kernel of this size reads."""
        return Windows(tuple(kernel), self.stride, self.padding, self.dilation, self.groups)


class _Convolve(torch.autograd.Function):
    """A convolution, or a transposed one, with a bias of one number a channel."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        geometry: Geometry,
        *tickets: Ticket | None,  # noqa: ARG004
    ) -> Tensor:
        return torch.convolution(x, weight, bias, *geometry.arguments())

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG004
        x, weight, _, ctx.geometry, *ctx.tickets = inputs
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        (cotangent,), (x, weight) = cotangents, ctx.saved_tensors
        wanted, arguments = ctx.needs_input_grad, ctx.geometry.arguments()
        back, bias, (of_weight, of_bias) = None, None, ctx.tickets
        if wanted[0]:
            own = cotangent, x.to(cotangent.dtype), weight.to(cotangent.dtype)
            back = torch.ops.aten.convolution_backward(*own, None, *arguments, (True, False, False))[0].to(x.dtype)
        if wanted[2]:
            channels = cotangent.shape[1], *(1,) * (x.dim() - 2)
            bias = summed(cotangent, channels, of_bias)
            bias = (bias if of_bias else bias.flatten()).to(weight.dtype)
        kernel = _kernel_gradient(x, cotangent, weight, ctx.geometry, of_weight) if wanted[1] else None
        return back, kernel, bias, None, None, None


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
    """Return the convolution of [B, C, *size] by a kernel, as torch lays it out; its geometry says which."""
    convolved: Tensor = apply(_Convolve, x, weight, bias, geometry, ticket_of(weight), ticket_of(bias))
    return convolved


_AT_ONCE = 2**22  # entries of windows that are held at once


def _kernel_gradient(
    x: Tensor, cotangent: Tensor, weight: Tensor, geometry: Geometry, ticket: Ticket | None
) -> Tensor:
    """Return the gradient of a kernel, [F, C/groups, *kernel], or [C, F/groups, *kernel] of a transposed one, or
    what stands for it.

    Native code adds in two steps: the gradient P̃_i of an example in float32, whose bits depend on the example
    alone, then all P̃_i in float64, and rounds the sum once. So the sums of two neighbouring batches of B examples
    differ by P̃_i and the last rounding: by K·(1 + a'·u + 2·B·u), with a' roundings on the way into P̃_i, where
    `precision.sum_slack` counts on K·(1 + 2·DEPTH·u·B) with B of 25 at least. A sum of B gradients is off by
    B·K·(a' + 1)·u, of which `checks.check_gradients` allows B·K·2·DEPTH·u.
    """
    of = ExampleGradients.of_transposed_convolution if geometry.transposed else ExampleGradients.of_convolution
    gradients = of(x, cotangent, geometry.windows(weight.shape[2:]))
    if ticket is not None:
        return ticket.note(Products.of(gradients))
    if not torch.is_grad_enabled() and gradients.is_native and gradients.depth < 2 * DEPTH:
        return gradients.total().to(weight.dtype)
    # The adjoint exchanges the roles of what is read and of the cotangent of what is made.
    read, made = (cotangent, x) if geometry.transposed else (x, cotangent)
    entries = read.shape[1] * math.prod(made.shape[2:]) * math.prod(weight.shape[2:])
    at_once = max(_AT_ONCE // max(entries, 1), 1)
    parts = zip(torch.split(read, at_once), torch.split(made, at_once), strict=True)
    sums = [sum_of_products(*_rows(part, own, weight.shape[2:], geometry)).double() for part, own in parts]
    return sum(sums[1:], start=sums[0]).reshape(weight.shape).to(weight.dtype)


def _rows(x: Tensor, cotangent: Tensor, kernel: torch.Size, geometry: Geometry) -> tuple[Tensor, Tensor]:
    """Return the cotangents [groups, n, F/groups] and windows [groups, n, C/groups·taps] of n = B·positions."""
    groups, rank = geometry.groups, len(kernel)
    windows = F.pad(x, [side for low in reversed(geometry.padding) for side in (low, low)])
    for axis, (size, step, gap) in enumerate(
        zip(kernel, geometry.stride, geometry.dilation, strict=True), start=2
    ):
        windows = windows.unfold(axis, (size - 1) * gap + 1, step)[..., ::gap]
    windows = torch.unflatten(windows, 1, (groups, -1))  # [B, groups, C/groups, *positions, *kernel]
    made = torch.unflatten(cotangent, 1, (groups, -1))  # [B, groups, F/groups, *positions]
    positions = range(3, 3 + rank)
    windows = windows.permute(1, 0, *positions, 2, *range(3 + rank, 3 + 2 * rank))
    return (
        made.permute(1, 0, *positions, 2).reshape(groups, -1, made.shape[2]),
        windows.reshape(groups, -1, math.prod(windows.shape[2 + rank :])),
    )
