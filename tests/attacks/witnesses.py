"""For every op and loss, inputs, weights and cotangents on which each constant of its rules is attained.

A rule with several regimes (a minimum, a bias term, an overlap counted in two ways) has a witness in each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from math import prod
from typing import Any

import torch
from torch import Tensor

from lipcompile.ops import LOSS_BY_NAME, OP_BY_NAME
from lipcompile.ops.activation import FullSort, GroupSort, LeakyReLU
from lipcompile.ops.linear import BiasShape, Conv, Dense
from lipcompile.ops.loss import (
    Cosine,
    Hinge,
    HingeKR,
    Logistic,
    MulticlassHinge,
    MulticlassHingeKR,
    MulticlassKR,
    SquaredError,
)
from lipcompile.ops.merge import Concat, Sum
from lipcompile.ops.pool import GlobalPool, Pool
from lipcompile.ops.record import Constraint, ConstraintKind, NoAttributes, Shape
from lipcompile.ops.shape import Block, ClipGradient, ClipNorm, Dropout, Pad, Reshape, Slice, Transpose

from . import harness
from .harness import Case, LossCase, Point, unit
from .points import into, normal

Witness = tuple[Case, Point]
LossWitness = tuple[LossCase, Tensor, Any]
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
    scale = torch.sign(direction.sum()) * float(case.norms[0])
    return direction * scale  # type: ignore[no-any-return]


# Linear


def dense_witness(shape: Shape, kind: ConstraintKind, *, bias: bool) -> Witness:
    """All positions alike: the input along the first feature, which the weight sends to the first output."""
    constraints = {"weight": constraint(kind)} | ({"bias": BIAS} if bias else {})
    case = harness.case(OP_BY_NAME["dense"], Dense(3), [shape], [5], constraints, cotangent=2)
    x = torch.zeros(shape, dtype=torch.float64)
    x[..., 0] = 1
    weight = torch.zeros(3, shape[-1], dtype=torch.float64)
    weight[0, 0] = float(THREE)
    if kind == "orthogonal":
        weight = torch.eye(3, shape[-1], dtype=torch.float64)
    theta = {"weight": weight} | ({"bias": one_hot((3,), 0, BIAS_NORM)} if bias else {})
    return case, Point((5 * unit(x),), theta)


def bias_witness(shape: Shape, size: Shape) -> Witness:
    """The input is the broadcast bias, stretched."""
    case = harness.case(OP_BY_NAME["bias"], BiasShape(size), [shape], [5], {"bias": BIAS})
    bias = one_hot(size, 0, BIAS_NORM)
    return case, Point((5 * unit(bias.expand(shape)),), {"bias": bias})


def conv_witness(conv: Conv, shape: Shape, kind: ConstraintKind, *, bias: bool, taps: Tensor) -> Witness:
    """A kernel from the first channel to the first, the worst input for it, a bias of the first channel."""
    constraints = {"weight": constraint(kind)} | ({"bias": BIAS} if bias else {})
    case = harness.case(OP_BY_NAME["conv"], conv, [shape], [5], constraints, cotangent=2)
    weight = torch.zeros(case.parameter_shape("weight"), dtype=torch.float64)
    weight[0, 0] = taps
    theta = {"weight": into(case, "weight", weight)}
    if bias:
        theta["bias"] = one_hot((conv.channels,), 0, BIAS_NORM)
    start = Point((constant(shape, 5),), theta)
    return case, Point((worst_direction(case, start),), theta)


def _around(rank: int, size: int, stride: int = 1, groups: int = 1) -> tuple[Conv, Shape, Tensor]:
    """A circular convolution of kernel 3; with stride 2, only the taps that share an entry are used."""
    ones = (1,) * rank
    conv = Conv(
        2 * groups, (3,) * rank, (stride,) * rank, ((1, 1),) * rank, ones, groups=groups, padding_mode="circular"
    )
    line = torch.ones(3, dtype=torch.float64)
    line[1] = 1 if stride == 1 else 0
    taps = line
    for _ in range(rank - 1):
        taps = taps[..., None] * line
    return conv, (2 * groups, *(size,) * rank), taps


def _conv_witnesses() -> list[Witness]:
    kinds: tuple[ConstraintKind, ...] = ("spectral", "orthogonal", "frobenius")
    found = []
    for conv, shape, taps in (_around(1, 5), _around(2, 4, groups=2), _around(3, 3), _around(2, 4, stride=2)):
        for kind in kinds:
            found += [conv_witness(conv, shape, kind, bias=bias, taps=taps) for bias in (False, True)]
    line = torch.ones(3, dtype=torch.float64)
    # One entry, read by three outputs through one tap each: r·v = 1 is below m = 3.
    single = Conv(1, (3,), (1,), ((2, 2),), (1,))
    found += [conv_witness(single, (1, 1), kind, bias=True, taps=line) for kind in kinds]
    # Zeros around a long line: the border costs less than 1%.
    line_of_zeros = Conv(1, (3,), (1,), ((1, 1),), (1,))
    found += [conv_witness(line_of_zeros, (1, 32), kind, bias=False, taps=line) for kind in kinds]
    return found


# Elementwise, pools, shapes


def at(op: str, attributes: Any, x: Tensor, norm: Fraction | float | None = None) -> Witness:
    """The op of one operand at the point x, on a ball that reaches just to it unless `norm` is given."""
    radius = Fraction(float(x.norm()) if norm is None else norm)
    return harness.case(OP_BY_NAME[op], attributes, [tuple(x.shape)], [radius], cotangent=2), Point((x,))


def best_entry(op: str, pool: Pool, shape: Shape) -> Witness:
    """The single entry that most windows see."""
    found = [at(op, pool, one_hot(shape, index, 3)) for index in range(prod(shape))]
    return max(found, key=lambda witness: float(harness.run(*witness).norm()))


def best_direction(op: str, attributes: Any, shape: Shape) -> Witness:
    """The worst input of a linear op."""
    case, point = at(op, attributes, constant(shape, 3), norm=3)
    return case, Point((worst_direction(case, point),))


def _spread(shape: Shape = (2, 4, 4), seed: int = 0) -> Tensor:
    return 3 * unit(normal(shape, torch.Generator().manual_seed(seed)))


OVERLAPPING = Pool((3, 2), (1, 2), ((1, 1), (0, 1)), (1, 1))
DILATED = Pool((2, 2), (1, 1), ((1, 0), (0, 0)), (2, 1))
NO = NoAttributes()


def _merges() -> list[Witness]:
    """Operands that all point the way of the first, copies included."""
    add, concat = OP_BY_NAME["add"], OP_BY_NAME["concat"]
    shapes: list[Shape] = [(3,), (2, 1), (2, 3)]
    sums = Sum((Fraction(-2), Fraction(3, 4), Fraction(1)))
    signs = (-1, 1, 1)
    xs = tuple(sign * constant(shape, n) for sign, shape, n in zip(signs, shapes, (1, 2, 3), strict=True))
    parts = tuple(constant((2, n), n) for n in (1, 2, 3))
    joined = harness.case(concat, Concat(1), [tuple(x.shape) for x in parts], [1, 2, 3])
    return [(harness.case(add, sums, shapes, [1, 2, 3]), Point(xs)), (joined, Point(parts))]


def _clip_gradient(cotangent: Fraction) -> Witness:
    x = _spread()
    case = harness.case(
        OP_BY_NAME["clip_gradient"],
        ClipGradient(THREE),
        [tuple(x.shape)],
        [Fraction(float(x.norm()))],
        {},
        cotangent,
    )
    return case, Point((x,))


WITNESSES: Mapping[str, Callable[[], list[Witness]]] = {
    "dense": lambda: [
        dense_witness(shape, kind, bias=bias)
        for shape in ((4,), (2, 3, 4))
        for kind in ("spectral", "orthogonal", "frobenius")
        for bias in (False, True)
    ],
    "bias": lambda: [
        bias_witness(*shapes) for shapes in (((4,), (4,)), ((2, 3), (3,)), ((2, 3), (2, 1)), ((2, 3), ()))
    ],
    "conv": _conv_witnesses,
    "relu": lambda: [at("relu", NO, constant((2, 3), 3))],
    "leaky_relu": lambda: [
        at("leaky_relu", LeakyReLU(Fraction(1, 10)), constant((5,), 3)),
        at("leaky_relu", LeakyReLU(Fraction(-4)), -constant((5,), 3)),
    ],
    "tanh": lambda: [at("tanh", NO, constant((6,), norm)) for norm in (0.01, 100)],
    "sigmoid": lambda: [at("sigmoid", NO, constant((6,), norm)) for norm in (0.7, 100)],
    "softplus": lambda: [at("softplus", NO, constant((6,), norm)) for norm in (0.001, 1000)],
    "abs": lambda: [at("abs", NO, _spread())],
    "groupsort": lambda: [
        at("groupsort", GroupSort(2, 0), _spread()),
        at("groupsort", GroupSort(4, 2), _spread()),
    ],
    "fullsort": lambda: [at("fullsort", FullSort(), _spread())],
    "max_pool": lambda: [best_entry("max_pool", pool, (2, 5, 5)) for pool in (OVERLAPPING, DILATED)],
    "l2_pool": lambda: [best_entry("l2_pool", pool, (2, 5, 5)) for pool in (OVERLAPPING, DILATED)],
    "avg_pool": lambda: [best_direction("avg_pool", OVERLAPPING, (2, 5, 5))],
    "scaled_avg_pool": lambda: [best_direction("scaled_avg_pool", OVERLAPPING, (2, 5, 5))],
    "global_avg_pool": lambda: [at("global_avg_pool", GlobalPool(), one_hot((2, 1, 1), 0, 3).expand(2, 3, 4) * 1)],
    "identity": lambda: [at("identity", NO, _spread())],
    "flatten": lambda: [at("flatten", NO, _spread())],
    "reshape": lambda: [at("reshape", Reshape((4, 8)), _spread())],
    "transpose": lambda: [at("transpose", Transpose((2, 0, 1)), _spread())],
    "space_to_depth": lambda: [at("space_to_depth", Block(2), _spread())],
    "depth_to_space": lambda: [at("depth_to_space", Block(2), _spread((4, 2, 2)))],
    "patches": lambda: [at("patches", Block(2), _spread())],
    "pad": lambda: [at("pad", Pad(((1, 0), (0, 2))), _spread())],
    "slice": lambda: [at("slice", Slice(1, 1, 3), one_hot((2, 4, 4), 5, 3))],
    "clip_norm": lambda: [at("clip_norm", ClipNorm(THREE), _spread() * scale) for scale in (0.5, 1.01)],
    "clip_gradient": lambda: [_clip_gradient(HALF), _clip_gradient(Fraction(5))],
    "dropout": lambda: [at("dropout", Dropout(Fraction(3, 10)), _spread())],
    "add": lambda: _merges()[:1],
    "concat": lambda: _merges()[1:],
}


# Losses


def loss_witness(
    name: str, attributes: Any, norm: Fraction | float, logits: Sequence[float], to: Any
) -> LossWitness:
    """Logits in this direction, of the full norm."""
    direction = torch.tensor(logits, dtype=torch.float64)
    length = float(direction.norm())
    scaled = direction * (float(norm) / length) if length > 0 else direction
    return LossCase(LOSS_BY_NAME[name], attributes, len(logits), Fraction(norm)), scaled, to


def _cross_entropy() -> list[LossWitness]:
    """Two classes: exact. Ten: one far above, the label a little below the rest. Far out: √2."""
    scaled, divided = Logistic(THREE, normalise=False), Logistic(HALF)
    two = [loss_witness("cross_entropy", loss, n, [-1, 1], 0) for loss in (scaled, divided) for n in (0.25, 30)]
    ten = [loss_witness("cross_entropy", Logistic(), 1, [-1.6, 3, *[-0.175] * 8], 0)]
    return two + ten


def _one_logit(name: str, *attributes: Any) -> list[LossWitness]:
    return [loss_witness(name, entry, 0.5, [-1], 1) for entry in attributes]


LOSS_WITNESSES: Mapping[str, Callable[[], list[LossWitness]]] = {
    "cross_entropy": _cross_entropy,
    "bce": lambda: _one_logit("bce", Logistic(THREE, normalise=False), Logistic(HALF)),
    "hinge": lambda: _one_logit("hinge", Hinge()),
    "kr": lambda: _one_logit("kr", NO),
    "hkr": lambda: _one_logit("hkr", HingeKR(THREE)),
    "multiclass_hinge": lambda: [
        loss_witness("multiclass_hinge", MulticlassHinge(reduce=reduce), 0.5, [0, 0, 0], 1)
        for reduce in ("mean", "sum")
    ],
    "multiclass_kr": lambda: [
        loss_witness("multiclass_kr", MulticlassKR(reduce), 0.5, [0, 0, 0], 1) for reduce in ("mean", "sum")
    ],
    "multiclass_hkr": lambda: [
        loss_witness("multiclass_hkr", MulticlassHingeKR(THREE, reduce=reduce), 0.5, [0, 0, 0], 1)
        for reduce in ("mean", "sum")
    ],
    "squared_error": lambda: [
        loss_witness("squared_error", SquaredError(THREE), 2, [1, 1], -constant((2,), THREE)),
    ],
    "cosine": lambda: [
        loss_witness("cosine", Cosine(HALF), 0.4, [1, 2, 2], 0),
        loss_witness("cosine", Cosine(HALF), 0.500001, [0, 1, 0], 0),
    ],
}
