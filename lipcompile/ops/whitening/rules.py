"""Maps of one image to features of length 1, with constants that are fixed in public. Proofs: whitening.md."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

from lipcompile import limits
from lipcompile.core.record import AnyOp, Shape, ShapeRule
from lipcompile.diagnostics import Refusal
from lipcompile.numbers import Scalar, text
from lipcompile.ops.rules import one, plain
from lipcompile.ops.scattering.rules import Scattering2d, scattering_shape

# Synthetic images that the constants are of; fewer than directions leave some of these to chance.
_MOST_IMAGES = 100_000


@dataclass(frozen=True, slots=True)
class WhitenedScattering2d:
    """Logarithms of scattering coefficients of order 2, less their means over `images` synthetic images, along the
    `channels` directions of the most variance, with variances λ scaled by λ^-power; the whole of length 1.
    `mirrored_scattering2d` adds those of the mirrored image to them first.
    """

    channels: int = 128
    source: Literal["leaves", "strokes"] = "leaves"
    scales: int = 2
    angles: int = 8
    floor: Scalar = Fraction(1, 100)
    power: Scalar = Fraction(1, 4)
    images: int = 2000


@dataclass(frozen=True, slots=True)
class WhitenedPatches:
    """Overlapping patches, each less its mean over √(variance + floor²), whitened by those of `images` synthetic
    images with variances λ scaled by λ^-power; the whole of length 1.
    """

    size: int = 6
    stride: int = 3
    floor: Scalar = Fraction(1, 20)
    power: Scalar = Fraction(1, 2)
    images: int = 2000


def _scattering_shape(name: str, attributes: WhitenedScattering2d, inputs: tuple[Shape, ...]) -> Shape:
    bank = Scattering2d(attributes.scales, attributes.angles)
    coefficients, *grid = scattering_shape(bank, inputs)
    _check(attributes, inputs[0], name)
    if attributes.source == "strokes" and inputs[0][0] != 1:
        raise Refusal("LIP102", "strokes are grey, but these images have 3 channels", "write source=leaves")
    if attributes.channels > coefficients:
        message = f"the scattering has {coefficients} coefficients, not {attributes.channels}"
        raise Refusal("LIP103", message, f"write channels={coefficients}, or fewer")
    return (attributes.channels, *grid)


def whitened_scattering_shape(attributes: WhitenedScattering2d, inputs: tuple[Shape, ...]) -> Shape:
    """[c, h, w] -> [channels, h//2^J, w//2^J]."""
    return _scattering_shape("whitened_scattering2d", attributes, inputs)


def mirrored_scattering_shape(attributes: WhitenedScattering2d, inputs: tuple[Shape, ...]) -> Shape:
    """[c, h, w] -> [channels, h//2^J, ⌈(w//2^J)/2⌉]."""
    channels, height, width = _scattering_shape("mirrored_scattering2d", attributes, inputs)
    return (channels, height, (width + 1) // 2)


def whitened_patches_shape(attributes: WhitenedPatches, inputs: tuple[Shape, ...]) -> Shape:
    """[c, h, w] -> [c·size², (h - size)//stride + 1, (w - size)//stride + 1]."""
    _check(attributes, inputs[0], "whitened_patches")
    channels, *sizes = inputs[0]
    if attributes.size > min(sizes):
        message = f"an image of {sizes[0]} by {sizes[1]} is smaller than patches of size {attributes.size}"
        raise Refusal("LIP103", message, f"choose a size of at most {min(sizes)}")
    entries = channels * attributes.size**2
    limits.refuse_above("counts", entries, "whitened_patches makes positions of")
    return (entries, *((size - attributes.size) // attributes.stride + 1 for size in sizes))


def _check(attributes: WhitenedScattering2d | WhitenedPatches, example: Shape, name: str) -> None:
    if len(example) != 3 or example[0] not in (1, 3):
        message = f"{name} needs an image [channels, height, width] of 1 or 3 channels, not {list(example)}"
        raise Refusal(
            "LIP102", message, "its constants are computed from synthetic images, which are grey or coloured"
        )
    if attributes.images > _MOST_IMAGES:
        raise Refusal("LIP104", f"{attributes.images} synthetic images take too long", "2000 are enough")
    for field, kind in (("floor", "positive"), ("power", "non-negative")):
        value = getattr(attributes, field)
        wrong = not isinstance(value, Fraction) or not 0 <= value <= 100
        if wrong or (value == 0 and kind == "positive"):
            shown = text(value)
            raise Refusal("LIP104", f"`{field}` of {name} is a {kind} number of at most 100, not {shown}")


def _whitened(name: str, attributes: type[Any], shape: ShapeRule[Any]) -> AnyOp:
    proof = "whitening.md#features-of-length-one"
    return plain(name, attributes, shape, proof, norm=one, lipschitz=None, axes="channels")


OPS: tuple[AnyOp, ...] = (
    _whitened("whitened_scattering2d", WhitenedScattering2d, whitened_scattering_shape),
    _whitened("mirrored_scattering2d", WhitenedScattering2d, mirrored_scattering_shape),
    _whitened("whitened_patches", WhitenedPatches, whitened_patches_shape),
)
