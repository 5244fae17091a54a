"""Attacks of colour spaces: the oracles are a matrix written down by hand, and the standard library's HSV."""

from __future__ import annotations

import colorsys
from collections.abc import Mapping

import torch
from torch import Tensor

from lipcompile.core.record import NoAttributes
from lipcompile.ops.colour.rules import ColourSpace

from ..draw import Draw, Drawn
from ..family import Attack, unary
from ..witness import at, best_direction

_LUMA = [0.299, 0.587, 0.114]
_MATRICES = {
    "grayscale": [_LUMA],
    "yiq": [_LUMA, [0.59590059, -0.27455667, -0.32134392], [0.21153661, -0.52273617, 0.31119955]],
    "yuv": [_LUMA, [-0.14714119, -0.28886916, 0.43601035], [0.61497538, -0.51496512, -0.10001026]],
}


def colour_space(a: ColourSpace, x: Tensor) -> Tensor:
    return torch.einsum("ij,jhw->ihw", torch.tensor(_MATRICES[a.space], dtype=x.dtype), x)


def hsv(_: NoAttributes, x: Tensor) -> Tensor:
    pixels = x.clamp(0, 1).flatten(1).T.tolist()
    return torch.tensor([colorsys.rgb_to_hsv(*pixel) for pixel in pixels], dtype=x.dtype).T.reshape(x.shape)


def _image(draw: Draw) -> tuple[int, int, int]:
    return (3, draw.rng.randint(1, 4), draw.rng.randint(1, 4))


def _space(draw: Draw) -> Drawn:
    return ColourSpace(draw.rng.choice(tuple(_MATRICES))), [_image(draw)], {}  # type: ignore[arg-type]


ATTACKS: Mapping[str, Attack] = {
    "colour_space": Attack(
        _space,
        unary(colour_space),
        lambda: [
            best_direction("colour_space", ColourSpace(space), (3, 2, 2)) for space in ("grayscale", "yiq", "yuv")
        ],
    ),
    "hsv": Attack(
        lambda draw: (NoAttributes(), [_image(draw)], {}),
        unary(hsv),
        lambda: [
            at("hsv", NoAttributes(), torch.tensor([1.0, 0.0, 1e-3]).double()[:, None, None].expand(3, 2, 2))
        ],
    ),
}
