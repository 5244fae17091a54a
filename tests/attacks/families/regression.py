"""Attacks of the losses of real targets."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from lipcompile.core.record import Shape
from lipcompile.ops.loss.regression import AbsoluteError, Huber, SmoothL1, SquaredError

from ..draw import Draw
from ..harness import LossCase
from ..witness import HALF, THREE, constant
from .losses import REDUCE, LossAttack, LossWitness, any_shape, loss_witness, over

FOUR = Fraction(4)


def vector(found: LossCase, generator: torch.Generator) -> Tensor:
    """A target of the target norm; of any length, where there is none."""
    norm = getattr(found.attributes, "target_norm", None)
    length = float(norm) if norm is not None else float(10 * torch.rand((), generator=generator))
    direction = torch.randn(found.shape, generator=generator, dtype=torch.float64)
    return direction * (length / float(direction.norm()))


def huber(a: Any, output: Tensor, target: Tensor) -> Tensor:
    sizes, delta = (output - target).abs(), float(a.delta)
    return over(torch.where(sizes <= delta, sizes**2 / 2, delta * (sizes - delta / 2)), a.reduce)


def smooth_l1(a: Any, output: Tensor, target: Tensor) -> Tensor:
    sizes, beta = (output - target).abs(), float(a.beta)
    return over(torch.where(sizes < beta, sizes**2 / (2 * beta), sizes - beta / 2), a.reduce)


def _squared(draw: Draw, _: Shape) -> SquaredError:
    return SquaredError(draw.fraction())


def _turned(kind: Any) -> Any:
    """Attributes of Huber's kind: where it turns, with or without a target norm."""
    return lambda draw, _: kind(draw.fraction(), draw.rng.choice((None, draw.fraction())), draw.rng.choice(REDUCE))


def _opposite(name: str, attributes: Any) -> LossWitness:
    """Two outputs, ‖ŷ‖ = 2, against a target of norm 3 that points away."""
    return loss_witness(name, attributes, 2, [1, 1], -constant((2,), THREE))


def _turning(name: str, kind: Any) -> list[LossWitness]:
    """Residuals all beyond the turn (no target norm; one), then all before it: ‖r‖ = 5 < 4·√2."""
    uses = [(HALF, None), (HALF, THREE), (FOUR, THREE)]
    return [_opposite(name, kind(turn, norm, reduce)) for turn, norm in uses for reduce in REDUCE]


ATTACKS: Mapping[str, LossAttack] = {
    "squared_error": LossAttack(
        _squared,
        any_shape,
        lambda _, z, y: ((z - y) ** 2).sum() / 2,
        vector,
        lambda: [_opposite("squared_error", SquaredError(THREE))],
    ),
    "mean_squared_error": LossAttack(
        _squared,
        any_shape,
        lambda _, z, y: ((z - y) ** 2).mean(),
        vector,
        lambda: [_opposite("mean_squared_error", SquaredError(THREE))],
    ),
    "absolute_error": LossAttack(
        lambda draw, _: AbsoluteError(draw.rng.choice(REDUCE)),
        any_shape,
        lambda a, z, y: over((z - y).abs(), a.reduce),
        vector,
        lambda: [_opposite("absolute_error", AbsoluteError(reduce)) for reduce in REDUCE],
    ),
    "huber": LossAttack(_turned(Huber), any_shape, huber, vector, lambda: _turning("huber", Huber)),
    "smooth_l1": LossAttack(
        _turned(SmoothL1), any_shape, smooth_l1, vector, lambda: _turning("smooth_l1", SmoothL1)
    ),
}
