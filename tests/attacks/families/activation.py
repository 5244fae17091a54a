"""Attacks of elementwise activations and of sorting."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from lipcompile.ops.activation.rules import (
    CELU,
    ELU,
    GELU,
    FullSort,
    GroupSort,
    HardShrink,
    HardSigmoid,
    Hardtanh,
    LeakyReLU,
)

from ..draw import NO, Draw, Drawn, no_attributes, plain
from ..family import Attack, Witness, feature_axis, split_axis, unary
from ..harness import unit
from ..witness import at, constant, one_hot, spread


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


def elu(alpha: Any, x: Tensor) -> Tensor:
    return torch.where(x > 0, x, float(alpha) * (torch.exp(x.clamp(max=0)) - 1))


def celu(a: CELU, x: Tensor) -> Tensor:
    alpha = float(a.alpha)  # type: ignore[arg-type]
    return torch.where(x > 0, x, alpha * (torch.exp(x.clamp(max=0) / alpha) - 1))


def gelu(a: GELU, x: Tensor) -> Tensor:
    if a.approximate == "none":
        return x * (1 + torch.erf(x / math.sqrt(2))) / 2
    return x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2


def hard_sigmoid(a: HardSigmoid, x: Tensor) -> Tensor:
    return cut(float(a.slope) * x + float(a.offset), 0, 1)  # type: ignore[arg-type]


def cut(x: Tensor, low: float, high: float) -> Tensor:
    """The middle one of three numbers, with the slope of x between the others."""
    return torch.where(x < low, low, torch.where(x > high, high, x))


def hardtanh(a: Hardtanh, x: Tensor) -> Tensor:
    return cut(x, float(a.low), float(a.high))  # type: ignore[arg-type]


def hard_shrink(a: HardShrink, x: Tensor) -> Tensor:
    kept: Tensor = x.abs() > float(a.threshold)  # type: ignore[arg-type]
    return x * kept


def _signed(draw: Draw) -> Fraction:
    return draw.fraction() * draw.rng.choice((-1, 1))


def _interval(draw: Draw) -> Hardtanh:
    low, high = sorted((_signed(draw), _signed(draw)))
    return Hardtanh(low, high)


def _smooth_witnesses(op: str, attributes: Any, steepest: float) -> list[Witness]:
    """Near 0, where the slope is largest, and far out, where φ(x) is almost x."""
    return [at(op, attributes, torch.full((2, 3), x, dtype=torch.float64)) for x in (0.5, 1.0, steepest, 1000.0)]


def _hardtanh_witnesses() -> list[Witness]:
    """The ball, the farther end, and around an interval that does not hold 0."""
    low, one = Hardtanh(Fraction(1, 2), Fraction(8)), one_hot((2, 3), 1, 2)
    high = Hardtanh(Fraction(-8), Fraction(-1, 2))
    return [
        at("hardtanh", Hardtanh(), constant((2, 3), 1)),
        at("hardtanh", Hardtanh(Fraction(-1), Fraction(2)), constant((2, 3), 100)),
        at("hardtanh", Hardtanh(Fraction(-3), Fraction(2)), -constant((2, 3), 100)),
        at("hardtanh", low, constant((2, 3), Fraction(1, 10))),
        at("hardtanh", low, one),
        at("hardtanh", low, constant((2, 3), 100)),
        at("hardtanh", high, -one),
        at("hardtanh", high, constant((2, 3), Fraction(1, 10))),
    ]


# Functions of torch, and the norm of six equal entries at which they are largest.
_FUNCTIONS: Mapping[str, tuple[Callable[[Tensor], Tensor], float]] = {
    "sin": (torch.sin, math.sqrt(6) * math.pi / 2),
    "cos": (torch.cos, math.sqrt(6) * math.pi / 2),
    "atan": (torch.atan, 1000),
    "asinh": (torch.asinh, 0.02),
    "erf": (torch.erf, 100),
}


def _of_torch(name: str, function: Callable[[Tensor], Tensor], most: float) -> Attack:
    return Attack(
        no_attributes,
        unary(lambda _, x: function(x)),
        lambda: [at(name, NO, constant((6,), norm)) for norm in (0.01, most)],
    )


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
    **{name: _of_torch(name, *row) for name, row in _FUNCTIONS.items()},
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
    "elu": Attack(
        plain(lambda draw: ELU(_signed(draw))),
        unary(lambda a, x: elu(a.alpha, x)),
        lambda: [
            at("elu", ELU(Fraction(1, 2)), constant((5,), 3)),
            at("elu", ELU(Fraction(-4)), -constant((5,), 0.001)),
        ],
    ),
    "celu": Attack(
        plain(lambda draw: CELU(draw.fraction())),
        unary(celu),
        lambda: [at("celu", CELU(Fraction(1, 4)), constant((2, 3), 3))],
    ),
    "selu": Attack(
        no_attributes,
        unary(lambda _, x: 1.0507009873554805 * elu(1.6732632423543772, x)),
        lambda: [
            at("selu", NO, -constant((2, 3), 0.001)),
            at("selu", NO, torch.full((2, 3), -0.69992, dtype=torch.float64)),
            at("selu", NO, constant((2, 3), 1000)),
        ],
    ),
    "gelu": Attack(
        plain(lambda draw: GELU(draw.rng.choice(("none", "tanh")))),
        unary(gelu),
        lambda: [*_smooth_witnesses("gelu", GELU(), 1.4142), *_smooth_witnesses("gelu", GELU("tanh"), 1.4185)],
    ),
    "silu": Attack(
        no_attributes,
        unary(lambda _, x: x / (1 + torch.exp(-x))),
        lambda: _smooth_witnesses("silu", NO, 2.3994),
    ),
    "mish": Attack(
        no_attributes,
        unary(lambda _, x: x * torch.tanh(torch.logaddexp(x, torch.zeros_like(x)))),
        lambda: _smooth_witnesses("mish", NO, 1.4906),
    ),
    "hard_swish": Attack(
        no_attributes,
        unary(lambda _, x: x * cut(x + 3, 0, 6) / 6),
        lambda: _smooth_witnesses("hard_swish", NO, 2.9999),
    ),
    "hard_sigmoid": Attack(
        plain(lambda draw: HardSigmoid(_signed(draw), Fraction(draw.rng.randint(0, 8), 8))),
        unary(hard_sigmoid),
        lambda: [
            at("hard_sigmoid", HardSigmoid(Fraction(-1, 2), Fraction(1, 4)), -constant((6,), norm))
            for norm in (1, 100)
        ],
    ),
    "softsign": Attack(
        no_attributes,
        unary(lambda _, x: x / (1 + x.abs())),
        lambda: [at("softsign", NO, constant((2, 3), norm)) for norm in (0.001, 1, 1000)],
    ),
    "hardtanh": Attack(plain(_interval), unary(hardtanh), _hardtanh_witnesses),
    "sign": Attack(
        no_attributes,
        unary(lambda _, x: torch.sign(x)),
        lambda: [at("sign", NO, constant((2, 3), 3))],
    ),
    "hard_shrink": Attack(
        plain(lambda draw: HardShrink(draw.fraction())),
        unary(hard_shrink),
        lambda: [at("hard_shrink", HardShrink(), constant((2, 3), 3))],
    ),
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
