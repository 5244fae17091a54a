"""Data sets of images, and fixed maps of them by layers of the library: overlapping patches, and whitened
scattering, whose coefficients are kept in a folder as float16.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from lipcompile_torch.nn.functional import scattering2d
from lipcompile_torch.nn.layers import MirroredScattering2d, WhitenedPatches, WhitenedScattering2d
from lipcompile_torch.nn.whitening import Source
from numpy.typing import NDArray
from torch import Tensor

Name = Literal["mnist", "fashion_mnist", "cifar10"]
Images = NDArray[np.uint8]
_ROWS = 1000  # examples at once
_SYNTHETIC = 2000


@dataclass(frozen=True)
class Pictures:
    """Images [N, C, H, W] and labels [N], to train on and to test with."""

    x: Images
    y: Tensor
    x_test: Images
    y_test: Tensor


def pictures(folder: Path, name: Name) -> Pictures:
    """Read a data set; CIFAR-10 from JPEG files."""
    with np.load(folder / ("cifar10_jpeg.npz" if name == "cifar10" else f"{name}.npz")) as arrays:
        if name == "cifar10":
            x, x_test = (_decoded(arrays[f"jpeg_{part}"], arrays[f"end_{part}"]) for part in ("train", "test"))
        else:
            x, x_test = arrays["x_train"][:, None], arrays["x_test"][:, None]
        y, y_test = (torch.from_numpy(arrays[f"y_{part}"]).long() for part in ("train", "test"))
    return Pictures(x, y, x_test, y_test)


def _decoded(data: NDArray[np.uint8], ends: NDArray[np.int64]) -> Images:
    from PIL import Image

    pieces = np.split(data, ends[:-1])
    rows = [np.asarray(Image.open(io.BytesIO(piece.tobytes())).convert("RGB")) for piece in pieces]
    return np.ascontiguousarray(np.stack(rows).transpose(0, 3, 1, 2))


@torch.no_grad()
def _in_parts(function: Callable[[Tensor], Tensor], rows: NDArray[Any]) -> Tensor:
    """Apply a function of examples in float32 to some at once."""
    parts = (torch.from_numpy(np.array(rows[i : i + _ROWS])).float() for i in range(0, len(rows), _ROWS))
    return torch.cat([function(part) for part in parts])


def scattered(images: Images, *, centred: bool) -> NDArray[np.float16]:
    """Return scattering coefficients [N, C·81, H/4, W/4]: two scales, eight angles, two orders."""
    return _in_parts(lambda x: scattering2d(x / 255, 2, 8, centred=centred).half(), images).numpy()


def kept(folder: Path, name: str, images: Images, *, centred: bool) -> NDArray[np.float16]:
    """Return `scattered(images)`, from a file of the folder if it is there."""
    path = folder / f"{name}_scattering{'_centred' * centred}.npy"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        np.save(path, scattered(images, centred=centred))
    found: NDArray[np.float16] = np.load(path, mmap_mode="r")
    return found


@dataclass(frozen=True)
class Whitening:
    """What the layer `whitened_scattering2d`, or `mirrored_scattering2d`, does to scattering coefficients.

    Args:
        source, floor, power, channels: of the layer.
    """

    source: Source = "leaves"
    floor: float = 0.01
    power: float = 0.25
    channels: int = 128
    mirrored: bool = False

    def fitted(self, shape: tuple[int, int, int]) -> Map:
        """Return the map for images [C, H, W]."""
        own = {"source": self.source, "floor": self.floor, "power": self.power, "channels": self.channels}
        layer = MirroredScattering2d if self.mirrored else WhitenedScattering2d
        return Map(layer(shape, 2, 8, images=_SYNTHETIC, **own))  # type: ignore[arg-type]


@dataclass(frozen=True)
class Map:
    """A fixed map of coefficients [N, C, h, w] to features of length 1."""

    layer: WhitenedScattering2d

    def __call__(self, coefficients: NDArray[np.float16]) -> Tensor:
        """Return features [N, D], float32."""
        layer = self.layer
        return _in_parts(lambda part: layer.whitened(layer.logarithms(part)).flatten(1), coefficients)


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

    def __call__(self, images: Images) -> Tensor:
        """Return patches [N, C·size², h, w] of images [N, C, H, W], each example of length 1, float32."""
        shape = (images.shape[1], images.shape[2], images.shape[3])
        numbers = {"floor": self.floor, "power": self.power}
        layer = WhitenedPatches(shape, self.size, self.stride, images=_SYNTHETIC, **numbers)
        return _in_parts(lambda x: layer(x / 255), images)
