"""Overlapping patches of images, by the layer `whitened_patches` of the library."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from lipcompile_torch.nn.layers import WhitenedPatches
from numpy.typing import NDArray
from torch import Tensor

_ROWS = 1000  # examples at once
_SYNTHETIC = 2000


@dataclass(frozen=True)
class Patches:
    """What the layer `whitened_patches` does to images.

    Args:
        size, stride, floor, power: of the layer.
    """

    size: int = 6
    stride: int = 3
    floor: float = 0.05
    power: float = 0.5

    @torch.no_grad()
    def __call__(self, images: NDArray[np.uint8]) -> Tensor:
        """Return patches [N, C·size², h, w] of images [N, C, H, W], each example of length 1, float32."""
        shape = (images.shape[1], images.shape[2], images.shape[3])
        numbers = {"floor": self.floor, "power": self.power}
        layer = WhitenedPatches(shape, self.size, self.stride, images=_SYNTHETIC, **numbers)
        parts = (torch.from_numpy(images[i : i + _ROWS]).float() / 255 for i in range(0, len(images), _ROWS))
        return torch.cat([layer(part) for part in parts])
