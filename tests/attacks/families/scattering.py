"""Attack of the scattering transform."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import product

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from lipcompile.ops.scattering.rules import Scattering2d

from ..draw import Draw, Drawn
from ..family import Attack, unary
from ..harness import unit
from ..witness import at, spread


def _scattering(draw: Draw) -> Drawn:
    scales = draw.rng.choice((1, 1, 2))
    sizes = tuple(draw.rng.randint(2 ** (scales + 1), 2 ** (scales + 1) + 4) for _ in range(2))
    channels = draw.rng.randint(1, 2 if scales == 1 else 1)
    return Scattering2d(scales, draw.rng.randint(1, 3), draw.rng.randint(1, 2)), [(channels, *sizes)], {}


def _wave(sizes: tuple[int, int], sigma: float, theta: float, frequency: float, slant: float) -> Tensor:
    """A Gaussian times a wave on a torus, as the sum of its copies: positions, not frequencies."""
    total = torch.zeros(sizes, dtype=torch.complex128)
    for turns in product(range(-3, 4), repeat=2):
        down, along = (
            torch.arange(size, dtype=torch.float64) + turn * size for size, turn in zip(sizes, turns, strict=True)
        )
        ahead = down[:, None] * math.cos(theta) + along * math.sin(theta)
        across = along * math.cos(theta) - down[:, None] * math.sin(theta)
        size = torch.exp(-(ahead**2 + (slant * across) ** 2) / (2 * sigma**2))
        total += torch.polar(size, frequency * ahead)
    return total * slant / (2 * 3.1415 * sigma**2)


@lru_cache(maxsize=256)
def _filters(bank: Scattering2d, sizes: tuple[int, int]) -> tuple[Tensor, list[list[Tensor]]]:
    """Spectra of the low-pass, and of the wavelets by scale and angle."""
    wavelets = []
    for scale in range(bank.scales):
        sigma, frequency, slant = 0.8 * 2**scale, 0.75 * math.pi / 2**scale, 4 / bank.angles
        angles = [(int(bank.angles / 2 - 1) - n) * math.pi / bank.angles for n in range(bank.angles)]
        row = []
        for theta in angles:
            wave, bump = (_wave(sizes, sigma, theta, f, slant) for f in (frequency, 0.0))
            row.append(torch.fft.fft2(wave - wave.sum() / bump.sum() * bump))
        wavelets.append(row)
    return torch.fft.fft2(_wave(sizes, 0.8 * 2 ** (bank.scales - 1), 0.0, 0.0, 1.0)), wavelets


def _low(spectrum: Tensor, sizes: torch.Size) -> Tensor:
    """The lowest frequencies of a spectrum, as the spectrum of an image of these sizes."""
    for axis, size in enumerate(sizes[-2:]):
        spectrum = torch.cat(
            (spectrum.narrow(axis, 0, size // 2), spectrum.narrow(axis, -(size // 2), size // 2)), axis
        )
    return spectrum


def _filtered(u: Tensor, spectrum: Tensor, step: int) -> Tensor:
    found: Tensor = torch.fft.ifft2(torch.fft.fft2(u) * _low(spectrum, u.shape))
    return found[..., ::step, ::step]


def scattering(bank: Scattering2d, x: Tensor) -> Tensor:
    """The cascade as it is defined: filter the whole image, take the modulus, keep every so-many-th position."""
    extra = [((size // 2**bank.scales) + 2) * 2**bank.scales - size for size in x.shape[1:]]
    sides = [extra[1] // 2, extra[1] - extra[1] // 2, extra[0] // 2, extra[0] - extra[0] // 2]
    padded = F.pad(x[None], sides, "reflect")[0]
    low, wavelets = _filters(bank, (padded.shape[1], padded.shape[2]))

    def mean(u: Tensor, level: int) -> Tensor:
        return _filtered(u, low, 2 ** (bank.scales - level)).real[..., 1:-1, 1:-1]

    def moduli(u: Tensor, level: int, first: int) -> Iterator[tuple[Tensor, int]]:
        for scale in range(first, bank.scales):
            for psi in wavelets[scale]:
                yield _filtered(u, psi, 2 ** (scale - level)).abs(), scale

    once = list(moduli(padded, 0, 0))
    twice = [pair for u, scale in once for pair in moduli(u, scale, scale + 1)] if bank.order == 2 else []
    return torch.stack([mean(padded, 0), *(mean(u, scale) for u, scale in (*once, *twice))], 1).flatten(0, 1)


def _largest(bank: Scattering2d, sizes: tuple[int, int]) -> Tensor:
    """Power iteration: the gradient of a positively homogeneous map pulls to the input that it enlarges most."""
    x = unit(spread((1, *sizes)).abs())
    for _ in range(60):
        x = x.requires_grad_()
        (pull,) = torch.autograd.grad(scattering(bank, x).square().sum(), x)
        x = unit(pull.detach())
    return 3 * x


ATTACKS: Mapping[str, Attack] = {
    "scattering2d": Attack(
        _scattering,
        unary(scattering),
        lambda: [
            at("scattering2d", bank, _largest(bank, (12, 12)))
            for bank in (Scattering2d(2, 4), Scattering2d(2, 3, 1))
        ],
    ),
}
