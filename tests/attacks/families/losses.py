"""Attacks of losses over classes: random uses, their definitions, logits on which their constants are attained."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from lipcompile.core.record import NoAttributes, Shape
from lipcompile.ops.loss.constants import Reduce
from lipcompile.ops.loss.rules import (
    Cosine,
    CrossEntropy,
    Hinge,
    HingeKR,
    Logistic,
    MulticlassHinge,
    MulticlassHingeKR,
    MulticlassKR,
    MultilabelBCE,
    MultiMargin,
    PixelCrossEntropy,
    TokenCrossEntropy,
)
from lipcompile.ops.table import LOSS_BY_NAME

from ..draw import NO, Draw
from ..harness import LossCase
from ..witness import HALF, THREE

LossWitness = tuple[LossCase, Tensor, Any]
Target = Callable[[LossCase, torch.Generator], Any]
REDUCE: tuple[Reduce, ...] = ("mean", "sum")


@dataclass(frozen=True)
class LossAttack:
    """shape, and attributes for logits of that shape: a random use. oracle: the loss of one example. target: one
    that the loss admits. witnesses: uses, logits and targets on which the constant is attained.
    """

    attributes: Callable[[Draw, Shape], Any]
    shape: Callable[[Draw], Shape]
    oracle: Callable[[Any, Tensor, Any], Tensor]
    target: Target
    witnesses: Callable[[], list[LossWitness]]


def several(draw: Draw) -> Shape:
    return (draw.rng.randint(2, 12),)


def table(draw: Draw) -> Shape:
    return (*draw.shape(draw.rng.randint(1, 2), largest=3), draw.rng.randint(2, 6))


def image(draw: Draw) -> Shape:
    return (draw.rng.randint(2, 6), *draw.shape(draw.rng.randint(1, 2), largest=3))


def any_shape(draw: Draw) -> Shape:
    return draw.rng.choice((several, table))(draw)


def one(_: Draw) -> Shape:
    return (1,)


# Targets


def label(found: LossCase, generator: torch.Generator) -> int:
    return int(torch.randint(found.shape[-1], (), generator=generator))


def sign(_: LossCase, generator: torch.Generator) -> int:
    return 2 * int(torch.randint(2, (), generator=generator)) - 1


def probability(_: LossCase, generator: torch.Generator) -> float:
    return float(torch.rand((), generator=generator))


def probabilities(found: LossCase, generator: torch.Generator) -> Tensor:
    return torch.rand(found.shape, generator=generator, dtype=torch.float64)


def labels(found: LossCase, generator: torch.Generator) -> Tensor:
    """A label for each token, some to be ignored."""
    drawn = torch.randint(found.shape[-1], found.shape[:-1], generator=generator)
    if found.attributes.ignore is None:
        return drawn
    ignored = torch.rand(drawn.shape, generator=generator) < 0.3
    return torch.where(ignored, torch.tensor(found.attributes.ignore), drawn)


def labels_of_pixels(found: LossCase, generator: torch.Generator) -> Tensor:
    return labels(replace(found, shape=(*found.shape[1:], found.shape[0])), generator)


# Definitions


def _signs(logits: Tensor, target: int) -> Tensor:
    signs = -torch.ones_like(logits)
    signs[target] = 1
    return signs


def over(values: Tensor, reduce: str) -> Tensor:
    return values.mean() if reduce == "mean" else values.sum()


def _hkr(agreement: Tensor, alpha: Any, margin: Any) -> Tensor:
    return -agreement + float(alpha) * torch.relu(float(margin) - agreement)


def cross_entropy(a: Any, logits: Tensor, target: int) -> Tensor:
    """-w_y·Σ_k q_k·log p_k."""
    scaled = float(a.temperature) * logits
    wanted = torch.full_like(scaled, float(a.label_smoothing) / len(scaled))
    wanted[target] += 1 - float(a.label_smoothing)
    weight = float(a.class_weights[target]) if a.class_weights else 1.0
    value = -weight * (wanted * torch.log_softmax(scaled, dim=0)).sum()
    return value / float(a.temperature) if a.normalise else value


def token_cross_entropy(a: Any, logits: Tensor, target: Tensor) -> Tensor:
    rows = list(zip(logits.reshape(-1, logits.shape[-1]), target.flatten().tolist(), strict=True))
    values = [0 * row.sum() if y == a.ignore else cross_entropy(a, row, y) for row, y in rows]
    return over(torch.stack(values), a.reduce)


def pixel_cross_entropy(a: Any, logits: Tensor, target: Tensor) -> Tensor:
    pixels = zip(logits.reshape(len(logits), -1).T, target.flatten().tolist(), strict=True)
    values = [0 * pixel.sum() if y == a.ignore else cross_entropy(a, pixel, y) for pixel, y in pixels]
    return over(torch.stack(values), a.reduce)


def bce(a: Any, logits: Tensor, target: float) -> Tensor:
    scaled = float(a.temperature) * logits.reshape(())
    positive, negative = F.logsigmoid(scaled), F.logsigmoid(-scaled)
    value = -(target * positive + (1 - target) * negative)
    return value / float(a.temperature) if a.normalise else value


def multilabel_bce(a: Any, logits: Tensor, target: Tensor) -> Tensor:
    values = [bce(a, z, float(t)) for z, t in zip(logits.flatten(), target.flatten(), strict=True)]
    return over(torch.stack(values), a.reduce)


def multi_margin(a: Any, logits: Tensor, target: int) -> Tensor:
    others = [k for k in range(len(logits)) if k != target]
    terms = torch.relu(float(a.margin) - logits[target] + logits[others]) ** int(a.p)
    return terms.sum() / len(logits)


# Random attributes


def _smoothed_or_weighted(draw: Draw, classes: int) -> dict[str, Any]:
    kind = draw.rng.choice(("plain", "smoothed", "weighted"))
    if kind == "smoothed":
        return {"label_smoothing": Fraction(draw.rng.randint(0, 15), 16)}
    if kind == "weighted":
        return {"class_weights": (HALF, *(draw.fraction() * draw.rng.choice((0, 1)) for _ in range(1, classes)))}
    return {}


def _cross_entropy_of(draw: Draw, shape: Shape) -> CrossEntropy:
    normalise = draw.rng.random() < 0.5
    return CrossEntropy(draw.fraction(), normalise, **_smoothed_or_weighted(draw, shape[-1]))


def _token_cross_entropy_of(draw: Draw, shape: Shape) -> TokenCrossEntropy:
    found = _cross_entropy_of(draw, shape)
    chosen = {name: getattr(found, name) for name in CrossEntropy.__dataclass_fields__}
    return TokenCrossEntropy(**chosen, reduce=draw.rng.choice(REDUCE), ignore=draw.rng.choice((None, -100, 0)))


def _pixel_cross_entropy_of(draw: Draw, shape: Shape) -> PixelCrossEntropy:
    found = _token_cross_entropy_of(draw, shape[::-1])
    return PixelCrossEntropy(**{name: getattr(found, name) for name in TokenCrossEntropy.__dataclass_fields__})


def _logistic(draw: Draw, _: Shape) -> Logistic:
    return Logistic(draw.fraction(), draw.rng.random() < 0.5)


def _multilabel_bce_of(draw: Draw, _: Shape) -> MultilabelBCE:
    return MultilabelBCE(draw.fraction(), draw.rng.random() < 0.5, draw.rng.choice(REDUCE))


# Witnesses


def loss_witness(
    name: str, attributes: Any, norm: Fraction | float, logits: Sequence[Any], to: Any, row: float | None = None
) -> LossWitness:
    """Logits in this direction, of the full norm."""
    direction = torch.tensor(logits, dtype=torch.float64)
    length = float(direction.norm())
    scaled = direction * (float(norm) / length) if length > 0 else direction
    bound = None if row is None else Fraction(row)
    return LossCase(LOSS_BY_NAME[name], attributes, tuple(direction.shape), Fraction(norm), bound), scaled, to


QUARTER = Fraction(1, 4)
# τ > 1 that is not divided out, τ < 1 that is, a smoothed label, a heavy class: the label is class 0.
_VARIANTS: tuple[dict[str, Any], ...] = (
    {"temperature": THREE, "normalise": False},
    {"temperature": HALF},
    {"label_smoothing": QUARTER},
    {"class_weights": (THREE, HALF)},
)


# Norms and logits of ten classes: the label far below the others, or one of these far above.
_TEN = ((1, [-9, *[1] * 9]), (4, [-0.678, 3.786, *[-0.389] * 8]))


def _cross_entropy() -> list[LossWitness]:
    """Two classes: exact. Ten, of one norm: near to the supremum. Far out: p = e_j."""
    uses = [CrossEntropy(**variant) for variant in _VARIANTS]
    two = [loss_witness("cross_entropy", loss, n, [-1, 1], 0) for loss in uses for n in (0.25, 30)]
    ten = [
        loss_witness("cross_entropy", CrossEntropy(label_smoothing=smoothing), norm, logits, 0)
        for smoothing in (Fraction(0), QUARTER)
        for norm, logits in _TEN
    ]
    return two + ten


def _tokens() -> list[LossWitness]:
    """Rows at their bound, near and far out; then rows that share a norm which is small beside √n."""
    found = []
    for variant in _VARIANTS:
        for reduce in REDUCE:
            loss = TokenCrossEntropy(**variant, reduce=reduce)
            for rows, norm, row in ((3, 0.3, 0.3 / 3**0.5), (3, 30 * 3**0.5, 30), (4, 0.2, None)):
                labels = torch.zeros(rows, dtype=torch.int64)
                found.append(loss_witness("token_cross_entropy", loss, norm, [[-1, 1]] * rows, labels, row))
    one = torch.zeros(1, dtype=torch.int64)
    for smoothing in (Fraction(0), QUARTER):
        loss = TokenCrossEntropy(label_smoothing=smoothing)
        found += [loss_witness("token_cross_entropy", loss, n, [logits], one, n) for n, logits in _TEN]
    return found


def _pixels() -> list[LossWitness]:
    """All far out, then all sharing a norm which is small beside √n; and one pixel, of the whole norm."""
    found = []
    for variant in _VARIANTS:
        for reduce in REDUCE:
            loss = PixelCrossEntropy(**variant, reduce=reduce)
            for pixels, norm in ((3, 60), (4, 0.2), (1, 0.3)):
                labels = torch.zeros(pixels, dtype=torch.int64)
                found.append(
                    loss_witness("pixel_cross_entropy", loss, norm, [[-1] * pixels, [1] * pixels], labels)
                )
    one = torch.zeros(1, dtype=torch.int64)
    for smoothing in (Fraction(0), QUARTER):
        loss = PixelCrossEntropy(label_smoothing=smoothing)
        columns = [(norm, [[value] for value in logits]) for norm, logits in _TEN]
        found += [loss_witness("pixel_cross_entropy", loss, norm, logits, one) for norm, logits in columns]
    return found


def _multilabel() -> list[LossWitness]:
    """Logits all at the bound of one, near and far out; then logits that share a norm which is small beside √n."""
    found = []
    for variant in _VARIANTS[:2]:
        for reduce in REDUCE:
            loss = MultilabelBCE(**variant, reduce=reduce)
            for logits, norm, entry in ((3, 0.3 * 3**0.5, 0.3), (3, 30 * 3**0.5, 30), (4, 0.2, None)):
                zeros = torch.zeros(logits, 1, dtype=torch.float64)
                found.append(loss_witness("multilabel_bce", loss, norm, [[1]] * logits, zeros, entry))
    return found


def _multi_margin() -> list[LossWitness]:
    """All other classes violate the margin alike."""
    uses = (MultiMargin(THREE), MultiMargin(THREE, p=2))
    return [loss_witness("multi_margin", loss, 2, [1, 1, -2], 2) for loss in uses]


def _one_logit(name: str, *attributes: Any) -> list[LossWitness]:
    return [loss_witness(name, entry, 0.5, [-1], 1) for entry in attributes]


def _over_classes(name: str, attributes: Callable[[Reduce], Any]) -> Callable[[], list[LossWitness]]:
    return lambda: [loss_witness(name, attributes(reduce), 0.5, [0, 0, 0], 1) for reduce in REDUCE]


def no_attributes(_: Draw, __: Shape) -> NoAttributes:
    return NO


LOSS_ATTACKS: Mapping[str, LossAttack] = {
    "cross_entropy": LossAttack(_cross_entropy_of, several, cross_entropy, label, _cross_entropy),
    "token_cross_entropy": LossAttack(_token_cross_entropy_of, table, token_cross_entropy, labels, _tokens),
    "pixel_cross_entropy": LossAttack(
        _pixel_cross_entropy_of, image, pixel_cross_entropy, labels_of_pixels, _pixels
    ),
    "nll": LossAttack(
        no_attributes, several, lambda _, z, y: -z[y], label, lambda: [loss_witness("nll", NO, 2, [1, 0, 0], 0)]
    ),
    "bce": LossAttack(
        _logistic,
        one,
        bce,
        probability,
        lambda: _one_logit("bce", Logistic(THREE, normalise=False), Logistic(HALF)),
    ),
    "multilabel_bce": LossAttack(_multilabel_bce_of, any_shape, multilabel_bce, probabilities, _multilabel),
    "hinge": LossAttack(
        lambda draw, _: Hinge(draw.fraction()),
        one,
        lambda a, z, y: torch.relu(float(a.margin) - y * z).sum(),
        sign,
        lambda: _one_logit("hinge", Hinge()),
    ),
    "kr": LossAttack(no_attributes, one, lambda _, z, y: (-y * z).sum(), sign, lambda: _one_logit("kr", NO)),
    "hkr": LossAttack(
        lambda draw, _: HingeKR(draw.fraction(), draw.fraction()),
        one,
        lambda a, z, y: _hkr(y * z, a.alpha, a.margin).sum(),
        sign,
        lambda: _one_logit("hkr", HingeKR(THREE)),
    ),
    "multiclass_hinge": LossAttack(
        lambda draw, _: MulticlassHinge(draw.fraction(), draw.rng.choice(REDUCE)),
        several,
        lambda a, z, y: over(torch.relu(float(a.margin) - _signs(z, y) * z), a.reduce),
        label,
        _over_classes("multiclass_hinge", lambda reduce: MulticlassHinge(reduce=reduce)),
    ),
    "multiclass_kr": LossAttack(
        lambda draw, _: MulticlassKR(draw.rng.choice(REDUCE)),
        several,
        lambda a, z, y: over(-_signs(z, y) * z, a.reduce),
        label,
        _over_classes("multiclass_kr", MulticlassKR),
    ),
    "multiclass_hkr": LossAttack(
        lambda draw, _: MulticlassHingeKR(draw.fraction(), draw.fraction(), draw.rng.choice(REDUCE)),
        several,
        lambda a, z, y: over(_hkr(_signs(z, y) * z, a.alpha, a.margin), a.reduce),
        label,
        _over_classes("multiclass_hkr", lambda reduce: MulticlassHingeKR(THREE, reduce=reduce)),
    ),
    "multi_margin": LossAttack(
        lambda draw, _: MultiMargin(draw.fraction(), draw.rng.choice((1, 2))),
        several,
        multi_margin,
        label,
        _multi_margin,
    ),
    "cosine": LossAttack(
        lambda draw, _: Cosine(draw.fraction()),
        several,
        lambda a, z, y: -z[y] / torch.clamp(z.norm(), min=float(a.floor)),
        label,
        lambda: [
            loss_witness("cosine", Cosine(HALF), 0.4, [1, 2, 2], 0),
            loss_witness("cosine", Cosine(HALF), 0.500001, [0, 1, 0], 0),
        ],
    ),
}
