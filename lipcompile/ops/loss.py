"""Losses of one example and their Lipschitz constants in the logits. Proofs: loss.md."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from math import prod
from typing import Any, Literal

from lipcompile.diagnostics import Refusal
from lipcompile.numbers import N, Numbers, Scalar
from lipcompile.ops.record import AnyLoss, Extent, Loss, LossLipschitzRule, Measure, NoAttributes, Shape

ONE = Fraction(1)
Reduce = Literal["mean", "sum"]


@dataclass(frozen=True, slots=True)
class Logistic:
    """Logits are multiplied by `temperature`; with `normalise` the loss is divided by it again."""

    temperature: Scalar = ONE
    normalise: bool = True


@dataclass(frozen=True, slots=True)
class Hinge:
    """max(0, margin - y·ŷ)."""

    margin: Scalar = ONE


@dataclass(frozen=True, slots=True)
class HingeKR:
    """-y·ŷ + alpha·max(0, margin - y·ŷ)."""

    alpha: Scalar
    margin: Scalar = ONE


@dataclass(frozen=True, slots=True)
class MulticlassHinge:
    """The hinge of every class against the rest, averaged or summed over the classes."""

    margin: Scalar = ONE
    reduce: Reduce = "mean"


@dataclass(frozen=True, slots=True)
class MulticlassKR:
    """The Kantorovich-Rubinstein term of every class against the rest, averaged or summed."""

    reduce: Reduce = "mean"


@dataclass(frozen=True, slots=True)
class MulticlassHingeKR:
    """The hinge-KR of every class against the rest, averaged or summed."""

    alpha: Scalar
    margin: Scalar = ONE
    reduce: Reduce = "mean"


@dataclass(frozen=True, slots=True)
class SquaredError:
    """½‖ŷ - t‖² for targets with ‖t‖ <= target_norm."""

    target_norm: Scalar


@dataclass(frozen=True, slots=True)
class Cosine:
    """-ŷ_y / max(‖ŷ‖, floor)."""

    floor: Scalar


# Shapes and values that the rules need


def several_classes(attributes: Any, logits: Shape) -> None:
    """Require a vector of at least two logits."""
    if len(logits) != 1 or logits[0] < 2:
        message = f"this loss needs a vector of two or more logits, not the shape {list(logits)}"
        raise Refusal("LIP211", message, "dense acts on the last axis: put flatten before the last one")
    _positive_values(attributes)


def one_logit(attributes: Any, logits: Shape) -> None:
    """Require exactly one logit."""
    if prod(logits) != 1 or len(logits) > 1:
        raise Refusal("LIP211", f"this loss needs one logit, not the shape {list(logits)}", "end with dense(1)")
    _positive_values(attributes)


def any_vector(attributes: Any, logits: Shape) -> None:
    """Require a vector."""
    if len(logits) != 1:
        raise Refusal("LIP211", f"this loss needs a vector, not the shape {list(logits)}", "end with flatten")
    _positive_values(attributes)


def _positive_values(attributes: Any) -> None:
    for name in ("temperature", "floor", "target_norm"):
        value = getattr(attributes, name, ONE)
        if isinstance(value, Fraction) and value <= 0:
            raise Refusal("LIP212", f"`{name}` must be positive")
    for name in ("alpha", "margin"):
        value = getattr(attributes, name, ONE)
        if isinstance(value, Fraction) and value < 0:
            raise Refusal("LIP212", f"`{name}` must not be negative")


# Rules


def cross_entropy(num: Numbers[N], loss: Logistic, shape: Shape, logits: Extent[N]) -> N:
    """min(√2, L_R) with R = τ·X, times τ if the loss is not divided by it.

    L_R² is the largest ‖p - e_y‖² over the vertices of {p : p_i <= ρ·p_j}, ρ = e^{√2·R}. A vertex gives m classes
    ρ/Z and the others 1/Z, Z = K + m(ρ-1), y among the others; the sum of squares is 1 + (ρ-1)/Z - Kρ/Z².
    """
    temperature = num.of(loss.temperature)
    classes = shape[0]
    radius = num.let("T_logits", temperature * logits.norm, "bound of the scaled logits, τ‖ŷ‖")
    # ρ/Z and 1/Z are written with e^{-√2·R}, which stays finite where ρ overflows or R is unknown.
    inverse = num.let("q_logits", num.exp(0 - num.sqrt(2) * radius), "1/ρ = e^{-√2·R}")

    def vertex(m: N) -> N:
        z = classes * inverse + m * (1 - inverse)  # Z/ρ
        return 1 + (1 - inverse) / z - classes * inverse / (z * z)

    largest = num.max_over(1, classes, vertex)
    constant = num.let(
        "L_R", num.sqrt(num.minimum(num.of(2), largest)), "largest ‖p - e_y‖ that logits of this norm allow"
    )
    return constant if loss.normalise else temperature * constant


def binary_cross_entropy(num: Numbers[N], loss: Logistic, shape: Shape, logits: Extent[N]) -> N:
    """1/(1 + e^{-R}) with R = τ·X, times τ if the loss is not divided by it."""
    temperature = num.of(loss.temperature)
    constant = 1 / (1 + num.exp(0 - temperature * logits.norm))
    return constant if loss.normalise else temperature * constant


def unit(num: Numbers[N], loss: Any, shape: Shape, logits: Extent[N]) -> N:
    """1: the derivative is 0 or ±1."""
    return num.of(1)


def hinge_kr(num: Numbers[N], loss: HingeKR, shape: Shape, logits: Extent[N]) -> N:
    """1 + α."""
    return 1 + num.of(loss.alpha)


def over_classes(num: Numbers[N], reduce: Reduce, classes: int) -> N:
    """1/√K for the mean over K classes, √K for the sum."""
    return 1 / num.sqrt(classes) if reduce == "mean" else num.sqrt(classes)


def multiclass_unit(num: Numbers[N], loss: MulticlassHinge | MulticlassKR, shape: Shape, logits: Extent[N]) -> N:
    """1/√K or √K."""
    return over_classes(num, loss.reduce, shape[0])


def multiclass_hinge_kr(num: Numbers[N], loss: MulticlassHingeKR, shape: Shape, logits: Extent[N]) -> N:
    """(1 + α)/√K or (1 + α)·√K."""
    return (1 + num.of(loss.alpha)) * over_classes(num, loss.reduce, shape[0])


def squared_error(num: Numbers[N], loss: SquaredError, shape: Shape, logits: Extent[N]) -> N:
    """X + Y."""
    return logits.norm + num.of(loss.target_norm)


def cosine(num: Numbers[N], loss: Cosine, shape: Shape, logits: Extent[N]) -> N:
    """1/floor."""
    return 1 / num.of(loss.floor)


def _loss(
    name: str,
    attributes: type[Any],
    check: Callable[[Any, Shape], None],
    lipschitz: LossLipschitzRule[Any],
    target: str,
    proof: str,
    reads: tuple[Measure, ...] = (),
) -> AnyLoss:
    return Loss(
        name=name,
        attributes=attributes,
        check=check,
        reads=frozenset(reads),
        lipschitz=lipschitz,
        target=target,
        proof=f"loss.md#{proof}",
    )


CLASS = "a class index"
SIGN = "-1 or 1"

LOSSES: tuple[AnyLoss, ...] = (
    _loss("cross_entropy", Logistic, several_classes, cross_entropy, CLASS, "cross-entropy"),
    _loss("bce", Logistic, one_logit, binary_cross_entropy, "a number from 0 to 1", "binary-cross-entropy"),
    _loss("hinge", Hinge, one_logit, unit, SIGN, "margins"),
    _loss("kr", NoAttributes, one_logit, unit, SIGN, "margins"),
    _loss("hkr", HingeKR, one_logit, hinge_kr, SIGN, "margins"),
    _loss("multiclass_hinge", MulticlassHinge, several_classes, multiclass_unit, CLASS, "one-against-all"),
    _loss("multiclass_kr", MulticlassKR, several_classes, multiclass_unit, CLASS, "one-against-all"),
    _loss("multiclass_hkr", MulticlassHingeKR, several_classes, multiclass_hinge_kr, CLASS, "one-against-all"),
    _loss(
        "squared_error",
        SquaredError,
        any_vector,
        squared_error,
        "a vector within the target norm",
        "squared-error",
    ),
    _loss("cosine", Cosine, several_classes, cosine, CLASS, "cosine"),
)
