"""Projection of each example on a ball, which it never leaves by rounding."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from .. import native
from ..autograd import apply, in_place
from .rounding import DOUBLE
from .sums import as_rows, example_norms, per_example


class _ClipNorm(torch.autograd.Function):
    """Projection of each example on a ball; non-finite examples become zero."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, radius: float) -> Tensor:
        return _projected(x, radius)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:  # noqa: ARG004
        x, ctx.radius = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        norms = example_norms(x)
        scale, live = _clip_scale(norms, x, ctx.radius), per_example(norms.isfinite(), x)
        lengths = norms.clamp_min(max(ctx.radius, _step(x.dtype)))  # in the dtype, not 0
        unit = torch.where(live, x / per_example(lengths.to(x.dtype), x), torch.zeros_like(x))
        radial = as_rows(unit * cotangents[0]).sum(dim=1) * (scale < 1)
        gradient = (cotangents[0] - unit * per_example(radial, x)) * per_example(scale.to(x.dtype), x)
        return torch.where(live, gradient, torch.zeros_like(x)), None


def _projected(x: Tensor, radius: float) -> Tensor:
    limit, room = _clip_room(math.prod(x.shape[1:]), x.dtype, radius)
    if (clipped := native.clipped(x, limit, room)) is not None:
        return clipped
    factors = _clip_scale(example_norms(x), x, radius).to(x.dtype)
    return in_place(x * per_example(factors, x), "nan_to_num", nan=0.0)  # zero times infinity or NaN


def _clip_scale(norms: Tensor, x: Tensor, radius: float) -> Tensor:
    """Return the factor of each example [B] of x, float64 and rounded down."""
    return clip_scale(norms, as_rows(x).shape[1], x.dtype, radius)


def clip_scale(norms: Tensor, entries: int, dtype: torch.dtype, radius: float) -> Tensor:
    """Return the factor that takes each example, of a norm measured in float64, into the ball: see `clip_norm`; of
    NaN, NaN.

    Formal guarantees: where factors of the dtype are subnormal, rounding is absolute. There half of the distance
    of two is taken off, so that the factor is at most the quotient after it was rounded to the nearest. In float64
    there is no such half, and the whole is taken off, since the division rounded already.

    Args:
        norms: [B], float64, as `example_norms` gives them.
        entries: of an example.
        dtype: what the examples, the factor, and their products are rounded to.
    """
    limit, room = _clip_room(entries, dtype, radius)
    # A quotient of tensors: a number over a tensor is a reciprocal, which overflows, times the number. Clamped for
    # second derivatives at 0.
    quotient = torch.full_like(norms, room) / norms.clamp_min(max(limit, _TINY))
    lower = (quotient - max(_step(dtype) / 2, _TINY)).clamp_min(0)
    quotient = torch.where(quotient < torch.finfo(dtype).smallest_normal, lower, quotient)
    return torch.where(norms <= limit, 1.0, quotient)


_TINY = 2.0**-1074  # the smallest number of float64


def _step(dtype: torch.dtype) -> float:
    """Return how far apart subnormal numbers are."""
    return torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps


def _clip_room(entries: int, dtype: torch.dtype, radius: float) -> tuple[float, float]:
    """Return up to what measured norm an example is inside, and to what one outside is scaled: see `clip_norm`."""
    slack = (entries + 2) * DOUBLE
    room = radius * (1 - 2 * torch.finfo(dtype).eps - 3 * slack) - _step(dtype) * math.sqrt(entries) - _TINY
    return radius * (1 - slack) - _TINY, max(room, 0.0)


def clip_norm(x: Tensor, radius: float) -> Tensor:
    """Project each example of [B, …] on the ball of ``radius``; an example with NaN or infinity becomes zero
    first.

    Examples inside keep their bits, but for those within a relative (n + 3)·2⁻⁵³ of the sphere, n their entries.

    Formal guarantees: the exact norm of each result is at most ``radius``, for every dtype, radius and n ≥ 1. Let
    u = 2⁻⁵³, η = 2⁻¹⁰⁷⁴, and ε the relative and s the absolute distance of two numbers of the dtype. A norm is
    measured with the errors that `example_norms` states, (n/2 + 1)u and η/2.

    - Inside is what measures at most r(1 - (n + 2)u) - η, computed with errors of u and η/2. Its norm is at most
      (r(1 - (n + 2)u)(1 + u) - η + η/2 + η/2)·(1 + (n/2 + 1)u) ≤ r.
    - What is outside is scaled to r(1 - 2ε - 3(n + 2)u) - s√n - η, computed with errors of 3u, and of η where that
      is subnormal. The quotient by the norm adds u to that and to the norm's (n/2 + 1)u and η/2. Rounding of the
      factor adds ε/2, and 2⁻²⁴ where it passes float32; in subnormal numbers, nothing (`clip_scale`). Rounding of
      the products adds ε/2, and s/2 an entry, s√n/2 in all. The sum is at most r, with 3u to spare, as ε ≥ 2u.

    So on a ball that is no larger than s√n, examples outside become zero: 2⁻¹⁴⁹·√n in float32, 2⁻²⁴·√n in
    float16. Up to these units, and those of a subnormal factor, which cost 2s times the norm at most, the map is
    1-Lipschitz on finite examples; float64 examples of a norm beyond the largest float64 count as infinite.

    Raises:
        ValueError: the radius is not positive and finite.
    """
    if not 0 < radius < float("inf"):
        raise ValueError(f"the radius of a ball must be positive and finite; got {radius}")
    # Within `vmap` a tensor does not say that a gradient is taken outside.
    plain = not x.requires_grad and not torch._C._are_functorch_transforms_active()
    # A copy even if all are inside: what the way back reads stays so, whoever writes into the memory of x.
    clipped: Tensor = _projected(x, radius) if plain else apply(_ClipNorm, x, radius)
    return clipped
