"""Overlapping patches of images, each of one contrast, decorrelated by constants of synthetic images."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  (its name everywhere in this field)

from benchmarks.utility.synthetic_images import leaves

_ROWS = 1000  # examples at once
_SYNTHETIC = 2000
_LEAST = 0.01  # added to eigenvalues over the largest


@dataclass(frozen=True)
class Patches:
    """A fixed, invertible linear map of each patch, after its mean and its contrast.

    Args:
        size, stride: of the square patches.
        floor: contrasts (standard deviations, of values in [0, 1]) below are not raised further.
        power: of eigenvalues of the covariance of patches; 1/2 is all of a whitening.
    """

    size: int = 6
    stride: int = 3
    floor: float = 0.05
    power: float = 0.5

    def __call__(self, images: NDArray[np.uint8]) -> Tensor:
        """Return patches [N, C·size², h, w] of images [N, C, H, W], each example of length 1, float32."""
        matrix = self._whitening(images.shape[1:])
        positions = (images.shape[2] - self.size) // self.stride + 1
        out = torch.empty(len(images), len(matrix), positions, positions)
        for i in range(0, len(images), _ROWS):
            found = matrix @ self._normalised(images[i : i + _ROWS])
            found = found / found.flatten(1).norm(dim=1).clamp_min(1e-6)[:, None, None]
            out[i : i + _ROWS] = found.reshape(-1, *out.shape[1:])
        return out

    def _normalised(self, images: NDArray[np.uint8]) -> Tensor:
        """Return patches [n, C·size², positions]."""
        x = torch.from_numpy(np.ascontiguousarray(images)).float() / 255 - 0.5
        patches = F.unfold(x, self.size, stride=self.stride)
        centred = patches - patches.mean(1, keepdim=True)
        return centred / (centred.pow(2).mean(1, keepdim=True) + self.floor**2).sqrt()

    def _whitening(self, shape: tuple[int, ...]) -> Tensor:
        made = leaves(_SYNTHETIC, shape[1], seed=2)
        flat = self._normalised(made if shape[0] == 3 else made.mean(axis=1, keepdims=True).astype(np.uint8))
        covariance = torch.einsum("ncp,ndp->cd", flat, flat)
        values, vectors = torch.linalg.eigh(covariance / covariance.norm(2))
        found: Tensor = (vectors * (values.clamp_min(0) + _LEAST) ** -self.power) @ vectors.T
        return found
