"""Steps of the audit: uphill along a slope, and back to a constraint set.

A step need not be certified: the audit certifies what it measures, once, with ``project_``. It must be *good*: a
plain rescaling gets stuck where one singular value is too large, so weights go back to their sets by clipping the
singular values, of convolutions at every frequency.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..certify.constraints import Box, Constraint, Free, Frobenius
from ..certify.operators import Convolution, Dense, Entries, Operator, Rows

_ROUNDS = 6  # of clipping at all frequencies and cutting the kernel back to its support, at most
_RELAXATION = 1.8  # how far a round goes, from the second on: alternating projections go only part of the way
_SETTLED = 1e-3
_USUAL = 8.0  # how much longer a free weight may get than an orthogonal one of its size


def unit(direction: Tensor) -> Tensor:
    """Return ``direction`` at norm 1, or 0 if it is 0."""
    norm = direction.norm()
    return direction / norm if norm > 0 else direction


@dataclass(frozen=True)
class Domain:
    """The constraint set of one parameter, as the adversary walks in it."""

    constraint: Constraint
    operator: Operator

    @property
    def settled(self) -> bool:
        """Whether the set is a single point, 0."""
        return self.constraint.bound == 0 and not isinstance(self.constraint, Free)

    def step(self, weight: Tensor, slope: Tensor, size: float) -> Tensor:
        """Go ``size`` radii along ``slope`` and back into the set, up to rounding. A free weight stays in a ball:
        without one, it would grow until its gradients overflow.
        """
        if self.settled or not slope.abs().max() > 0:
            return weight
        if isinstance(self.constraint, Free):
            radius = _USUAL * math.sqrt(min(weight.shape[:2], default=1))
            return radius * _shortened(weight / radius + size * unit(slope), None)
        radius = self.constraint.bound
        return radius * self._retract(weight / radius + size * self._steepest(slope))

    def into(self, weight: Tensor) -> Tensor:
        """Return a weight on or near the border of the set: the start of an ascent."""
        if self.settled:
            return torch.zeros_like(weight)
        if isinstance(self.constraint, Free):
            return weight
        return self.constraint.bound * self._retract(weight)

    @property
    def _entrywise(self) -> bool:
        return isinstance(self.constraint, Box) or isinstance(self.operator, Entries)

    @property
    def _by_rows(self) -> bool:
        return isinstance(self.operator, Rows)

    def _steepest(self, slope: Tensor) -> Tensor:
        """Return ``slope`` at the scale of a set of radius 1."""
        if self._entrywise:
            return slope / float(slope.abs().max())
        if self._by_rows:
            return slope / float(slope.norm(dim=-1).max())
        return unit(slope)

    def _retract(self, weight: Tensor) -> Tensor:
        """Return a point of the set of radius 1 near ``weight``."""
        if self._entrywise:
            return weight.clamp(-1, 1)
        if self._by_rows:
            return _shortened(weight, -1)
        if isinstance(self.constraint, Frobenius):
            return _shortened(weight, None)
        if isinstance(self.operator, Dense):
            return clip_singular_values(weight)
        if isinstance(self.operator, Convolution):
            weight = clip_convolution(weight, self.operator)
        norm = self.operator.norm(weight).bound
        return weight / norm if norm > 0 else weight


def _shortened(weight: Tensor, dim: int | None) -> Tensor:
    """Return vectors along ``dim``, or the whole, with norms of at most 1."""
    shorter: Tensor = weight / weight.norm(dim=dim, keepdim=True).clamp_min(1)
    return shorter


def clip_singular_values(matrices: Tensor) -> Tensor:
    """Return the nearest matrices [..., rows, columns], real or complex, with singular values of at most 1.

    By the eigenvalues of the smaller Gram matrix: singular values below 1e-8 are not told from 0, nor need be.
    """
    wide = matrices.shape[-2] <= matrices.shape[-1]
    flat = matrices if wide else matrices.mH
    values, vectors = torch.linalg.eigh(flat @ flat.mH)
    shrink = values.clamp_min(1).rsqrt().to(flat.dtype)
    clipped: Tensor = (vectors * shrink[..., None, :]) @ (vectors.mH @ flat)
    return clipped if wide else clipped.mH


def clip_convolution(kernel: Tensor, geometry: Convolution) -> Tensor:
    """Return a kernel near ``kernel`` [F, C/groups, *k] whose convolution has a norm of about 1 at most.

    Alternates between clipping the singular values at every frequency of a small circular grid (Sedghi, Gupta,
    Long, ICLR 2019) and cutting the kernel back to its support. In float32, which is precise enough for a step.
    """
    axes = zip(geometry.kernel_size, geometry.dilation, geometry.stride, geometry.input_size, strict=True)
    # Just large enough to tell taps apart, and whole strides.
    sizes = tuple(-(-max(span := d * (k - 1) + 1, min(2 * span, n)) // s) * s for k, d, s, n in axes)
    circle = replace(geometry, input_size=sizes, padding=((0, 0),) * len(sizes), padding_mode="circular")
    grid = [size // stride for size, stride in zip(sizes, geometry.stride, strict=True)]
    # Of a frequency and its negative, which is not there, the inverse transform has twice the real part.
    twice = torch.where(2 * torch.arange(grid[-1] // 2 + 1) % grid[-1] == 0, 1.0, 2.0)
    every = (twice / math.prod(grid)).repeat(math.prod(grid[:-1]))
    shares = every.repeat_interleave(geometry.groups)[:, None, None]
    clipped = kernel.detach().float()
    for round_ in range(_ROUNDS):
        with torch.enable_grad():
            maps = circle.at_frequencies(clipped.requires_grad_())
        excess = clip_singular_values(maps.detach()) - maps.detach()
        (change,) = torch.autograd.grad(maps, clipped, shares * excess)
        clipped = clipped.detach() + (_RELAXATION if round_ else 1.0) * change
        if float(change.norm()) < _SETTLED:
            break
    return clipped.to(kernel.dtype)
