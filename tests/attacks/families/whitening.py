"""Attack of whitened features: what is claimed holds for all constants, so the oracles draw theirs."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from lipcompile.ops.scattering.rules import Scattering2d
from lipcompile.ops.whitening.rules import WhitenedPatches, WhitenedScattering2d

from ..draw import Draw, Drawn
from ..family import Attack, unary
from ..points import normal
from ..witness import at, spread
from .scattering import scattering


def _of_length_one(entries: Tensor, directions: int) -> Tensor:
    """Any matrix and any mean at every position of [E, h, w], and the whole over its length."""
    generator = torch.Generator().manual_seed(directions)
    matrix, mean = normal((directions, len(entries)), generator), normal((len(entries), 1, 1), generator)
    found = torch.einsum("de,ehw->dhw", matrix, entries - mean)
    unit: Tensor = found / found.norm().clamp(min=1e-6)
    return unit


def whitened_scattering(a: WhitenedScattering2d, x: Tensor) -> Tensor:
    coefficients = scattering(Scattering2d(a.scales, a.angles), x)
    return _of_length_one(torch.log(coefficients.clamp(min=0) + float(a.floor)), a.channels)  # type: ignore[arg-type]


def mirrored_scattering(a: WhitenedScattering2d, x: Tensor) -> Tensor:
    """Any sums of two coefficients, as the bound depends on none."""
    coefficients = scattering(Scattering2d(a.scales, a.angles), x)
    logarithms = torch.log(coefficients.clamp(min=0) + float(a.floor))  # type: ignore[arg-type]
    return _of_length_one((logarithms + logarithms.flip(2))[..., : (logarithms.shape[2] + 1) // 2], a.channels)


def whitened_patches(a: WhitenedPatches, x: Tensor) -> Tensor:
    windows = x.unfold(1, a.size, a.stride).unfold(2, a.size, a.stride).movedim((1, 2), (3, 4))
    entries = windows.reshape(-1, *windows.shape[3:])
    deviations = (entries.var(0, correction=0) + float(a.floor) ** 2).sqrt()  # type: ignore[arg-type]
    return _of_length_one((entries - entries.mean(0)) / deviations, len(entries))


def _scattering(draw: Draw) -> Drawn:
    pick = draw.rng.randint
    attributes = WhitenedScattering2d(
        pick(1, 4), draw.rng.choice(("leaves", "strokes")), 1, pick(2, 3), draw.fraction(), draw.fraction(), 5
    )
    return attributes, [(1, pick(4, 8), pick(4, 8))], {}


def _patches(draw: Draw) -> Drawn:
    pick = draw.rng.randint
    attributes = WhitenedPatches(pick(2, 3), pick(1, 3), draw.fraction(), draw.fraction(), 5)
    return attributes, [(draw.rng.choice((1, 3)), pick(3, 6), pick(3, 6))], {}


ATTACKS: Mapping[str, Attack] = {
    "whitened_scattering2d": Attack(
        _scattering,
        unary(whitened_scattering),
        lambda: [
            at("whitened_scattering2d", WhitenedScattering2d(3, "strokes", 1, 2, images=5), spread((1, 8, 8)))
        ],
    ),
    "mirrored_scattering2d": Attack(
        _scattering,
        unary(mirrored_scattering),
        lambda: [
            at("mirrored_scattering2d", WhitenedScattering2d(3, "strokes", 1, 2, images=5), spread((1, 8, 8)))
        ],
    ),
    "whitened_patches": Attack(
        _patches,
        unary(whitened_patches),
        lambda: [at("whitened_patches", WhitenedPatches(2, 1), spread((3, 4, 4)))],
    ),
}
