"""How forward passes read parameters: as a matrix, as a kernel, spread over positions, or row by row.

These functions have backward passes of their own. The gradient of a parameter is a sum of :mod:`..certify.sums`;
that of a parameter of a clip group is noted as a use of :mod:`..clip.clipping`, and computed when all uses of the
group are known.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  (its name everywhere in this field)

from ..autograd import apply
from ..certify.sums import DEPTH, sum_of_products, sum_to
from ..clip.bookkeeping import Outer, Products, Selected, Summed
from ..clip.clipping import Ticket, ticket_of
from ..clip.example_gradients import ExampleGradients, unfolded
from ..clip.outer_products import Windows

# --- spread over examples and positions --------------------------------------------------------------------------


def summed(cotangent: Tensor, shape: tuple[int, ...], ticket: Ticket | None) -> Tensor:
    """Return the gradient of a parameter of this shape that was spread over [B, *example], or what stands for
    it.
    """
    return sum_to(cotangent, shape) if ticket is None else ticket.note(Summed.of_spread(cotangent, shape))


class _Spread(torch.autograd.Function):
    """A parameter at every example and position; on the way back their sum."""

    generate_vmap_rule = True

    @staticmethod
    def forward(parameter: Tensor, shape: tuple[int, ...], ticket: Ticket | None) -> Tensor:  # noqa: ARG004
        return parameter.expand(shape)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG004
        parameter, _, ctx.ticket = inputs
        ctx.shape, ctx.dtype = tuple(parameter.shape), parameter.dtype

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor, None, None]:
        return summed(cotangents[0], ctx.shape, ctx.ticket).to(ctx.dtype), None, None


def spread(parameter: Tensor, shape: torch.Size) -> Tensor:
    """Return a parameter expanded to this shape, [B, *example]; its gradient is a sum by :func:`sum_to`."""
    spread_out: Tensor = apply(_Spread, parameter, tuple(shape), ticket_of(parameter))
    return spread_out


class _Turned(torch.autograd.Function):
    """Sine and cosine of half an angle at every example and position; on the way back one sum of both together."""

    generate_vmap_rule = True

    @staticmethod
    def forward(angle: Tensor, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        return (angle / 2).sin().expand(shape), (angle / 2).cos().expand(shape)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:  # noqa: ARG004
        angle, _ = inputs
        ctx.save_for_backward(angle)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor, None]:
        (angle,) = ctx.saved_tensors
        terms = (cotangents[0] * (angle / 2).cos() - cotangents[1] * (angle / 2).sin()) / 2
        return summed(terms, tuple(angle.shape), None).to(angle.dtype), None


def turned(angle: Tensor, shape: torch.Size) -> tuple[Tensor, Tensor]:
    """Return sine and cosine of half an angle, expanded to this shape, [B, *example]; its gradient is a sum by
    :func:`sum_to`, of what each position adds, which may be far less than what sine and cosine add by themselves.
    """
    sine, cosine = apply(_Turned, angle, tuple(shape))
    return sine, cosine


# --- matrices ----------------------------------------------------------------------------------------------------


class _Linear(torch.autograd.Function):
    """x·Wᵀ + b at every position; x·W + b if the weight is stored as [in, out]."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        transposed: bool,
        *tickets: Ticket | None,  # noqa: ARG004
    ) -> Tensor:
        return F.linear(x, weight.mT if transposed else weight, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG004
        x, weight, bias, ctx.transposed, *ctx.tickets = inputs
        ctx.save_for_backward(x, weight)
        ctx.bias_shape = None if bias is None else tuple(bias.shape)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        (cotangent,), (x, weight) = cotangents, ctx.saved_tensors
        wanted, (of_weight, of_bias), back = ctx.needs_input_grad, ctx.tickets, None
        if wanted[0]:
            map_back = (weight.mT if ctx.transposed else weight).to(cotangent.dtype)
            back = (cotangent @ map_back).to(x.dtype)
        read, made = (cotangent, x) if ctx.transposed else (x, cotangent)
        return (
            back,
            _matrix_gradient(read, made, of_weight).to(weight.dtype) if wanted[1] else None,
            summed(cotangent, ctx.bias_shape, of_bias).to(weight.dtype) if wanted[2] else None,
            None,
            None,
            None,
        )


def _matrix_gradient(x: Tensor, cotangent: Tensor, ticket: Ticket | None) -> Tensor:
    """Return the gradient of a matrix [p, d] that maps rows x [B, …, d], or what stands for it.

    Of one that maps rows the other way round, x is the cotangent, and the cotangent what the layer read.
    """
    if ticket is not None:
        if math.prod(x.shape[1:-1]) == 1:
            return ticket.note(Outer(x.flatten(1), cotangent.flatten(1)))
        return ticket.note(Products(ExampleGradients.of_tokens(x, cotangent)))
    rows = [half.reshape(math.prod(half.shape[:-1]), half.shape[-1]) for half in (cotangent, x)]
    return sum_of_products(*rows)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, transposed: bool = False) -> Tensor:
    """Return x·Wᵀ + b on the trailing axis of [B, …, d], x·W + b if transposed; gradients of parameters are sums
    of this module.
    """
    mapped: Tensor = apply(_Linear, x, weight, bias, transposed, ticket_of(weight), ticket_of(bias))
    return mapped


