"""Random uses of every op and every loss: shapes, attributes, domains, constraints. Seeded, never timed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import prod
from random import Random
from typing import Any

import torch
from torch import Tensor

from lipcompile.diagnostics import Refusal
from lipcompile.ops import LOSS_BY_NAME, OP_BY_NAME
from lipcompile.ops.activation import FullSort, GroupSort, LeakyReLU
from lipcompile.ops.counting import Mode
from lipcompile.ops.linear import BiasShape, Conv, Dense
from lipcompile.ops.loss import (
    Cosine,
    Hinge,
    HingeKR,
    Logistic,
    MulticlassHinge,
    MulticlassHingeKR,
    MulticlassKR,
    Reduce,
    SquaredError,
)
from lipcompile.ops.merge import Concat, Sum
from lipcompile.ops.pool import GlobalPool, Pool
from lipcompile.ops.record import Constraint, ConstraintKind, NoAttributes, Shape
from lipcompile.ops.shape import Block, ClipGradient, ClipNorm, Dropout, Pad, Reshape, Slice, Transpose

from .harness import Case, LossCase, case

WEIGHT_KINDS: tuple[ConstraintKind, ...] = ("spectral", "orthogonal", "frobenius")


@dataclass(frozen=True)
class Draw:
    """Random choices for one instance."""

    rng: Random

    def fraction(self) -> Fraction:
        """A positive number between 1/32 and 64."""
        return Fraction(2) ** self.rng.randint(-5, 5) * Fraction(self.rng.randint(8, 16), 8)

    def shape(self, rank: int, largest: int = 4) -> Shape:
        return tuple(self.rng.randint(1, largest) for _ in range(rank))

    def any_shape(self) -> Shape:
        return self.shape(self.rng.randint(1, 3))

    def weight(self) -> Constraint:
        kind = self.rng.choice(WEIGHT_KINDS)
        return Constraint(kind, Fraction(1) if kind == "orthogonal" else self.fraction())

    def parameters(self) -> dict[str, Constraint]:
        chosen = {"weight": self.weight()}
        return chosen | {"bias": Constraint("ball", self.fraction())} if self.rng.random() < 0.5 else chosen

    def window(self, rank: int, *, dilated: bool = True) -> dict[str, tuple[Any, ...]]:
        """Kernel, stride, dilation and asymmetrical padding; not every draw fits its image."""
        pick = self.rng.randint
        return {
            "kernel": tuple(pick(1, 3) for _ in range(rank)),
            "stride": tuple(pick(1, 4) for _ in range(rank)),
            "dilation": tuple(pick(1, 2) if dilated else 1 for _ in range(rank)),
            "padding": tuple((pick(0, 2), pick(0, 2)) for _ in range(rank)),
        }

    def image(self) -> tuple[int, Shape]:
        rank = self.rng.choice((1, 1, 2, 2, 3))
        return rank, (self.rng.randint(1, 2), *self.shape(rank, {1: 7, 2: 5, 3: 3}[rank]))


Instance = Callable[[Draw], tuple[Any, list[Shape], dict[str, Constraint]]]


def _plain(attributes: Callable[[Draw], Any], shape: Callable[[Draw], Shape] = Draw.any_shape) -> Instance:
    return lambda draw: (attributes(draw), [shape(draw)], {})


def _dense(draw: Draw) -> tuple[Any, list[Shape], dict[str, Constraint]]:
    return Dense(draw.rng.randint(1, 5)), [draw.any_shape()], draw.parameters()


def _bias(draw: Draw) -> tuple[Any, list[Shape], dict[str, Constraint]]:
    shape = draw.any_shape()
    tail = shape[draw.rng.randint(0, len(shape)) :]
    size = tuple(draw.rng.choice((1, entries)) for entries in tail)
    return BiasShape(size), [shape], {"bias": Constraint("ball", draw.fraction())}


def _conv(draw: Draw) -> tuple[Any, list[Shape], dict[str, Constraint]]:
    rank, image = draw.image()
    groups = draw.rng.randint(1, 2)
    modes: tuple[Mode, ...] = ("zeros", "circular")
    conv = Conv(
        groups * draw.rng.randint(1, 2),
        groups=groups,
        padding_mode=draw.rng.choice(modes),
        **draw.window(rank),
    )
    return conv, [(groups * image[0], *image[1:])], draw.parameters()


def _pool(*, dilated: bool) -> Instance:
    def draw_pool(draw: Draw) -> tuple[Any, list[Shape], dict[str, Constraint]]:
        rank, image = draw.image()
        return Pool(**draw.window(rank, dilated=dilated)), [image], {}

    return draw_pool


def _global(draw: Draw) -> tuple[Any, list[Shape], dict[str, Constraint]]:
    return GlobalPool(draw.rng.random() < 0.5), [draw.shape(draw.rng.randint(2, 4))], {}


def _sorted_groups(draw: Draw) -> tuple[Any, list[Shape], dict[str, Constraint]]:
    shape, size = list(draw.any_shape()), draw.rng.randint(1, 3)
    axis = draw.rng.randrange(len(shape))
    shape[axis] *= size
    return GroupSort(size, axis), [tuple(shape)], {}


def _reshape(draw: Draw) -> tuple[Any, list[Shape], dict[str, Constraint]]:
    shape = draw.any_shape()
    return Reshape((-1, shape[0])), [shape], {}


def _transpose(draw: Draw) -> tuple[Any, list[Shape], dict[str, Constraint]]:
    shape = draw.shape(draw.rng.randint(2, 4))
    axes = list(range(len(shape)))
    draw.rng.shuffle(axes)
    return Transpose(tuple(axes) if draw.rng.random() < 0.8 else ()), [shape], {}


def _blocks(channels: int) -> Instance:
    def draw_blocks(draw: Draw) -> tuple[Any, list[Shape], dict[str, Constraint]]:
        c, h, w = draw.shape(3, 2)
        size = draw.rng.randint(1, 2)
        shape = (c * size * size, h, w) if channels else (c, h * size, w * size)
        return Block(size), [shape], {}

    return draw_blocks


def _pad(draw: Draw) -> tuple[Any, list[Shape], dict[str, Constraint]]:
    rank, image = draw.image()
    return Pad(draw.window(rank)["padding"]), [image], {}


def _slice(draw: Draw) -> tuple[Any, list[Shape], dict[str, Constraint]]:
    shape = draw.any_shape()
    axis = draw.rng.randrange(len(shape))
    start = draw.rng.randrange(shape[axis])
    return Slice(axis, start, draw.rng.randint(start + 1, shape[axis])), [shape], {}


def _sum(draw: Draw) -> tuple[Any, list[Shape], dict[str, Constraint]]:
    shape, count = draw.any_shape(), draw.rng.randint(1, 3)
    tails = [shape[draw.rng.randint(0, len(shape)) :] for _ in range(count - 1)]
    others = [tuple(draw.rng.choice((1, entries)) for entries in tail) for tail in tails]
    weights = tuple(draw.fraction() * draw.rng.choice((-1, 1)) for _ in range(count))
    return Sum(weights), [*others, shape], {}


def _concat(draw: Draw) -> tuple[Any, list[Shape], dict[str, Constraint]]:
    shape, count = draw.any_shape(), draw.rng.randint(1, 3)
    axis = draw.rng.randrange(len(shape))
    parts = [(*shape[:axis], draw.rng.randint(1, 3), *shape[axis + 1 :]) for _ in range(count)]
    return Concat(axis), parts, {}


_NO = _plain(lambda _: NoAttributes())
INSTANCES: Mapping[str, Instance] = {
    "dense": _dense,
    "bias": _bias,
    "conv": _conv,
    **dict.fromkeys(("relu", "tanh", "sigmoid", "softplus", "abs", "identity", "flatten"), _NO),
    "leaky_relu": _plain(lambda draw: LeakyReLU(draw.fraction() * draw.rng.choice((-1, 1)))),
    "groupsort": _sorted_groups,
    "fullsort": _plain(lambda draw: FullSort(draw.rng.choice((None, 0, -1)))),
    "max_pool": _pool(dilated=True),
    "l2_pool": _pool(dilated=True),
    "avg_pool": _pool(dilated=False),
    "scaled_avg_pool": _pool(dilated=False),
    "global_avg_pool": _global,
    "reshape": _reshape,
    "transpose": _transpose,
    "space_to_depth": _blocks(channels=0),
    "depth_to_space": _blocks(channels=1),
    "patches": _blocks(channels=0),
    "pad": _pad,
    "slice": _slice,
    "clip_norm": _plain(lambda draw: ClipNorm(draw.fraction())),
    "clip_gradient": _plain(lambda draw: ClipGradient(draw.fraction())),
    "dropout": _plain(lambda draw: Dropout(Fraction(draw.rng.randint(0, 15), 16))),
    "add": _sum,
    "concat": _concat,
}


def cases(op: str, seed: int) -> Iterator[Case]:
    """Yield instances of an op without end; what the op's shape rule refuses is drawn again."""
    draw = Draw(Random(f"{op} {seed}"))
    while True:
        attributes, shapes, constraints = INSTANCES[op](draw)
        norms = [draw.fraction() for _ in shapes]
        try:
            found = case(OP_BY_NAME[op], attributes, shapes, norms, constraints, draw.fraction())
        except Refusal:
            continue
        if prod(found.site.output) <= 128:
            yield found


