"""Attacks of elementwise activations and of sorting."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from lipcompile.ops.activation import FullSort, GroupSort, LeakyReLU

from ..draw import NO, Draw, Drawn, no_attributes, plain
from ..family import Attack, feature_axis, split_axis, unary
from ..harness import unit
from ..witness import (
    at,
    constant,
    spread,
)


def _sorted_groups(draw: Draw) -> Drawn:
    shape, size = list(draw.any_shape()), draw.rng.randint(1, 3)
    axis = draw.rng.randrange(len(shape))
    shape[axis] *= size
    return GroupSort(size, axis), [tuple(shape)], {}


def group_sort(attributes: Any, x: Tensor) -> Tensor:
    axis = feature_axis(attributes, x)
    groups = split_axis(x, axis, (-1, attributes.size))
    return groups.sort(dim=axis + 1).values.reshape(x.shape)


def relu(_: Any, x: Tensor) -> Tensor:
    return x * (x > 0)


def leaky_relu(a: LeakyReLU, x: Tensor) -> Tensor:
    return torch.where(x >= 0, x, float(a.slope) * x)  # type: ignore[arg-type]


ATTACKS: Mapping[str, Attack] = {
    "relu": Attack(no_attributes, unary(relu), lambda: [at("relu", NO, constant((2, 3), 3))]),
    "leaky_relu": Attack(
        plain(lambda draw: LeakyReLU(draw.fraction() * draw.rng.choice((-1, 1)))),
        unary(leaky_relu),
        lambda: [
            at("leaky_relu", LeakyReLU(Fraction(1, 10)), constant((5,), 3)),
            at("leaky_relu", LeakyReLU(Fraction(-4)), -constant((5,), 3)),
        ],
    ),
    "tanh": Attack(
        no_attributes,
        unary(lambda _, x: torch.tanh(x)),
        lambda: [at("tanh", NO, constant((6,), norm)) for norm in (0.01, 100)],
    ),
    "sigmoid": Attack(
        no_attributes,
        unary(lambda _, x: 1 / (1 + torch.exp(-x))),
        lambda: [at("sigmoid", NO, constant((6,), norm)) for norm in (0.7, 100)],
    ),
    "softplus": Attack(
        no_attributes,
        unary(lambda _, x: torch.logaddexp(x, torch.zeros_like(x))),
        lambda: [at("softplus", NO, constant((6,), norm)) for norm in (0.001, 1000)],
    ),
    "abs": Attack(no_attributes, unary(lambda _, x: x.abs()), lambda: [at("abs", NO, spread())]),
    "groupsort": Attack(
        _sorted_groups,
        unary(group_sort),
        lambda: [
            at("groupsort", GroupSort(2, 0), spread()),
            at("groupsort", GroupSort(4, 2), spread()),
            at("groupsort", GroupSort(2, 0), 3 * unit(torch.eye(2, dtype=torch.float64))),
        ],
    ),
    "fullsort": Attack(
        plain(lambda draw: FullSort(draw.rng.choice((None, 0, -1)))),
        unary(lambda a, x: x.sort(dim=feature_axis(a, x)).values),
        lambda: [
            at("fullsort", FullSort(), spread()),
            at("fullsort", FullSort(-1), spread()),
            at("fullsort", FullSort(0), 3 * unit(torch.eye(2, dtype=torch.float64))),
        ],
    ),
}
