"""Norms along axes: taken, or divided by, with centring. Names are re-exported by :mod:`.functional`.

All work on [B, *example] with any B, zero included, and one example at a time: ``axes`` count within the
example, so no group of entries reaches across the batch. Half precision is computed in float32.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from .. import native
from ..autograd import apply
from ..certify.sums import working_dtype

Axes = tuple[int, ...]


def _dimensions(x: Tensor, axes: Axes) -> Axes:
    """Return the dimensions of ``x`` that ``axes`` of its examples are."""
    rank = x.dim() - 1
    if not axes or not all(-rank <= axis < rank for axis in axes):
        raise ValueError(f"axes {axes} are invalid for an example of shape {tuple(x.shape[1:])}")
    return tuple(axis % rank + 1 for axis in axes)


def _centred(x: Tensor, dimensions: Axes) -> Tensor:
    return x - x.mean(dim=dimensions, keepdim=True)


def _divided(x: Tensor, dimensions: Axes, floor: float | None, eps: float | None) -> Tensor:
    """Divide by max(floor, root mean square), or by √(mean square + eps).

    The mean square is raised to floor² before the root: at 0 the root has no gradient to trust.
    """
    bound = floor if floor is not None else eps
    if (floor is None) == (eps is None) or bound is None or not 0 < bound < float("inf"):
        raise ValueError(f"a norm needs a positive floor or a positive eps; got floor={floor} and eps={eps}")
    square = (x * x).mean(dim=dimensions, keepdim=True)
    return x * torch.rsqrt(square.clamp_min(bound * bound) if floor is not None else square + bound)


def _working(x: Tensor) -> Tensor:
    return x.to(working_dtype(x))


def center(x: Tensor, axes: Axes) -> Tensor:
    """Subtract from each example of [B, *example] its mean over ``axes``.

    Formal guarantees: an orthogonal projection of each example: 1-Lipschitz, ‖output‖ ≤ ‖x‖.

    Raises:
        ValueError: no axes, or one that an example does not have.
    """
    return _centred(_working(x), _dimensions(x, axes)).to(x.dtype)


def layer_norm(x: Tensor, axes: Axes, floor: float | None = None, eps: float | None = None) -> Tensor:
    """Return (x - μ)/max(floor, σ), or (x - μ)/√(σ² + eps), with mean and deviation over ``axes`` of each example.

    Formal guarantees: 1/floor-Lipschitz (1/√eps with eps); ‖output‖ ≤ min(‖x‖/floor, √n) for examples of n
    entries.

    Raises:
        ValueError: no axes, or one that an example does not have; not exactly one positive floor or eps.
    """
    dimensions, working = _dimensions(x, axes), _working(x)
    trailing = sorted(dimensions) == list(range(x.dim() - len(dimensions), x.dim()))
    if floor is None and eps is not None and 0 < eps < math.inf and trailing and native.is_eager():
        normalised, _, _ = apply(_Normalised, working, len(dimensions), eps)
        found: Tensor = normalised.to(x.dtype)
        return found
    return _divided(_centred(working, dimensions), dimensions, floor, eps).to(x.dtype)


class _Normalised(torch.autograd.Function):
    """(x - μ)/√(σ² + eps) over trailing axes by torch's kernels, and mean and 1/√(σ² + eps) of what is centred.

    They are given x - μ, as they compute x/√(σ² + eps) - μ/√(σ² + eps), whose terms may be far above the result.
    A norm does not see a mean, so the gradient in x is that in x - μ.
    """

    @staticmethod
    def forward(x: Tensor, rank: int, eps: float) -> tuple[Tensor, ...]:
        centred = _centred(x, tuple(range(x.dim() - rank, x.dim())))
        return torch.native_layer_norm(centred, x.shape[-rank:], None, None, eps)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        x, ctx.rank, ctx.eps = inputs
        _, mean, scale = output
        ctx.mark_non_differentiable(mean, scale)
        ctx.save_for_backward(x, mean, scale)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor, None, None]:
        x, mean, scale = ctx.saved_tensors
        dimensions = tuple(range(x.dim() - ctx.rank, x.dim()))
        centred = _centred(x, dimensions)
        if torch.is_grad_enabled():  # the derivative of a derivative
            found = _divided(centred, dimensions, None, ctx.eps)
            (back,) = torch.autograd.grad(found, x, cotangents[0], create_graph=True)
            return back, None, None
        given = cotangents[0], centred, x.shape[-ctx.rank :], mean, scale
        return torch.ops.aten.native_layer_norm_backward(*given, None, None, (True, False, False))[0], None, None


def rms_norm(x: Tensor, axes: Axes, floor: float | None = None, eps: float | None = None) -> Tensor:
    """Return x/max(floor, ρ), or x/√(ρ² + eps), ρ the root mean square over ``axes`` of each example.

    Formal guarantees and errors: as :func:`layer_norm`.
    """
    return _divided(_working(x), _dimensions(x, axes), floor, eps).to(x.dtype)


def group_norm(x: Tensor, groups: int, floor: float | None = None, eps: float | None = None) -> Tensor:
    """Return :func:`layer_norm` of each of ``groups`` runs of channels of [B, C, *spatial].

    Raises:
        ValueError: the channels do not divide into groups; not exactly one positive floor or eps.
    """
    if x.dim() < 2 or groups < 1 or x.shape[1] % groups:
        raise ValueError(f"{groups} groups do not divide the channels of examples of shape {tuple(x.shape[1:])}")
    grouped = x.reshape(x.shape[0], groups, x.shape[1] // groups, *x.shape[2:])
    return layer_norm(grouped, tuple(range(1, grouped.dim() - 1)), floor, eps).reshape(x.shape)


def instance_norm(x: Tensor, floor: float | None = None, eps: float | None = None) -> Tensor:
    """Return :func:`layer_norm` of each channel of [B, C, *spatial].

    Raises:
        ValueError: no spatial axes; not exactly one positive floor or eps.
    """
    return layer_norm(x, tuple(range(1, x.dim() - 1)), floor, eps)


def local_response_norm(x: Tensor, size: int, alpha: float, beta: float, k: float) -> Tensor:
    """Return x_c/(k + alpha/size·Σx²)^beta for [B, C, *spatial], Σ over channels c - size//2 … c + (size-1)//2.

    As :func:`torch.nn.functional.local_response_norm`, in which an empty batch fails.

    Formal guarantees: ‖output‖ ≤ k^-beta·‖x‖; for beta ≤ 1, k^-beta·√(1 + beta·(size-1)/q)-Lipschitz with
    q = 2·beta + 1 + 4·√((2·beta+1)(beta+1)/3).

    Raises:
        ValueError: a size below 1, alpha < 0, beta outside [0, 1], k <= 0, or no spatial axes.
    """
    if x.dim() < 3 or size < 1 or alpha < 0 or not 0 <= beta <= 1 or not k > 0:
        raise ValueError(
            f"a local response norm of an example of shape {tuple(x.shape[1:])} cannot have {size=}, "
            f"{alpha=}, {beta=}, {k=}"
        )
    working = _working(x)
    channels = x.shape[1]
    squares = torch.nn.functional.pad((working * working).transpose(1, -1), (size // 2, (size - 1) // 2))
    sums = sum(squares.narrow(-1, tap, channels) for tap in range(size))
    divisor = (k + alpha / size * torch.as_tensor(sums)).pow(beta)
    return (working / divisor.transpose(1, -1)).to(x.dtype)


def l2_norm(x: Tensor, axes: tuple[int, ...], keep: bool = False) -> Tensor:
    """Return √Σx² over ``axes`` of each example of [B, *example], which go, or stay with size 1 with ``keep``.

    Formal guarantees: 1-Lipschitz; ‖output‖ = ‖x‖. The gradient is that of :func:`p_norm`.

    Raises:
        ValueError: no axes, or one that an example does not have.
    """
    return p_norm(x, 2, _dimensions(x, axes), keep)


def p_norm(x: Tensor, p: int, dimensions: tuple[int, ...], keep: bool = False) -> Tensor:
    """Return (Σ|x|^p)^(1/p) over ``dimensions`` of x, none of which is the batch's, for p >= 2.

    Formal guarantees: 1-Lipschitz. Entries are divided by the largest of their group first, so that no power
    leaves the range of the dtype. The value and the gradient are 0 where the largest is below tiny/eps (1e-31 in
    float32), where quotients could not be trusted. Half precision is computed in float32.
    """
    working = _working(x)
    largest = working.detach().abs().amax(dimensions, keepdim=True)
    live = largest > torch.finfo(working.dtype).tiny / torch.finfo(working.dtype).eps
    powers = (working / torch.where(live, largest, 1)).abs().pow(p).sum(dimensions, keepdim=True)
    norms = torch.where(live, largest * torch.where(live, powers, 1).pow(1 / p), 0).to(x.dtype)
    return norms if keep else norms.squeeze(dimensions)
