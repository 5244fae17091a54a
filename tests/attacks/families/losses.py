"""Attacks of the losses: random uses, the loss by its definition, and logits on which its constant is attained."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from lipcompile.ops import LOSS_BY_NAME
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
from lipcompile.ops.record import Shape

from ..draw import NO, Draw
from ..harness import LossCase
from ..witness import HALF, THREE, constant

LossWitness = tuple[LossCase, Tensor, Any]
Target = Callable[[LossCase, torch.Generator], Any]
_REDUCE: tuple[Reduce, ...] = ("mean", "sum")


@dataclass(frozen=True)
class LossAttack:
    """attributes and shape: a random use. oracle: the loss of one example. target: one that the loss admits.
    witnesses: uses, logits and targets on which the constant is attained.
    """

    attributes: Callable[[Draw], Any]
    shape: Callable[[Draw], Shape]
    oracle: Callable[[Any, Tensor, Any], Tensor]
    target: Target
    witnesses: Callable[[], list[LossWitness]]


def several(draw: Draw) -> Shape:
    return (draw.rng.randint(2, 12),)


def one(_: Draw) -> Shape:
    return (1,)


# Targets


def label(found: LossCase, generator: torch.Generator) -> int:
    return int(torch.randint(found.shape[-1], (), generator=generator))


def sign(_: LossCase, generator: torch.Generator) -> int:
    return 2 * int(torch.randint(2, (), generator=generator)) - 1


def probability(_: LossCase, generator: torch.Generator) -> float:
    return float(torch.rand((), generator=generator))


def vector(found: LossCase, generator: torch.Generator) -> Tensor:
    direction = torch.randn(found.shape, generator=generator, dtype=torch.float64)
    return direction * (float(found.attributes.target_norm) / float(direction.norm()))


# Definitions


def _signs(logits: Tensor, target: int) -> Tensor:
    signs = -torch.ones_like(logits)
    signs[target] = 1
    return signs


def _over(values: Tensor, reduce: str) -> Tensor:
    return values.mean() if reduce == "mean" else values.sum()


def _hkr(agreement: Tensor, alpha: Any, margin: Any) -> Tensor:
    return -agreement + float(alpha) * torch.relu(float(margin) - agreement)


def cross_entropy(a: Any, logits: Tensor, target: int) -> Tensor:
    scaled = float(a.temperature) * logits
    value = torch.logsumexp(scaled, dim=0) - scaled[target]
    return value / float(a.temperature) if a.normalise else value


def bce(a: Any, logits: Tensor, target: float) -> Tensor:
    scaled = float(a.temperature) * logits.reshape(())
    positive, negative = F.logsigmoid(scaled), F.logsigmoid(-scaled)
    value = -(target * positive + (1 - target) * negative)
    return value / float(a.temperature) if a.normalise else value


# Witnesses


def loss_witness(
    name: str, attributes: Any, norm: Fraction | float, logits: Sequence[float], to: Any
) -> LossWitness:
    """Logits in this direction, of the full norm."""
    direction = torch.tensor(logits, dtype=torch.float64)
    length = float(direction.norm())
    scaled = direction * (float(norm) / length) if length > 0 else direction
    return LossCase(LOSS_BY_NAME[name], attributes, (len(logits),), Fraction(norm)), scaled, to


def _cross_entropy() -> list[LossWitness]:
    """Two classes: exact. Ten: one far above, the label a little below the rest. Far out: √2."""
    scaled, divided = Logistic(THREE, normalise=False), Logistic(HALF)
    two = [loss_witness("cross_entropy", loss, n, [-1, 1], 0) for loss in (scaled, divided) for n in (0.25, 30)]
    ten = [loss_witness("cross_entropy", Logistic(), 1, [-1.6, 3, *[-0.175] * 8], 0)]
    return two + ten


def _one_logit(name: str, *attributes: Any) -> list[LossWitness]:
    return [loss_witness(name, entry, 0.5, [-1], 1) for entry in attributes]


def _over_classes(name: str, attributes: Callable[[Reduce], Any]) -> Callable[[], list[LossWitness]]:
    return lambda: [loss_witness(name, attributes(reduce), 0.5, [0, 0, 0], 1) for reduce in _REDUCE]


LOSS_ATTACKS: Mapping[str, LossAttack] = {
    "cross_entropy": LossAttack(
        lambda draw: Logistic(draw.fraction(), draw.rng.random() < 0.5),
        several,
        cross_entropy,
        label,
        _cross_entropy,
    ),
    "bce": LossAttack(
        lambda draw: Logistic(draw.fraction(), draw.rng.random() < 0.5),
        one,
        bce,
        probability,
        lambda: _one_logit("bce", Logistic(THREE, normalise=False), Logistic(HALF)),
    ),
    "hinge": LossAttack(
        lambda draw: Hinge(draw.fraction()),
        one,
        lambda a, z, y: torch.relu(float(a.margin) - y * z).sum(),
        sign,
        lambda: _one_logit("hinge", Hinge()),
    ),
    "kr": LossAttack(lambda _: NO, one, lambda _, z, y: (-y * z).sum(), sign, lambda: _one_logit("kr", NO)),
    "hkr": LossAttack(
        lambda draw: HingeKR(draw.fraction(), draw.fraction()),
        one,
        lambda a, z, y: _hkr(y * z, a.alpha, a.margin).sum(),
        sign,
        lambda: _one_logit("hkr", HingeKR(THREE)),
    ),
    "multiclass_hinge": LossAttack(
        lambda draw: MulticlassHinge(draw.fraction(), draw.rng.choice(_REDUCE)),
        several,
        lambda a, z, y: _over(torch.relu(float(a.margin) - _signs(z, y) * z), a.reduce),
        label,
        _over_classes("multiclass_hinge", lambda reduce: MulticlassHinge(reduce=reduce)),
    ),
    "multiclass_kr": LossAttack(
        lambda draw: MulticlassKR(draw.rng.choice(_REDUCE)),
        several,
        lambda a, z, y: _over(-_signs(z, y) * z, a.reduce),
        label,
        _over_classes("multiclass_kr", MulticlassKR),
    ),
    "multiclass_hkr": LossAttack(
        lambda draw: MulticlassHingeKR(draw.fraction(), draw.fraction(), draw.rng.choice(_REDUCE)),
        several,
        lambda a, z, y: _over(_hkr(_signs(z, y) * z, a.alpha, a.margin), a.reduce),
        label,
        _over_classes("multiclass_hkr", lambda reduce: MulticlassHingeKR(THREE, reduce=reduce)),
    ),
    "squared_error": LossAttack(
        lambda draw: SquaredError(draw.fraction()),
        several,
        lambda _, z, y: ((z - y) ** 2).sum() / 2,
        vector,
        lambda: [loss_witness("squared_error", SquaredError(THREE), 2, [1, 1], -constant((2,), THREE))],
    ),
    "cosine": LossAttack(
        lambda draw: Cosine(draw.fraction()),
        several,
        lambda a, z, y: -z[y] / torch.clamp(z.norm(), min=float(a.floor)),
        label,
        lambda: [
            loss_witness("cosine", Cosine(HALF), 0.4, [1, 2, 2], 0),
            loss_witness("cosine", Cosine(HALF), 0.500001, [0, 1, 0], 0),
        ],
    ),
}
