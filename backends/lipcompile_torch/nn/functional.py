"""Stateless operations with known Lipschitz constants.

All work on [B, *example] with any B, zero included. Axes count within the example (axis 0 is dimension 1;
negative ones count from the end), so no operation here can reach across the batch. The stated constants are
those of the exact map; what rounding adds is :func:`~.precision.rounding_slack`.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  (its name everywhere in this field)

from .. import native
from ..certify.rounding import DOUBLE
from ..clip.clipping import ticket_of
from .autograd import apply
from .normalisation import center as center
from .normalisation import group_norm as group_norm
from .normalisation import instance_norm as instance_norm
from .normalisation import l2_norm as l2_norm
from .normalisation import layer_norm as layer_norm
from .normalisation import local_response_norm as local_response_norm
from .normalisation import rms_norm as rms_norm
from .pooling import avg_pool as avg_pool
from .pooling import global_avg_pool as global_avg_pool
from .pooling import l2_pool as l2_pool
from .pooling import lp_pool as lp_pool
from .pooling import max_pool as max_pool
from .pooling import scaled_avg_pool as scaled_avg_pool
from .reading import spread
from .resampling import expand as expand
from .resampling import gather as gather
from .resampling import pad as pad
from .resampling import upsample as upsample
from .resampling import where as where
from .scattering import scattering2d as scattering2d
from .sorting import dimension_of
from .sorting import full_sort as full_sort
from .sorting import group_sort as group_sort
from .sorting import max_min as max_min
from .sums import as_rows, per_example
from .sums import example_norms as example_norms


def householder(x: Tensor, angle: Tensor | float, axis: int = 0) -> Tensor:
    """Reflect each pair z of consecutive entries of ``axis``, unless ⟨v, z⟩ > 0: z ↦ z + 2·max(0, -⟨v, z⟩)·v with
    v = (sin(angle/2), -cos(angle/2)) (Singla, Singla, Feizi, ICLR 2022). At π/2: (max z, min z).

    Args:
        x: [B, *example].
        angle: in radians: one for all pairs, or [pairs, 1, …], one for each, with as many axes as examples have
            from ``axis`` on.
        axis: of the example.

    Formal guarantees: continuous, norm-preserving, 1-Lipschitz; the derivative in the angle of a pair is at most
    the norm of the pair, over all positions.

    Raises:
        ValueError: the axis does not divide into pairs, or into others than the angles are for.
    """
    dimension = dimension_of(x, axis)
    count = x.shape[dimension] // 2
    if x.shape[dimension] != 2 * count:
        raise ValueError(f"an axis of {x.shape[dimension]} entries does not divide into pairs")
    half = torch.as_tensor(angle, dtype=x.dtype, device=x.device) / 2
    if half.dim() and half.shape != (count, *(1,) * (x.dim() - dimension - 1)):
        raise ValueError(f"angles of shape {tuple(half.shape)} are not those of the {count} pairs of axis {axis}")
    pairs = x.reshape(*x.shape[:dimension], count, 2, *x.shape[dimension + 1 :])
    first, second = pairs.unbind(dimension + 1)
    if isinstance(angle, Tensor) and ticket_of(angle) is not None:
        half = spread(angle, first.shape) / 2  # a clipped parameter is spread before anything is computed of it
        sine, cosine = half.sin(), half.cos()
    else:
        sine, cosine = (spread(part, first.shape) for part in (half.sin(), half.cos()))
    depth = 2 * torch.relu(second * cosine - first * sine)
    return torch.stack((first + depth * sine, second - depth * cosine), dimension + 1).reshape(x.shape)


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
    return (x * per_example(factors, x)).nan_to_num_(nan=0.0)  # zero times infinity or NaN


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
        raise ValueError(f"the radius of a ball must be positive and finite, not {radius}")
    # Within `vmap` a tensor does not say that a gradient is taken outside.
    plain = not x.requires_grad and not torch._C._are_functorch_transforms_active()
    # A copy even if all are inside: what the way back reads stays so, whoever writes into the memory of x.
    clipped: Tensor = _projected(x, radius) if plain else apply(_ClipNorm, x, radius)
    return clipped


class _ClipGradient(torch.autograd.Function):
    """Identity whose cotangent is clipped example by example."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, bound: float) -> Tensor:  # noqa: ARG004
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:  # noqa: ARG004
        _, ctx.bound = inputs

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor, None]:
        return clip_norm(cotangents[0], ctx.bound), None


