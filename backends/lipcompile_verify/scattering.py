"""The energy that the wavelets of a scattering transform let through; the proof is scattering.md of the compiler.

In doubles, the one place without intervals. Frequencies are off by less than 2⁻⁴⁵ here, so that half of what the
proof allows for rounding is enough.
"""

from __future__ import annotations

from fractions import Fraction
from math import cos, exp, pi, sin, tau

from .document import require

Spectrum = list[list[float]]
MOST_VALUES = 2**25


def padding(size: int, scales: int) -> tuple[int, int]:
    """Return what is put before and after an axis, up to a multiple of 2^J with a position more on both sides."""
    extra = (((size >> scales) + 2) << scales) - size
    return extra // 2, extra - extra // 2


class Bank:
    """The filters of J scales and L angles, as spectra on a torus; those of coarser images are their low parts."""

    def __init__(self, scales: int, angles: int, sizes: tuple[int, ...]) -> None:
        self.scales, self.angles, self.sizes = (
            scales,
            angles,
            [size + sum(padding(size, scales)) for size in sizes],
        )
        require(
            25 * self.sizes[0] * self.sizes[1] * (1 + 2 * scales * angles) <= MOST_VALUES,
            "the scattering is too large to check",
        )
        self.phi = self.gabor(0.8 * 2 ** (scales - 1), 0.0, 0.0, 1.0)
        self.psi = {(j, t): self.wavelet(j, t) for j in range(scales) for t in range(angles)}

    def gabor(self, sigma: float, theta: float, centre: float, slant: float) -> Spectrum:
        """A sampled Gaussian around a frequency, all that lies up to two periods away added up."""
        c, s, half = cos(theta), sin(theta), sigma**2 / 2
        rows, columns = (
            [[tau * (k / n - (2 * k >= n) + i) for i in range(-2, 3)] for k in range(n)] for n in self.sizes
        )

        def value(x: float, y: float) -> float:
            return exp(-half * ((x * c + y * s - centre) ** 2 + ((y * c - x * s) / slant) ** 2))

        return [[pi / 3.1415 * sum(value(x, y) for x in xs for y in ys) for ys in columns] for xs in rows]

    def wavelet(self, j: int, angle: int) -> Spectrum:
        """A Gaussian around a frequency less a share of one around 0, such that nothing is left at 0."""
        theta = (int(self.angles / 2 - 1) - angle) * pi / self.angles
        sigma, centre, slant = 0.8 * 2**j, 0.75 * pi / 2**j, 4 / self.angles
        around, zero = self.gabor(sigma, theta, centre, slant), self.gabor(sigma, theta, 0.0, slant)
        share = around[0][0] / zero[0][0]
        return [[a - share * z for a, z in zip(*rows, strict=True)] for rows in zip(around, zero, strict=True)]

    def energy(self, level: int, first: int, order: int) -> float:
        """Return A, ‖coefficients‖² <= A·‖u‖², of a real u on every 2^level-th place, wavelets from `first` on."""
        sizes = [size >> level for size in self.sizes]
        total = [[0.0] * sizes[1] for _ in range(sizes[0])]
        filters = [(self.phi, 2 ** (self.scales - level), 1.0)]
        for j in range(first, self.scales if order else first):
            after = self.energy(j, j + 1, order - 1)
            filters += [(self.psi[j, angle], 2 ** (j - level), after) for angle in range(self.angles)]
        for spectrum, step, after in filters:
            for row, values in zip(total, self.kept(spectrum, sizes, step), strict=True):
                row[:] = [old + after * new for old, new in zip(row, values, strict=True)]
        return max((row[k] + total[-i][-k]) / 2 for i, row in enumerate(total) for k in range(sizes[1]))

    def kept(self, spectrum: Spectrum, sizes: list[int], step: int) -> Spectrum:
        """|ĥ|·Σ|ĥ|/step², summed over the frequencies that become one where every step-th position is kept."""
        picks = [
            [k if 2 * k < n else whole - n + k for k in range(n)]
            for n, whole in zip(sizes, self.sizes, strict=True)
        ]
        size = [[abs(spectrum[i][k]) for k in picks[1]] for i in picks[0]]
        rows, columns = (n // step for n in sizes)
        alias = [
            [sum(sum(row[k::columns]) for row in size[i::rows]) / step**2 for k in range(columns)]
            for i in range(rows)
        ]
        return [[v * alias[i % rows][k % columns] for k, v in enumerate(row)] for i, row in enumerate(size)]


def energy(scales: int, angles: int, order: int, sizes: tuple[int, ...]) -> Fraction:
    """Return an upper bound: the value found and half of what the proof allows for rounding."""
    found = Bank(scales, angles, sizes).energy(0, 0, order)
    return Fraction(found) * (1 + Fraction((1 + scales * angles) * (1 + angles) * 8**scales, 2**35))
