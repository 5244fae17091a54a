"""Attacks of activations with trainable numbers, and of reflections of pairs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from lipcompile.core.record import Constraint, Site
from lipcompile.ops.parametric.rules import FixedHouseholder, Householder, PerFeature
from lipcompile.ops.table import OP_BY_NAME

from .. import harness
from ..draw import Draw, Drawn
from ..family import Attack, Oracle, Tensors, Theta, Witness, feature_axis
from ..harness import Point
from ..witness import HALF, THREE, at, constant, one_hot


def _per_feature(role: str) -> Any:
    def drawn(draw: Draw) -> Drawn:
        shape = draw.any_shape()
        axis = draw.rng.choice((None, draw.rng.randrange(len(shape))))
        shared = draw.rng.random() < 0.3
        return PerFeature(axis, shared), [shape], {role: Constraint("box", draw.fraction())}

    return drawn


def _pairs(draw: Draw) -> tuple[int, tuple[int, ...]]:
    shape = list(draw.any_shape())
    axis = draw.rng.randrange(len(shape))
    shape[axis] *= 2
    return axis, tuple(shape)


def _householder(draw: Draw) -> Drawn:
    axis, shape = _pairs(draw)
    return Householder(axis), [shape], {"angle": Constraint("free", Fraction(0))}


def _fixed_householder(draw: Draw) -> Drawn:
    axis, shape = _pairs(draw)
    return FixedHouseholder(Fraction(draw.rng.randint(-64, 64), 16), axis), [shape], {}


def _one_by_one(role: str, value: Any) -> Oracle:
    """Slice after slice along the axis, each with its own number."""

    def oracle(site: Site[PerFeature], xs: Tensors, theta: Theta) -> Tensor:
        x, numbers = xs[0], theta[role].flatten()
        if site.attributes.shared:
            result: Tensor = value(x, numbers[0])
            return result
        axis = feature_axis(site.attributes, x)
        return torch.stack([value(x.select(axis, i), number) for i, number in enumerate(numbers)], dim=axis)

    return oracle


def reflected(attributes: Any, x: Tensor, angles: list[Tensor]) -> Tensor:
    """The definition by cases of Singla, Singla, Feizi, pair after pair."""
    axis, made = feature_axis(attributes, x), []
    for pair, angle in enumerate(angles):
        first, second = x.select(axis, 2 * pair), x.select(axis, 2 * pair + 1)
        stays = first * torch.sin(angle / 2) - second * torch.cos(angle / 2) > 0
        cosine, sine = torch.cos(angle), torch.sin(angle)
        made += [
            torch.where(stays, first, cosine * first + sine * second),
            torch.where(stays, second, sine * first - cosine * second),
        ]
    return torch.stack(made, dim=axis)


def householder(site: Site[Householder], xs: Tensors, theta: Theta) -> Tensor:
    return reflected(site.attributes, xs[0], list(theta["angle"].flatten()))


def fixed_householder(site: Site[FixedHouseholder], xs: Tensors, _: Theta) -> Tensor:
    a = site.attributes
    angle = torch.tensor(float(a.angle), dtype=torch.float64)  # type: ignore[arg-type]
    return reflected(a, xs[0], [angle] * (xs[0].shape[feature_axis(a, xs[0])] // 2))


def _witness(op: str, attributes: Any, x: Tensor, role: str, constraint: Constraint, value: float) -> Witness:
    norm = Fraction(float(x.norm()))
    case = harness.case(OP_BY_NAME[op], attributes, [tuple(x.shape)], [norm], {role: constraint}, cotangent=2)
    theta = {role: torch.full(case.parameter_shape(role), value, dtype=torch.float64)}
    return case, Point((x,), theta)


def _box_witnesses(op: str, role: str) -> list[Witness]:
    """Negative entries: all alike, where √P·M is the smaller, and one alone, where X is. Bounds around 1."""
    xs = (-constant((3, 2, 2), 3), -one_hot((3, 2, 2), 5, 2), constant((3, 2, 2), 3))
    return [
        _witness(op, attributes, x, role, Constraint("box", bound), -float(bound))
        for attributes in (PerFeature(), PerFeature(shared=True))
        for bound in (HALF, THREE)
        for x in xs
    ]


def _angle_witnesses() -> list[Witness]:
    """Equal entries, turned onto the first of each pair; and one pair alone."""
    free = Constraint("free", Fraction(0))
    xs = (constant((4, 2, 2), 3), one_hot((4, 2, 2), 5, 2))
    return [
        _witness("householder", Householder(axis), x, "angle", free, math.pi / 4) for axis in (0, 2) for x in xs
    ]


def _fixed_witnesses() -> list[Witness]:
    quarter = Fraction(math.pi / 4)
    return [at("fixed_householder", FixedHouseholder(quarter, axis), constant((4, 2, 2), 3)) for axis in (0, 2)]


ATTACKS: Mapping[str, Attack] = {
    "prelu": Attack(
        _per_feature("slope"),
        _one_by_one("slope", lambda x, a: torch.where(x > 0, x, a * x)),
        lambda: _box_witnesses("prelu", "slope"),
    ),
    "scale": Attack(
        _per_feature("gain"),
        _one_by_one("gain", lambda x, a: a * x),
        lambda: _box_witnesses("scale", "gain"),
    ),
    "householder": Attack(_householder, householder, _angle_witnesses),
    "fixed_householder": Attack(_fixed_householder, fixed_householder, _fixed_witnesses),
}