def clip_gradient(x: Tensor, bound: float) -> Tensor:
    """Return ``x``; on the way back clip the cotangent of each example to ``bound`` and zero a non-finite
    one.

    ``bound`` is for the cotangent that really arrives: of a criterion that divides by b, it is C/b. Modules
    use :meth:`~.module.LipschitzModule.clip_gradient`, which divides.

    Formal guarantees: the cotangent of each example that leaves has norm ≤ ``bound``, as in
    :func:`clip_norm`.

    Raises:
        ValueError: the bound is not positive and finite.
    """
    if not 0 < bound < float("inf"):
        raise ValueError(f"the bound of a gradient must be positive and finite, not {bound}")
    same: Tensor = apply(_ClipGradient, x, bound)
    return same


def space_to_depth(x: Tensor, r: int) -> Tensor:
    """Move r × r blocks of [B, C, H, W] to channels: [B, C·r², H/r, W/r], in the order of torch's pixel_unshuffle.

    A permutation. (Torch's own gives a wrong shape for an empty batch.)

    Raises:
        ValueError: the blocks do not tile the image.
    """
    batch, channels, height, width = x.shape
    if height % r or width % r:
        raise ValueError(f"blocks of {r} × {r} do not tile an image of {height} × {width}")
    blocks = x.reshape(batch, channels, height // r, r, width // r, r).permute(0, 1, 3, 5, 2, 4)
    return blocks.reshape(batch, channels * r * r, height // r, width // r)


def depth_to_space(x: Tensor, r: int) -> Tensor:
    """Undo :func:`space_to_depth`: [B, C·r², H, W] to [B, C, H·r, W·r]. A permutation.

    Raises:
        ValueError: the channels do not divide into blocks.
    """
    batch, channels, height, width = x.shape
    if channels % (r * r):
        raise ValueError(f"{channels} channels do not divide into blocks of {r} × {r}")
    blocks = x.reshape(batch, channels // (r * r), r, r, height, width).permute(0, 1, 4, 2, 5, 3)
    return blocks.reshape(batch, channels // (r * r), height * r, width * r)


def patches(x: Tensor, k: int) -> Tensor:
    """Cut [B, C, H, W] into k × k patches, row by row: [B, H/k·W/k, C·k²]. A permutation.

    Raises:
        ValueError: the patches do not tile the image.
    """
    return space_to_depth(x, k).flatten(2).transpose(1, 2)


def dot_product_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    scale: float | None = None,
    causal: bool = False,
    dropout: float = 0.0,
    training: bool = False,
) -> Tensor:
    """Map [B, *heads, n, d], [B, *heads, k, d] and [B, *heads, k, e] to [B, *heads, n, e]: softmax(scale·q·kᵀ)·v
    (Vaswani et al., 2017).

    No matrix is hidden in a kernel of torch: all sums are those of the plain definition, at any precision.

    Args:
        queries, keys, values: equal in the axes of heads, if there are any.
        scale: factor of the scores; 1/√d by default.
        causal: row i sees the rows up to i.
        dropout: probability that a weight becomes 0 while ``training``; the others are divided by 1 - dropout.

    Raises:
        ValueError: shapes that do not fit each other, which torch might broadcast, even across examples.
    """
    q, k, v = queries.shape, keys.shape, values.shape
    if not (len(q) >= 3 and q[:-2] == k[:-2] == v[:-2] and q[-1] == k[-1] and k[-2] == v[-2]):
        raise ValueError(f"queries {tuple(q)}, keys {tuple(k)} and values {tuple(v)} do not fit each other")
    factor = 1 / math.sqrt(q[-1]) if scale is None else scale
    # Of queries and scores the smaller one is multiplied, which saves passes over memory.
    scores = (queries * factor) @ keys.mT if q[-1] < k[-2] else (queries @ keys.mT) * factor
    if causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(later, -torch.inf)
    return F.dropout(scores.softmax(-1), dropout, training) @ values
