"""The scattering transform: a cascade of wavelets and moduli, without parameters. Proofs: scattering.md."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import cos, pi, prod, sin, tau
from typing import TYPE_CHECKING, Any

from lipcompile import limits
from lipcompile.core.record import AnyOp, Condition, Shape, Site
from lipcompile.diagnostics import Refusal
from lipcompile.numbers import N, Numbers
from lipcompile.numbers.rounding import round_up
from lipcompile.ops import counting
from lipcompile.ops.rules import homogeneous

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

# What kymatio, whose filters these are, divides by instead of 2π.
_GAIN = pi / 3.1415
# Of a relative error, beside what grows with the filters: scattering.md, Rounding.
_UNIT = Fraction(1, 2**34)
# Values of the filters that take as long as one place of a window.
_WORK = 4


@dataclass(frozen=True, slots=True)
class Scattering2d:
    """Morlet wavelets at scales 1, 2, … 2^(scales-1) and `angles` angles, at most `order` in a row."""

    scales: int
    angles: int = 8
    order: int = 2

    @property
    def coefficients(self) -> int:
        """Channels of the output for each of the input."""
        wavelets, pairs = self.scales * self.angles, self.scales * (self.scales - 1) // 2
        return 1 + wavelets + (self.angles**2 * pairs if self.order == 2 else 0)

    def padded(self, size: int) -> int:
        """Length of a padded axis: a multiple of 2^J that leaves a position of the output on both sides."""
        return ((size >> self.scales) + 2) << self.scales

    def padding(self, size: int) -> tuple[int, int]:
        """What reflection puts before and after an axis."""
        extra = self.padded(size) - size
        return extra // 2, extra - extra // 2


def scattering_shape(attributes: Scattering2d, inputs: tuple[Shape, ...]) -> Shape:
    """[c, h, w] -> [c·K, h//2^J, w//2^J]."""
    if len(inputs[0]) != 3:
        raise Refusal("LIP102", f"scattering2d needs an image [channels, height, width], not {list(inputs[0])}")
    if attributes.order > 2:
        raise Refusal("LIP104", "the order of scattering2d must be 1 or 2", "higher orders carry little energy")
    channels, *sizes = inputs[0]
    if attributes.scales >= min(sizes).bit_length():
        message = f"an image of {sizes[0]} by {sizes[1]} is too small for {attributes.scales} scales"
        raise Refusal("LIP103", message, f"choose at most {min(sizes).bit_length() - 1}")
    for axis, size in enumerate(sizes):
        counting.refuse_padding(size, attributes.padding(size), "reflect", axis)
    values = prod(map(attributes.padded, sizes)) * (1 + attributes.scales * attributes.angles)
    limits.refuse_above("counts", values // _WORK, f"the filters of scattering2d, by {_WORK} values, have")
    return (channels * attributes.coefficients, *(size >> attributes.scales for size in sizes))


# The filters, as spectra: arrays over the frequencies of a torus


def frequencies(bank: Scattering2d, sizes: Shape, level: int) -> tuple[Array, Array]:
    """Return the frequencies of an image of these sizes, padded, that every 2^level-th position can hold."""
    import numpy as np  # here, because `check` starts faster without it

    down, along = (tau / 2**level * np.fft.fftfreq(bank.padded(size) >> level) for size in sizes)
    return down[:, None], along[None, :]


def gabor(at: tuple[Array, Array], sigma: float, theta: float, centre: float, slant: float) -> Array:
    """The spectrum of a sampled Gaussian around a frequency: what lies up to two periods away is added up."""
    import numpy as np

    total: Array = np.zeros(np.broadcast_shapes(at[0].shape, at[1].shape))
    for i in range(-2, 3):
        for j in range(-2, 3):
            down, along = at[0] + tau * i, at[1] + tau * j
            ahead, across = down * cos(theta) + along * sin(theta) - centre, along * cos(theta) - down * sin(theta)
            total += np.exp(-(sigma**2) / 2 * (ahead**2 + (across / slant) ** 2))
    return _GAIN * total


def lowpass(bank: Scattering2d, at: tuple[Array, Array]) -> Array:
    """The spectrum of φ."""
    return gabor(at, 0.8 * 2 ** (bank.scales - 1), 0.0, 0.0, 1.0)


def wavelet(bank: Scattering2d, at: tuple[Array, Array], scale: int, angle: int) -> Array:
    """The spectrum of ψ: a Gaussian around a frequency, less a share of one around 0, so that its sum is 0."""
    import numpy as np

    sigma, centre, slant = 0.8 * 2**scale, 0.75 * pi / 2**scale, 4 / bank.angles
    theta = (int(bank.angles / 2 - 1) - angle) * pi / bank.angles
    zero = (np.zeros((1, 1)), np.zeros((1, 1)))
    share = gabor(zero, sigma, theta, centre, slant) / gabor(zero, sigma, theta, 0.0, slant)
    return gabor(at, sigma, theta, centre, slant) - share * gabor(at, sigma, theta, 0.0, slant)


# The energy that they let through


def kept(response: Array, step: int) -> Array:
    """|ĥ|·Σ|ĥ|/step², Σ over the step² frequencies that become one: ‖every step-th of h * u‖² <= Σ kept·|û|²."""
    import numpy as np

    size: Array = np.abs(response)
    rows, columns = size.shape[0] // step, size.shape[1] // step
    alias = size.reshape(step, rows, step, columns).sum(axis=(0, 2))
    found: Array = size * np.tile(alias, (step, step)) / step**2
    return found


def energy(bank: Scattering2d, sizes: Shape, level: int, first: int, order: int) -> float:
    """Return a factor of ‖coefficients of u‖² by ‖u‖², for a real u that holds every 2^level-th position.

    The coefficients are φ * u, and those of |ψ * u| for the wavelets of scale `first` and above, `order` in a row.
    """
    import numpy as np

    at = frequencies(bank, sizes, level)
    total = kept(lowpass(bank, at), 2 ** (bank.scales - level))
    for scale in range(first, bank.scales if order else first):
        after = energy(bank, sizes, scale, scale + 1, order - 1)
        for angle in range(bank.angles):
            total += after * kept(wavelet(bank, at, scale, angle), 2 ** (scale - level))
    mirrored = np.roll(total[::-1, ::-1], (1, 1), (0, 1))
    return float((total + mirrored).max() / 2)


@lru_cache(maxsize=256)
def squared_gain(bank: Scattering2d, sizes: Shape) -> Fraction:
    """Return l²: the copies of the entry that the padding repeats most, times the energy let through."""
    copies = prod(counting.copies(size, bank.padding(size), "reflect") for size in sizes)
    error = (1 + bank.scales * bank.angles) * (1 + bank.angles) * 8**bank.scales * _UNIT
    return round_up(copies * Fraction(energy(bank, sizes, 0, 0, bank.order)) * (1 + error), 9)


def scattered(num: Numbers[N], site: Site[Any]) -> N:
    """√(r·A), r the copies that padding makes of an entry, A the energy that the cascade lets through."""
    return num.sqrt(squared_gain(site.attributes, site.inputs[0][1:]))


def gain_counts(site: Site[Any]) -> Mapping[str, Condition]:
    """r·A."""
    return {"squared_gain": squared_gain(site.attributes, site.inputs[0][1:])}


OPS: tuple[AnyOp, ...] = (
    homogeneous(
        "scattering2d",
        Scattering2d,
        scattering_shape,
        "scattering.md#scattering",
        scattered,
        conditions=gain_counts,
        axes="channels",
    ),
)
