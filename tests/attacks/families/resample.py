"""Attacks of copies and interpolation."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from lipcompile.core.record import Shape
from lipcompile.ops.counting import Mode
from lipcompile.ops.resample.rules import Expand, Gather, Interpolation, Pad, Upsample

from ..draw import Draw, Drawn
from ..family import Attack, Witness, feature_axis, unary
from ..harness import unit
from ..witness import at, best_direction, constant, one_hot, spread

MODES: tuple[Mode, ...] = ("zeros", "circular", "reflect", "replicate")
INTERPOLATIONS: tuple[Interpolation, ...] = ("nearest", "bilinear", "bicubic")


def _pad(draw: Draw) -> Drawn:
    rank, image = draw.image()
    return Pad(draw.window(rank)["padding"], draw.rng.choice(MODES)), [image], {}


def _upsample(draw: Draw) -> Drawn:
    rank, image = draw.image()
    mode = draw.rng.choice(INTERPOLATIONS)
    factor = tuple(draw.rng.randint(1, 4) for _ in range(rank))
    return Upsample(factor, mode, mode != "nearest" and draw.rng.random() < 0.5), [image], {}


def _gather(draw: Draw) -> Drawn:
    shape = draw.any_shape()
    axis = draw.rng.choice((None, draw.rng.randrange(len(shape))))
    size = shape[(-1 if len(shape) <= 2 else 0) if axis is None else axis]
    count = draw.rng.randint(1, 6)
    return Gather(tuple(draw.rng.randrange(size) for _ in range(count)), axis), [shape], {}


def _expand(draw: Draw) -> Drawn:
    """Sizes of 1 may grow or stay; others stay; new axes come first."""
    shape = tuple(draw.rng.choice((1, size)) for size in draw.any_shape())
    new = draw.shape(draw.rng.randint(0, 2), 3)
    kept = tuple(draw.rng.choice((-1, size * (draw.rng.randint(1, 3) if size == 1 else 1))) for size in shape)
    return Expand((*new, *kept)), [shape], {}


def pad(attributes: Any, x: Tensor) -> Tensor:
    sides = [side for pair in reversed(attributes.padding) for side in pair]
    if not sides:
        return x
    return F.pad(x[None], sides, "constant" if attributes.mode == "zeros" else attributes.mode)[0]


def upsample(attributes: Any, x: Tensor) -> Tensor:
    """Torch's interpolation of a line, one axis after the other."""
    corners = attributes.align_corners if attributes.mode != "nearest" else None
    for axis, factor in enumerate(attributes.factor, start=1):
        lines = x.movedim(axis, -1)
        scaled = F.interpolate(
            lines.reshape(-1, 1, 1, lines.shape[-1]),
            size=(1, factor * lines.shape[-1]),
            mode=attributes.mode,
            align_corners=corners,
        )
        x = scaled.reshape(*lines.shape[:-1], -1).movedim(-1, axis)
    return x


def expand(attributes: Any, x: Tensor) -> Tensor:
    sizes = (*(1 for _ in range(len(attributes.shape) - x.dim())), *x.shape)
    target = [own if new == -1 else new for own, new in zip(sizes, attributes.shape, strict=True)]
    return x.reshape(sizes) * torch.ones(target, dtype=x.dtype)


def _signed_rows(attributes: Upsample, shape: Shape) -> Tensor:
    """Rows of one direction, the worst for the last axis, with the signs of the heaviest output of the others."""
    columns, last = torch.eye(shape[1], dtype=torch.float64), torch.eye(shape[2], dtype=torch.float64)
    heights = upsample(
        Upsample((attributes.factor[0], 1), attributes.mode, attributes.align_corners), columns[:, :, None]
    )
    widths = upsample(
        Upsample((1, attributes.factor[1]), attributes.mode, attributes.align_corners), last[:, None]
    )
    rows = heights[:, :, 0].T
    signs = torch.sign(rows[rows.abs().sum(dim=1).argmax()])
    direction = torch.linalg.svd(widths[:, 0].T)[2][0]
    return 3 * unit(signs[None, :, None] * direction[None, None, :])


def _signed_entries(attributes: Upsample, shape: Shape) -> Tensor:
    """Entries of one size with the signs of the heaviest output."""
    size = shape[1] * shape[2]
    columns = torch.eye(size, dtype=torch.float64).reshape(size, *shape[1:])
    rows = upsample(attributes, columns).flatten(1).T
    signs = torch.sign(rows[rows.abs().sum(dim=1).argmax()])
    return 3 * unit(signs.reshape(1, *shape[1:]))


def _upsample_witnesses() -> list[Witness]:
    found = [at("upsample", Upsample((2, 3)), spread())]
    smooth: tuple[Interpolation, ...] = ("bilinear", "bicubic")
    for mode, corners in product(smooth, (False, True)):
        attributes, shape = Upsample((2, 3), mode, corners), (1, 4, 5)
        found.append(best_direction("upsample", attributes, shape))
        found.append(at("upsample", attributes, _signed_rows(attributes, shape)))
        found.append(at("upsample", attributes, _signed_entries(attributes, shape)))
    return found


def _pad_witnesses() -> list[Witness]:
    """The single entry that is repeated most: on both axes, and along a row."""
    sides = ((2, 1), (1, 2))
    places: dict[Mode, int] = {"zeros": 5, "circular": 5, "reflect": 4, "replicate": 8}
    return [at("pad", Pad(sides, mode), one_hot((1, 3, 3), place, 3)) for mode, place in places.items()]


ATTACKS: Mapping[str, Attack] = {
    "pad": Attack(_pad, unary(pad), _pad_witnesses),
    "upsample": Attack(_upsample, unary(upsample), _upsample_witnesses),
    "gather": Attack(
        _gather,
        unary(lambda a, x: torch.stack([x.select(feature_axis(a, x), i) for i in a.indices], feature_axis(a, x))),
        lambda: [
            at("gather", Gather((2, 0, 2, 2)), one_hot((2, 3), 2, 3)),
            at("gather", Gather((1, 1), 0), one_hot((2, 3, 2), 7, 3)),
        ],
    ),
    "expand": Attack(
        _expand,
        unary(expand),
        lambda: [
            at("expand", Expand((3, -1, 4, 2)), one_hot((2, 1, 2), 1, 3)),
            at("expand", Expand((2, 4)), constant((2, 1), 3)),
        ],
    ),
}
