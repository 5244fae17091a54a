"""How forward passes read parameters: as a matrix, spread over positions, or row by row.

These functions have backward passes of their own. The gradient of a parameter is a sum of :mod:`.sums`; that of a
parameter of a clip group is noted as a use of :mod:`.clipping`, and computed when all uses of the group are known.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  (its name everywhere in this field)

from ..clip.clipping import Ticket, ticket_of
from ..clip.example_gradients import ExampleGradients
from ..clip.uses import Outer, Products, Selected, Summed
from .autograd import apply
from .sums import sum_of_products, sum_to

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


# --- matrices ----------------------------------------------------------------------------------------------------


class _Linear(torch.autograd.Function):
    """x·Wᵀ + b at every position."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None, *tickets: Ticket | None) -> Tensor:  # noqa: ARG004
        return F.linear(x, weight, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG004
        x, weight, bias, *ctx.tickets = inputs
        ctx.save_for_backward(x, weight)
        ctx.bias_shape = None if bias is None else tuple(bias.shape)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        (cotangent,), (x, weight) = cotangents, ctx.saved_tensors
        wanted, (of_weight, of_bias), back = ctx.needs_input_grad, ctx.tickets, None
        if wanted[0]:
            back = (cotangent @ weight.to(cotangent.dtype)).to(x.dtype)
        return (
            back,
            _matrix_gradient(x, cotangent, of_weight).to(weight.dtype) if wanted[1] else None,
            summed(cotangent, ctx.bias_shape, of_bias).to(weight.dtype) if wanted[2] else None,
            None,
            None,
        )


def _matrix_gradient(x: Tensor, cotangent: Tensor, ticket: Ticket | None) -> Tensor:
    """Return the gradient of a matrix [p, d] that maps rows [B, …, d], or what stands for it."""
    if ticket is not None:
        if math.prod(x.shape[1:-1]) == 1:
            return ticket.note(Outer(x.flatten(1), cotangent.flatten(1)))
        return ticket.note(Products.of(ExampleGradients.of_tokens(x, cotangent)))
    rows = [half.reshape(math.prod(half.shape[:-1]), half.shape[-1]) for half in (cotangent, x)]
    return sum_of_products(*rows)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x·Wᵀ + b on the trailing axis of [B, …, d]; gradients of parameters are sums of this module."""
    mapped: Tensor = apply(_Linear, x, weight, bias, ticket_of(weight), ticket_of(bias))
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