# Losses

_REDUCE: tuple[Reduce, ...] = ("mean", "sum")
LOSS_ATTRIBUTES: Mapping[str, Callable[[Draw], Any]] = {
    "cross_entropy": lambda draw: Logistic(draw.fraction(), draw.rng.random() < 0.5),
    "bce": lambda draw: Logistic(draw.fraction(), draw.rng.random() < 0.5),
    "hinge": lambda draw: Hinge(draw.fraction()),
    "kr": lambda _: NoAttributes(),
    "hkr": lambda draw: HingeKR(draw.fraction(), draw.fraction()),
    "multiclass_hinge": lambda draw: MulticlassHinge(draw.fraction(), draw.rng.choice(_REDUCE)),
    "multiclass_kr": lambda draw: MulticlassKR(draw.rng.choice(_REDUCE)),
    "multiclass_hkr": lambda draw: MulticlassHingeKR(draw.fraction(), draw.fraction(), draw.rng.choice(_REDUCE)),
    "squared_error": lambda draw: SquaredError(draw.fraction()),
    "cosine": lambda draw: Cosine(draw.fraction()),
}
ONE_LOGIT = ("bce", "hinge", "kr", "hkr")


def loss_cases(name: str, seed: int) -> Iterator[LossCase]:
    """Yield instances of a loss without end."""
    draw = Draw(Random(f"{name} {seed}"))
    while True:
        classes = 1 if name in ONE_LOGIT else draw.rng.randint(2, 12)
        yield LossCase(LOSS_BY_NAME[name], LOSS_ATTRIBUTES[name](draw), classes, draw.fraction())


def target(found: LossCase, generator: torch.Generator) -> Any:
    """Draw a target that the loss admits."""
    if found.loss.name == "bce":
        return float(torch.rand((), generator=generator))
    if found.loss.name in ONE_LOGIT:
        return 2 * int(torch.randint(2, (), generator=generator)) - 1
    if found.loss.name == "squared_error":
        direction = torch.randn(found.classes, generator=generator, dtype=torch.float64)
        length: Tensor = direction.norm()
        return direction * (float(found.attributes.target_norm) / length)
    return int(torch.randint(found.classes, (), generator=generator))