# --- rows that are selected --------------------------------------------------------------------------------------


class _Select(torch.autograd.Function):
    """Rows of a table."""

    generate_vmap_rule = True

    @staticmethod
    def forward(table: Tensor, selected: Tensor, ticket: Ticket | None) -> Tensor:  # noqa: ARG004
        return F.embedding(selected, table)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG004
        table, selected, ctx.ticket = inputs
        ctx.save_for_backward(selected)
        ctx.entries, ctx.dtype = len(table), table.dtype

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor, None, None]:
        (selected,) = ctx.saved_tensors
        width = cotangents[0].shape[-1]
        if ctx.ticket is not None:
            tokens = selected.reshape(len(selected), math.prod(selected.shape[1:]))
            use = Selected(tokens, cotangents[0].reshape(*tokens.shape, width), ctx.entries)
            return ctx.ticket.note(use), None, None
        rows, used = cotangents[0].reshape(-1, width).double(), selected.reshape(-1)
        total = rows.new_zeros(ctx.entries, width).index_add(0, used, rows)
        return total.to(ctx.dtype), None, None


def select(table: Tensor, selected: Tensor) -> Tensor:
    """Return rows [B, …, width] of a table, by their numbers [B, …]; the gradient is added in float64."""
    rows: Tensor = apply(_Select, table, selected, ticket_of(table))
    return rows


# --- kernels of convolutions -------------------------------------------------------------------------------------


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

    def map(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return the convolution of [B, C, *size], by functions that autocast knows on every device."""
        kind = f"conv{'_transpose' if self.transposed else ''}{len(self.stride)}d"
        last = (self.groups, self.dilation) if self.transposed else (self.dilation, self.groups)
        extra = (self.output_padding or 0,) if self.transposed else ()
        mapped: Tensor = getattr(F, kind)(x, weight, bias, self.stride, self.padding, *extra, *last)
        return mapped

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
        return geometry.map(x, weight, bias)

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
    # The adjoint exchanges the roles of what is read and of the cotangent of what is made.
    read, made = (cotangent, x) if geometry.transposed else (x, cotangent)
    windows = geometry.windows(weight.shape[2:])
    gradients = ExampleGradients(read, made, windows)
    if ticket is not None:
        return ticket.note(Products(gradients))
    if not torch.is_grad_enabled() and gradients.is_native and gradients.depth < 2 * DEPTH:
        return gradients.total().to(weight.dtype)
    entries = read.shape[1] * math.prod(made.shape[2:]) * math.prod(weight.shape[2:])
    at_once = max(_AT_ONCE // max(entries, 1), 1)
    parts = zip(torch.split(read, at_once), torch.split(made, at_once), strict=True)
    sums = [sum_of_products(*_rows(part, own, windows)).double() for part, own in parts]
    return sum(sums[1:], start=sums[0]).reshape(weight.shape).to(weight.dtype)


def _rows(read: Tensor, cotangent: Tensor, windows: Windows) -> tuple[Tensor, Tensor]:
    """Return the cotangents [groups, n, F/groups] and windows [groups, n, C/groups·taps] of n = B·positions."""
    groups, rank = windows.groups, len(windows.kernel)
    cut = unfolded(read, cotangent.shape[2:], windows)
    cut = torch.unflatten(cut, 1, (groups, -1))  # [B, groups, C/groups, *positions, *kernel]
    made = torch.unflatten(cotangent, 1, (groups, -1))  # [B, groups, F/groups, *positions]
    positions = range(3, 3 + rank)
    cut = cut.permute(1, 0, *positions, 2, *range(3 + rank, 3 + 2 * rank))
    return (
        made.permute(1, 0, *positions, 2).reshape(groups, -1, made.shape[2]),
        cut.reshape(groups, -1, math.prod(cut.shape[2 + rank :])),
    )
