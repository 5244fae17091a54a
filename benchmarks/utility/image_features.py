"""Features of images that are fixed in public: scattering, made nearly white by constants of synthetic images.

Every map here is of one example and has no statistics of the data set, so it costs nothing of ε. Scattering is
computed once and kept in a folder as float16.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from lipcompile_torch.nn.functional import scattering2d
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.utility.synthetic_images import leaves, strokes

Name = Literal["mnist", "fashion_mnist", "cifar10"]
Images = NDArray[np.uint8]
Synthetic = Literal["leaves", "strokes"]
_ROWS = 1000  # examples at once
_SYNTHETIC = 2000
_LEAST = 1e-3  # added to eigenvalues over the largest


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
def scattered(images: Images) -> NDArray[np.float16]:
    """Return scattering coefficients [N, C·81, H/4, W/4]: two scales, eight angles, two orders."""
    parts = [torch.from_numpy(images[i : i + _ROWS]).float() / 255 for i in range(0, len(images), _ROWS)]
    return np.concatenate([scattering2d(part, 2, 8).half().numpy() for part in parts])


def kept(folder: Path, name: str, images: Images) -> NDArray[np.float16]:
    """Return `scattered(images)`, from a file of the folder if it is there."""
    path = folder / f"{name}_scattering.npy"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        np.save(path, scattered(images))
    found: NDArray[np.float16] = np.load(path, mmap_mode="r")
    return found


@dataclass(frozen=True)
class Whitening:
    """What is done to scattering coefficients: logarithm, centring, some of a whitening of channels, unit length.

    Args:
        source: synthetic images that the constants are of.
        floor: added to coefficients before the logarithm.
        power: eigenvalues λ of the covariance of channels are scaled by λ^-power; 1/2 is all of a whitening.
        channels: how many directions of the most variance are kept.
    """

    source: Synthetic = "leaves"
    floor: float = 0.01
    power: float = 0.25
    channels: int = 128

    def fitted(self, shape: tuple[int, ...]) -> Map:
        """Return the map for images [C, H, W]."""
        made = leaves(_SYNTHETIC, shape[1]) if self.source == "leaves" else strokes(_SYNTHETIC, shape[1])
        grey = made.mean(axis=1, keepdims=True).astype(np.uint8)
        x = _logarithm(torch.from_numpy(scattered(made if shape[0] == made.shape[1] else grey)), self.floor)
        mean = x.mean((0, 2, 3))[:, None]
        flat = x.flatten(2) - mean
        covariance = torch.einsum("ncp,ndp->cd", flat, flat)
        values, vectors = torch.linalg.eigh(covariance / covariance.norm(2))
        scales = (values.clamp_min(0) + _LEAST) ** -self.power
        return Map(self.floor, mean, (vectors * scales).T[-self.channels :].contiguous())


@dataclass(frozen=True)
class Map:
    """A fixed map of coefficients [N, C, h, w] to features of length 1."""

    floor: float
    mean: Tensor
    matrix: Tensor

    def __call__(self, coefficients: NDArray[np.float16]) -> Tensor:
        """Return features [N, D], float32."""
        out = torch.empty(len(coefficients), len(self.matrix) * int(np.prod(coefficients.shape[2:])))
        for i in range(0, len(out), _ROWS):
            x = _logarithm(torch.from_numpy(np.array(coefficients[i : i + _ROWS])), self.floor)
            whitened = (self.matrix @ (x.flatten(2) - self.mean)).flatten(1)
            out[i : i + _ROWS] = whitened / whitened.norm(dim=1, keepdim=True).clamp_min(1e-6)
        return out


def _logarithm(x: Tensor, floor: float) -> Tensor:
    return torch.log(x.float().clamp_min(0) + floor)
