"""The scattering transform: wavelets, moduli and a low-pass, with nothing to be trained. Re-exported by
:mod:`.functional`.

Bruna and Mallat (2013), "Invariant scattering convolution networks"; filters and padding are those of kymatio.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import cos, pi, sin, tau

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..certify.sums import working_dtype
from ..devices import at_once
from .resampling import pad

Array = NDArray[np.float64]
_GAIN = pi / 3.1415  # kymatio divides by 2·3.1415·σ²
_ENTRIES = 2**18  # of the largest intermediate on a CPU: about what a cache holds
_ON_DEVICES = 2**8  # times as many there, which would only wait for small ones


@dataclass(frozen=True)
class _Bank:
    """The filters for images of `height` by `width` before they are padded.

    Args:
        centred: the middle of the outputs is that of the image.
    """

    height: int
    width: int
    scales: int
    angles: int
    centred: bool = False

    def padded(self, size: int) -> int:
        """Length of a padded axis: a multiple of 2^J, with at least one position of the output on both sides."""
        return ((size >> self.scales) + 2) << self.scales

    def coefficients(self, order: int) -> int:
        """How many there are of each position."""
        pairs = self.scales * (self.scales - 1) // 2 if order == 2 else 0
        return 1 + self.scales * self.angles + pairs * self.angles**2

    def sides(self, size: int) -> tuple[int, int]:
        """What is put before and after an axis."""
        extra = self.padded(size) - size
        return extra // 2, extra - extra // 2


def scattering2d(x: Tensor, scales: int, angles: int = 8, order: int = 2, *, centred: bool = False) -> Tensor:
    """Return the scattering coefficients of images [B, C, H, W] as [B, C·K, H//2^J, W//2^J], J = ``scales``.

    K = 1 + J·L for ``order`` 1 and 1 + J·L + L²·J(J-1)/2 for 2, L = ``angles``: the mean, what one wavelet leaves,
    by scale and angle, and what two leave, by the first's scale and angle, then the second's. Images are padded
    by reflection. Half precision is computed in float32.

    Outputs lie at the pixels 0, 2^J, 2·2^J, … of an image whose sizes are multiples of 2^J. If ``centred``, their
    middle is that of the image: then a mirrored image has the coefficients of :func:`mirrored_order`, mirrored,
    but for aliasing.

    Formal guarantees: one image at a time; the Lipschitz constant and ‖output‖/‖x‖ are certified by the compiler.

    Raises:
        ValueError: images of another shape, too small for the scale, or another order than 1 and 2.
    """
    if x.dim() != 4 or order not in (1, 2) or min(scales, angles) < 1:
        raise ValueError(
            f"a scattering of an example of shape {tuple(x.shape[1:])} cannot have {scales=}, {angles=}, {order=}"
        )
    batch, channels, height, width = x.shape
    bank = _Bank(height, width, scales, angles, centred)
    working = x.to(working_dtype(x))
    shape = (batch, channels * bank.coefficients(order), height >> scales, width >> scales)
    images = pad(working.flatten(0, 1), (bank.sides(height), bank.sides(width)), "reflect")
    if not len(images):  # transforms refuse it; the sum is 0, and keeps the way back
        return (images.sum() + images.new_zeros(shape)).to(x.dtype)
    entries = at_once(x.device, _ENTRIES, _ENTRIES * _ON_DEVICES)
    most = max(entries // (images.shape[-2] * images.shape[-1] * angles), 1)
    parts = [torch.cat(list(_scattered(part, bank, order)), dim=1) for part in torch.split(images, most)]
    return torch.cat(parts).to(x.dtype).reshape(shape)


@lru_cache(maxsize=16)
def mirrored_order(coefficients: int, scales: int, angles: int) -> Tensor:
    """Return which of C·K coefficients of order 2 is that of the mirror image: angles θ become -θ."""
    turned = (2 * int(angles / 2 - 1) - torch.arange(angles)) % angles
    orders = [1, scales * angles, *(angles**2 * later for later in range(scales - 1, 0, -1))]
    mean, first, *second = torch.split(torch.arange(sum(orders)), orders)
    waves = first.view(scales, angles)[:, turned]
    pairs = [found.view(angles, -1, angles)[turned][:, :, turned] for found in second]
    image = torch.cat([mean, waves.flatten(), *(found.flatten() for found in pairs)])
    return (torch.arange(0, coefficients, len(image))[:, None] + image).flatten()


def _scattered(images: Tensor, bank: _Bank, order: int) -> Iterator[Tensor]:
    """Yield the coefficients [b, ·, h, w] of padded images [b, H, W], order after order."""
    yield _averaged(images, bank, 0)[:, None]
    spectrum = torch.fft.fft2(images)
    later: list[Tensor] = []
    for scale in range(bank.scales):
        moduli = _moduli(spectrum, bank, 0, scale)
        yield _averaged(moduli, bank, scale)
        if order == 2 and scale + 1 < bank.scales:
            again = torch.fft.fft2(moduli)
            finer = (_moduli(again, bank, scale, after) for after in range(scale + 1, bank.scales))
            second = [_averaged(part, bank, after) for after, part in enumerate(finer, scale + 1)]
            later.append(torch.cat(second, dim=2).flatten(1, 2))
    yield from later


def _moduli(spectrum: Tensor, bank: _Bank, level: int, scale: int) -> Tensor:
    """Return |ψ * u| at every 2^scale-th position, [..., L, h, w], of u at every 2^level-th, by its spectrum."""
    filters = torch.as_tensor(_wavelets(bank, level, scale), dtype=spectrum.real.dtype, device=spectrum.device)
    step = 2 ** (scale - level)
    filtered = spectrum.unsqueeze(-3) * (filters / step**2)
    for axis in (-2, -1):  # every step-th position: the mean of what lies a step-th of the spectrum apart
        first, *others = filtered.chunk(step, axis)
        filtered = sum(others, start=first)
    return torch.abs(torch.fft.ifft2(filtered))


def _averaged(u: Tensor, bank: _Bank, level: int) -> Tensor:
    """Return φ * u at every 2^J-th position, without the border, [..., h, w], of u at every 2^level-th."""
    down, along = (
        torch.as_tensor(_lowpass(bank, size, level), dtype=u.dtype, device=u.device)
        for size in (bank.height, bank.width)
    )
    return ((u @ along.T).transpose(-1, -2) @ down.T).transpose(-1, -2)


def _frequencies(size: int, level: int) -> Array:
    found: Array = tau / 2**level * np.fft.fftfreq(size >> level)
    return found


@lru_cache(maxsize=256)
def _wavelets(bank: _Bank, level: int, scale: int) -> Array:
    """Return the spectra of the Morlet wavelets of one scale, [L, h, w], at frequencies below 1/2^level of all."""
    down = _frequencies(bank.padded(bank.height), level)[:, None]
    along = _frequencies(bank.padded(bank.width), level)[None, :]
    sigma, slant, centre = 0.8 * 2**scale, 4 / bank.angles, 0.75 * pi / 2**scale
    found = []
    for angle in range(bank.angles):
        theta = (int(bank.angles / 2 - 1) - angle) * pi / bank.angles
        zero = np.zeros((1, 1))
        share = _gabor(zero, zero, sigma, theta, centre, slant) / _gabor(zero, zero, sigma, theta, 0.0, slant)
        found.append(
            _gabor(down, along, sigma, theta, centre, slant)
            - share * _gabor(down, along, sigma, theta, 0.0, slant)
        )
    return np.stack(found)


def _gabor(down: Array, along: Array, sigma: float, theta: float, centre: float, slant: float) -> Array:
    """The spectrum of a Gaussian times a wave, both sampled: the sum of what lies a multiple of 2π apart."""
    total = np.zeros(np.broadcast_shapes(down.shape, along.shape))
    for i in range(-2, 3):
        for j in range(-2, 3):
            u, v = down + tau * i, along + tau * j
            ahead, across = u * cos(theta) + v * sin(theta) - centre, v * cos(theta) - u * sin(theta)
            total += np.exp(-(sigma**2) / 2 * (ahead**2 + (across / slant) ** 2))
    return _GAIN * total


@lru_cache(maxsize=256)
def _lowpass(bank: _Bank, size: int, level: int) -> Array:
    """Return what averages an axis that holds every 2^level-th position, [outputs, positions]."""
    places, step = bank.padded(size) >> level, 2**bank.scales
    sigma = 0.8 * 2 ** (bank.scales - 1)
    frequencies = _frequencies(bank.padded(size), level)
    spectrum = sum(np.exp(-(sigma**2) / 2 * (frequencies + tau * i) ** 2) for i in range(-2, 3))
    outputs = np.arange(step, bank.padded(size) - step, step)
    if bank.centred:
        outputs = outputs - outputs.mean() + bank.sides(size)[0] + (size - 1) / 2
    away = outputs[:, None] - np.arange(places) * 2**level
    found: Array = (np.sqrt(_GAIN) * spectrum * np.cos(frequencies * away[..., None])).mean(-1)
    return found
