"""Features of images that are fixed in public: made nearly white by constants of synthetic images, of length 1.

A layer here is a map of one example. Its constants are functions of its arguments alone: they come from images
that a program draws from a fixed seed, so no statistic of a data set is in them. They are buffers, so that a
stored module goes on with those it was trained with. Re-exported by :mod:`.layers`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import lru_cache, partial
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  (its name everywhere in this field)

from ..certify.sums import working_dtype
from .functional import clip_norm
from .scattering import mirrored_order, scattering2d
from .synthetic_images import leaves, strokes

Source = Literal["leaves", "strokes"]
Shape = tuple[int, int, int]
"""Channels, height, width."""
Constants = tuple[Tensor, Tensor]
"""Means [E, 1] of the entries of a position, and a matrix [D, E]."""

_SHORTEST = 1e-6  # shorter features are divided by this
_AT_ONCE = 500  # synthetic images
# What is added to eigenvalues over the largest: of scattering, of patches.
_LEAST, _LEAST_OF_PATCHES = 1e-3, 1e-2


class _Whitened(nn.Module, ABC):
    """Maps images [B, C, H, W] to features [B, D, h, w].

    Formal guarantees: one image at a time; ‖output‖ ≤ 1, whatever the image and the constants.
    """

    mean: Tensor
    matrix: Tensor

    def __init__(self, constants: Constants) -> None:
        super().__init__()
        self.register_buffer("mean", constants[0].clone())
        self.register_buffer("matrix", constants[1].clone())

    @abstractmethod
    def entries(self, x: Tensor) -> Tensor:
        """Return what is made white, [B, E, h, w]."""

    def whitened(self, entries: Tensor) -> Tensor:
        """Return features [B, D, h, w] of entries [B, E, h, w]."""
        found = self.matrix.to(entries.dtype) @ (entries.flatten(2) - self.mean.to(entries.dtype))
        lengths = torch.linalg.vector_norm(found, dim=(1, 2), keepdim=True)
        unit = clip_norm(found / lengths.clamp_min(_SHORTEST), 1.0)
        return unit.reshape(len(entries), len(self.matrix), *entries.shape[2:])

    def forward(self, x: Tensor) -> Tensor:
        """Return features of length 1; half precision is computed in float32."""
        return self.whitened(self.entries(x.to(working_dtype(x)))).to(x.dtype)


class WhitenedScattering2d(_Whitened):
    """Logarithms of scattering coefficients, centred and whitened by those of synthetic images.

    Args:
        shape: of the images; of 1 channel, or of 3 with leaves.
        scales, angles: of the scattering, of order 2.
        source: the synthetic images.
        floor: added to coefficients before the logarithm.
        power: eigenvalues λ of the covariance of channels are scaled by λ^-power; 1/2 is all of a whitening.
        channels: D, how many directions of the most variance are kept.
        images: how many synthetic images.
    """

    mirrored: ClassVar[bool] = False

    def __init__(
        self,
        shape: Shape,
        scales: int,
        angles: int,
        *,
        source: Source,
        floor: float,
        power: float,
        channels: int,
        images: int,
    ) -> None:
        own = source, floor, power, channels, images
        super().__init__(_of_scattering(self.mirrored, shape, scales, angles, *own))
        self.scales, self.angles, self.floor = scales, angles, floor

    def entries(self, x: Tensor) -> Tensor:
        """Return logarithms of coefficients."""
        return self.logarithms(scattering2d(x, self.scales, self.angles, centred=self.mirrored))

    def logarithms(self, coefficients: Tensor) -> Tensor:
        """Return those of coefficients [B, E, h, w], which rounding may have made negative."""
        return _logarithms(coefficients, self.scales, self.angles, self.floor, self.mirrored)


class MirroredScattering2d(WhitenedScattering2d):
    """Features that an image and its mirror image, from left to right, have in common, but for aliasing.

    Logarithms of coefficients of the two are added up before they are whitened. The left half holds all that there
    is: the output is [B, D, h, ⌈w/2⌉]. Arguments are those of :class:`WhitenedScattering2d`.
    """

    mirrored = True


class WhitenedPatches(_Whitened):
    """Overlapping patches, each less its mean and over its contrast, whitened by those of synthetic images.

    Args:
        shape: of the images; of 1 channel, or of 3.
        size, stride: of the square patches.
        floor: added to squares of contrasts (standard deviations) as its square.
        power: as of :class:`WhitenedScattering2d`.
        images: how many synthetic images.
    """

    def __init__(self, shape: Shape, size: int, stride: int, *, floor: float, power: float, images: int) -> None:
        super().__init__(_of_patches(shape, size, stride, floor, power, images))
        self.size, self.stride, self.floor = size, stride, floor

    def entries(self, x: Tensor) -> Tensor:
        """Return patches of one contrast."""
        return _patches(x, self.size, self.stride, self.floor)


def _logarithms(coefficients: Tensor, scales: int, angles: int, floor: float, mirrored: bool) -> Tensor:
    """Return those of coefficients [B, E, h, w], or, [B, E, h, ⌈w/2⌉], added to those of mirrored images."""
    found = torch.log(coefficients.clamp_min(0) + floor)
    if not mirrored:
        return found
    other = found[:, mirrored_order(found.shape[1], scales, angles)].flip(3)
    return (found + other)[..., : (found.shape[3] + 1) // 2]


def _patches(x: Tensor, size: int, stride: int, floor: float) -> Tensor:
    """Return [B, C·size², h, w]."""
    patches = F.unfold(x, size, stride=stride)
    centred = patches - patches.mean(1, keepdim=True)
    scaled = centred / (centred.square().mean(1, keepdim=True) + floor**2).sqrt()
    height, width = ((length - size) // stride + 1 for length in x.shape[2:])
    return scaled.reshape(*scaled.shape[:2], height, width)


@lru_cache(maxsize=16)
def _of_scattering(
    mirrored: bool,
    shape: Shape,
    scales: int,
    angles: int,
    source: Source,
    floor: float,
    power: float,
    channels: int,
    images: int,
) -> Constants:
    """Return the constants of :class:`WhitenedScattering2d`."""
    drawn = _synthetic(source, images, shape, seed=1)
    kept = partial(_logarithms, scales=scales, angles=angles, floor=floor, mirrored=mirrored)
    entries = _all_of(drawn, lambda x: kept(scattering2d(x, scales, angles, centred=mirrored)))
    mean = entries.mean((0, 2))[:, None]
    values, vectors = _spectrum(entries - mean)
    directions = (vectors * (values.clamp_min(0) + _LEAST) ** -power).T[-channels:]
    largest = directions.gather(1, directions.abs().argmax(1, keepdim=True))
    return mean.float(), (directions * largest.sign()).float()  # of a direction and its opposite one is chosen


@lru_cache(maxsize=16)
def _of_patches(shape: Shape, size: int, stride: int, floor: float, power: float, images: int) -> Constants:
    """Return the constants of :class:`WhitenedPatches`: contrasts have no mean, and the matrix is symmetric."""
    drawn = _synthetic("leaves", images, shape, seed=2)
    values, vectors = _spectrum(_all_of(drawn, partial(_patches, size=size, stride=stride, floor=floor)))
    scales = (values.clamp_min(0) + _LEAST_OF_PATCHES) ** -power
    return torch.zeros(1, 1), ((vectors * scales) @ vectors.T).float()


def _synthetic(source: Source, count: int, shape: Shape, seed: int) -> Tensor:
    """Return synthetic images [count, *shape] in [0, 1]; grey ones of leaves are means of their colours."""
    channels, height, width = shape
    drawn = (leaves if source == "leaves" else strokes)(count, max(height, width), seed)
    if drawn.shape[1] != channels:
        drawn = drawn.mean(axis=1, keepdims=True).astype(np.uint8)
    return torch.from_numpy(drawn[:, :, :height, :width]).float() / 255


@torch.no_grad()
def _all_of(images: Tensor, entries: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the entries [N, E, positions] of images, in double precision."""
    return torch.cat([entries(part).flatten(2).double() for part in torch.split(images, _AT_ONCE)])


def _spectrum(centred: Tensor) -> Constants:
    """Return eigenvalues [E], rising, over the largest, and eigenvectors [E, E] of a covariance of entries."""
    covariance = torch.einsum("ncp,ndp->cd", centred, centred)
    values, vectors = torch.linalg.eigh(covariance)
    return values / values[-1], vectors
