"""Points on which rules are attained: pieces that the families share."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import prod
from typing import Any

import torch
from torch import Tensor

from lipcompile.core.record import Constraint, ConstraintKind, Shape
from lipcompile.ops.table import OP_BY_NAME

from . import harness
from .family import Witness
from .harness import Case, Point, unit
from .points import normal

HALF, THREE = Fraction(1, 2), Fraction(3)
BIAS_NORM = Fraction(7, 4)
BIAS = Constraint("ball", BIAS_NORM)


def constraint(kind: ConstraintKind, bound: Fraction = THREE) -> Constraint:
    return Constraint(kind, Fraction(1) if kind == "orthogonal" else bound)


def constant(shape: Sequence[int], norm: Fraction | float) -> Tensor:
    return float(norm) * unit(torch.ones(tuple(shape), dtype=torch.float64))


def one_hot(shape: Sequence[int], index: int, value: Fraction | float = 1.0) -> Tensor:
    x = torch.zeros(prod(shape), dtype=torch.float64)
    x[index] = float(value)
    return x.reshape(tuple(shape))


def worst_direction(case: Case, point: Point) -> Tensor:
    """Top right singular vector of the op's Jacobian, scaled to the domain."""
    matrix = harness.input_jacobian(case, point, 0)
    direction = torch.linalg.svd(matrix)[2][0].reshape(case.site.inputs[0])
    scale = torch.sign(direction.sum()) * float(case.bounds[0].norm)
    return direction * scale  # type: ignore[no-any-return]


def at(op: str, attributes: Any, x: Tensor, norm: Fraction | float | None = None) -> Witness:
    """The op of one operand at the point x, on a ball that reaches just to it unless `norm` is given."""
    radius = Fraction(float(x.norm()) if norm is None else norm)
    return harness.case(OP_BY_NAME[op], attributes, [tuple(x.shape)], [radius], cotangent=2), Point((x,))


def best_direction(op: str, attributes: Any, shape: Shape) -> Witness:
    """The worst input of a linear op."""
    case, point = at(op, attributes, constant(shape, 3), norm=3)
    return case, Point((worst_direction(case, point),))


def spread(shape: Shape = (2, 4, 4), seed: int = 0) -> Tensor:
    return 3 * unit(normal(shape, torch.Generator().manual_seed(seed)))
