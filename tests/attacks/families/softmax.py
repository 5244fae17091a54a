"""Attacks of softmax and of its logarithm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from lipcompile.ops.softmax.rules import LogSoftmax, Softmax

from ..draw import Draw, Drawn
from ..family import Attack, Witness, unary
from ..witness import at


def _slices(attributes: Any, x: Tensor, function: Any) -> Tensor:
    moved = x.movedim(attributes.axis, -1)
    rows = [function(row) for row in moved.reshape(-1, moved.shape[-1])]
    return torch.stack(rows).reshape(moved.shape).movedim(-1, attributes.axis)


def _stable(row: Tensor) -> Tensor:
    """e^{x_i - max x}: the same factor in all entries cancels in what follows."""
    return torch.exp(row - row.max().detach())


def softmax(a: Any, x: Tensor) -> Tensor:
    scaled = float(a.temperature) * x
    return _slices(a, scaled, lambda row: _stable(row) / _stable(row).sum())


def log_softmax(a: Any, x: Tensor) -> Tensor:
    return _slices(a, x, lambda row: row - row.max().detach() - torch.log(_stable(row).sum()))


def _axis(draw: Draw) -> tuple[int, tuple[int, ...]]:
    shape = draw.any_shape()
    return draw.rng.randrange(-len(shape), len(shape)), shape


def _softmax(draw: Draw) -> Drawn:
    axis, shape = _axis(draw)
    return Softmax(draw.fraction() / 4, axis), [shape], {}


def _log_softmax(draw: Draw) -> Drawn:
    axis, shape = _axis(draw)
    return LogSoftmax(axis), [shape], {}


# Directions of the K logits of one softmax: m at the top, one far from the others, two opposite ones.
_DIRECTIONS: Sequence[Sequence[float]] = (
    (1, -1),
    (1, 1, -1),
    (1, 1, -1, -1),
    (1, -1, -1, -1),
    (3, -1, -1, -1),
    (1, -1, 0),
)


def _witnesses(op: str, attributes: Any) -> list[Witness]:
    """The same direction in every slice, along rows and across them; small, moderate and large."""
    found = []
    for direction in _DIRECTIONS:
        logits = torch.tensor(direction, dtype=torch.float64)
        points = {-1: torch.stack([logits, logits]), 0: torch.stack([logits, logits], dim=1)}
        alone = {0: logits[:, None], -1: torch.stack([logits, 0 * logits])}
        for axis, x in [*points.items(), *alone.items()]:
            found += [at(op, attributes(axis), scale * x) for scale in (1e-6, 0.3, 1e3)]
    return found


ATTACKS: Mapping[str, Attack] = {
    "softmax": Attack(
        _softmax, unary(softmax), lambda: _witnesses("softmax", lambda axis: Softmax(Fraction(3, 2), axis))
    ),
    "log_softmax": Attack(_log_softmax, unary(log_softmax), lambda: _witnesses("log_softmax", LogSoftmax)),
}
