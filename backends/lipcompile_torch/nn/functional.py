"""Stateless operations with known Lipschitz constants.

All work on [B, *example] with any B, zero included. Axes count within the example (axis 0 is dimension 1;
negative ones count from the end), so no operation here can reach across the batch. The stated constants are
those of the exact map; what rounding adds is stated in :mod:`~..certify.precision`.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  (its name everywhere in this field)

from ..autograd import apply
from ..certify.ball import clip_norm as clip_norm
from ..certify.ball import clip_scale as clip_scale
from ..certify.sums import example_norms as example_norms
from ..clip.clipping import ticket_of
from .normalisation import center as center
from .normalisation import group_norm as group_norm
from .normalisation import instance_norm as instance_norm
from .normalisation import l2_norm as l2_norm
from .normalisation import layer_norm as layer_norm
from .normalisation import local_response_norm as local_response_norm
from .normalisation import rms_norm as rms_norm
from .own_networks import own_network as own_network
from .own_networks import zeros as zeros
from .pointwise import colour_space as colour_space
from .pointwise import hsv as hsv
from .pointwise import noise as noise
from .pointwise import pointwise as pointwise
from .pooling import avg_pool as avg_pool
from .pooling import global_avg_pool as global_avg_pool
from .pooling import l2_pool as l2_pool
from .pooling import lp_pool as lp_pool
from .pooling import max_pool as max_pool
from .pooling import scaled_avg_pool as scaled_avg_pool
from .reading import spread, turned
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
    whole = torch.as_tensor(angle, dtype=x.dtype, device=x.device)
    if whole.dim() and whole.shape != (count, *(1,) * (x.dim() - dimension - 1)):
        raise ValueError(f"angles of shape {tuple(whole.shape)} do not fit the {count} pairs of axis {axis}")
    pairs = x.reshape(*x.shape[:dimension], count, 2, *x.shape[dimension + 1 :])
    first, second = pairs.unbind(dimension + 1)
    if isinstance(angle, Tensor) and ticket_of(angle) is not None:
        half = spread(angle, first.shape) / 2  # a clipped parameter is spread before anything is computed of it
        sine, cosine = half.sin(), half.cos()
    else:
        sine, cosine = turned(whole, first.shape)
    depth = 2 * torch.relu(second * cosine - first * sine)
    return torch.stack((first + depth * sine, second - depth * cosine), dimension + 1).reshape(x.shape)


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
        raise ValueError(f"the bound of a gradient must be positive and finite; got {bound}")
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


def grouped_dropout(x: Tensor, probability: float, axes: int, training: bool) -> Tensor:
    """Drop entries of [B, *example] together that agree in their first ``axes`` indices of the example.

    While ``training``, what is dropped becomes 0, with this probability; the rest is divided by 1 - probability.
    Every example draws for itself: 0 axes are random depth (Huang et al., 2016), 1 axis drops channels.

    Raises:
        ValueError: the example does not have so many axes.
    """
    if not 0 <= axes < x.dim():
        raise ValueError(f"an example of shape {tuple(x.shape[1:])} does not have {axes} axes")
    fates = x.new_ones(*x.shape[: axes + 1], *(1 for _ in x.shape[axes + 1 :]))
    return x * F.dropout(fates, probability, training)


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
