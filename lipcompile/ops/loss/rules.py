"""Losses of one example over classes, and their Lipschitz constants in the logits. Proofs: loss.md."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import prod
from typing import Literal

from lipcompile.core.record import CLASS_OF_PIXEL, CLASS_OF_TOKEN, AnyLoss, Extent, Loss, NoAttributes, Shape
from lipcompile.diagnostics import Refusal
from lipcompile.numbers import N, Numbers, Scalar
from lipcompile.ops.loss import regression
from lipcompile.ops.loss.constants import (
    Reduce,
    any_numbers,
    image_of_logits,
    largest,
    one_logit,
    over_outputs,
    several_classes,
    table_of_logits,
)
from lipcompile.ops.rules import one
from lipcompile.ops.schema import Label

ONE = Fraction(1)
ZERO = Fraction(0)


@dataclass(frozen=True, slots=True)
class Logistic:
    """Logits are multiplied by `temperature`; with `normalise` the loss is divided by it again."""

    temperature: Scalar = ONE
    normalise: bool = True


@dataclass(frozen=True, slots=True)
class MultilabelBCE(Logistic):
    """The loss of every logit, averaged or summed."""

    reduce: Reduce = "mean"


@dataclass(frozen=True, slots=True)
class CrossEntropy(Logistic):
    """label_smoothing: ε of the target (1-ε)·e_y + ε/K. class_weights: factors of the loss, one for each class."""

    label_smoothing: Scalar = ZERO
    class_weights: tuple[Scalar, ...] = ()


@dataclass(frozen=True, slots=True)
class TokenCrossEntropy(CrossEntropy):
    """The sum over all tokens, or that divided by their fixed number; a token with the label `ignore` counts 0."""

    reduce: Reduce = "mean"
    ignore: Label = None


@dataclass(frozen=True, slots=True)
class PixelCrossEntropy(TokenCrossEntropy):
    """As that of tokens, with the classes along the first axis and the positions along the others."""


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
class MultiMargin:
    """The mean over k of max(0, margin - ŷ_y + ŷ_k)^p, the label's own term left out of the sum."""

    margin: Scalar = ONE
    p: Literal[1, 2] = 1


@dataclass(frozen=True, slots=True)
class Cosine:
    """-ŷ_y / max(‖ŷ‖, floor)."""

    floor: Scalar


# Shapes and values that the rules need


def check_cross_entropy(attributes: CrossEntropy, logits: Shape) -> None:
    """Require a vector of logits, a smoothing below 1, and weights that fit the classes and stand alone."""
    several_classes(attributes, logits)
    _check_classes(attributes, logits[-1])


def check_token_cross_entropy(attributes: TokenCrossEntropy, logits: Shape) -> None:
    """Require a table of logits, and what the cross entropy requires."""
    table_of_logits(attributes, logits)
    _check_classes(attributes, logits[-1])


def check_pixel_cross_entropy(attributes: PixelCrossEntropy, logits: Shape) -> None:
    """Require an image of logits, and what the cross entropy requires."""
    image_of_logits(attributes, logits)
    _check_classes(attributes, logits[0])


def _check_classes(attributes: CrossEntropy, classes: int) -> None:
    smoothing, weights = attributes.label_smoothing, attributes.class_weights
    if isinstance(smoothing, Fraction) and not 0 <= smoothing < 1:
        raise Refusal("LIP212", "`label_smoothing` must be at least 0 and below 1")
    if not weights:
        return
    if len(weights) != classes:
        raise Refusal("LIP212", f"`class_weights` has {len(weights)} weights for {classes} classes")
    if any(isinstance(weight, Fraction) and weight < 0 for weight in weights) or not any(weights):
        raise Refusal("LIP212", "`class_weights` must not be negative, nor all zero")
    if smoothing != 0:
        help_line = "torch would weight every class of the smoothed target: remove one of the two"
        raise Refusal("LIP212", "`class_weights` and `label_smoothing` exclude one another", help_line)


# Rules


def softmax_slope(num: Numbers[N], loss: CrossEntropy, classes: int, logits: N) -> N:
    """L_R, the supremum of ‖p - q‖ for the softmax p of logits of this norm, q a smoothed target; R = τ·X.

    ‖p - q‖² = (q_y - p_y)²·K/(K-1) + (1 - p_y)²·(‖r‖² - 1/(K-1)), r the other probabilities divided by their sum.
    Both terms grow with a, how far the label's logit lies below the mean of the others, and with b, the spread of
    the others, where one of them is above the rest. a² + b² = R²: an arc, on which s = tan(arctan(a/b)/2).
    """
    radius = num.let("T_logits", num.of(loss.temperature) * logits, "bound of the scaled logits, τ‖ŷ‖")
    others = classes - 1
    target = 1 - num.of(loss.label_smoothing) * num.of(Fraction(others, classes))
    both, top = num.of(Fraction(classes, others)), num.of(Fraction(others - 1, others))
    below_others, above_mean = num.sqrt(Fraction(classes, others)), num.sqrt(Fraction(others - 1, others))
    above_others = num.sqrt(Fraction(others, max(others - 1, 1)))

    def arc(s: N) -> tuple[N, N, N]:
        share = 1 / (1 + s * s)
        return share, radius * (2 * s * share), radius * ((1 - s * s) * share)

    def probabilities(below: N, spread: N) -> tuple[N, N, N, N]:
        """Return e^(-distance of the others), 1 over the share of the largest in them, p_y, what one is above."""
        # Divided by the largest probability: these stay finite where R is large or unknown.
        rest = num.exp(0 - above_others * spread)
        label = num.exp(0 - below_others * below - above_mean * spread)
        total = 1 + (others - 1) * rest
        return rest, total, label / (label + total), (1 - rest) / total

    def square(s: N) -> N:
        _, below, spread = arc(s)
        _, _, lowest, apart = probabilities(below, spread)
        missed, left = target - lowest, (1 - lowest) * apart
        return both * missed * missed + top * left * left

    def slope(s: N) -> N:
        """Differentiate the square: of P, -P·(1 - P) times that of the exponent, of D, n·√(n/(n-1))·J/total²."""
        share, below, spread = arc(s)
        rest, total, lowest, apart = probabilities(below, spread)
        pull = lowest * (both * (target - lowest) + top * (1 - lowest) * apart * apart)
        parting = top * (1 - lowest) * (others * above_others) * rest / (total * total)
        falling = (pull * above_mean + parting) * apart * below
        return 4 * share * (1 - lowest) * (pull * below_others * spread - falling)

    # With one other class nothing is spread: the label's logit is as far below it as it can be.
    of = ("L_R", radius, loss.label_smoothing, classes)
    distance = num.sqrt(square(num.of(1)) if others == 1 else num.supremum(square, slope, of))
    return num.let("L_R", distance, "largest ‖p - q‖, p the probabilities and q the target, that the logits allow")


def cross_entropy(num: Numbers[N], loss: CrossEntropy, shape: Shape, logits: Extent[N]) -> N:
    """L_R of the whole vector, times the largest class weight, times τ if the loss is not divided by it."""
    return _scaled(num, loss, softmax_slope(num, loss, shape[0], logits.norm))


def token_cross_entropy(num: Numbers[N], loss: TokenCrossEntropy, shape: Shape, logits: Extent[N]) -> N:
    """√n·L_R of a row for the sum over n tokens, less where rows share a small norm; 1/n of it for the mean."""
    return _each_position(num, loss, prod(shape[:-1]), shape[-1], logits.row, logits.norm)


def pixel_cross_entropy(num: Numbers[N], loss: PixelCrossEntropy, shape: Shape, logits: Extent[N]) -> N:
    """As for tokens, of n vectors across the image, whose norms have no bound but that of all logits."""
    return _each_position(num, loss, prod(shape[1:]), shape[0], logits.norm, logits.norm)


def _each_position(num: Numbers[N], loss: TokenCrossEntropy, count: int, classes: int, vector: N, norm: N) -> N:
    """L for `count` vectors of logits, each of norm <= `vector`, all together of norm <= `norm`."""
    each = num.sqrt(count) * softmax_slope(num, loss, classes, vector)
    constant = num.minimum(each, _shared_norm(num, loss, count, classes, norm))
    return _scaled(num, loss, constant if loss.reduce == "sum" else constant / count)


def _shared_norm(num: Numbers[N], loss: CrossEntropy, tokens: int, classes: int, logits: N) -> N:
    """√(n·(K-1)/K·(k² + 2k·δ) + R²/4), δ as for y below the rest in rows of norm R/√n; R = τX, k = 1-ε."""
    radius, kept = num.of(loss.temperature) * logits, 1 - num.of(loss.label_smoothing)
    inverse = num.let("q_tokens", num.exp(0 - num.sqrt(Fraction(2, tokens)) * radius), "e^{-√(2/n)·R}")
    lowest = (1 - inverse) / (classes - 1 + inverse)
    share = num.of(Fraction(tokens * (classes - 1), classes))
    return num.sqrt(share * kept * (kept + 2 * lowest) + radius * radius / 4)


def _scaled(num: Numbers[N], loss: CrossEntropy, constant: N) -> N:
    weighted = largest(num, loss.class_weights) * constant if loss.class_weights else constant
    return weighted if loss.normalise else num.of(loss.temperature) * weighted


def binary_cross_entropy(num: Numbers[N], loss: Logistic, shape: Shape, logits: Extent[N]) -> N:
    """1/(1 + e^{-R}) with R = τ·X, times τ if the loss is not divided by it."""
    temperature = num.of(loss.temperature)
    constant = 1 / (1 + num.exp(0 - temperature * logits.norm))
    return constant if loss.normalise else temperature * constant


def multilabel_bce(num: Numbers[N], loss: MultilabelBCE, shape: Shape, logits: Extent[N]) -> N:
    """min(√n/(1 + e^{-τM}), √n/2 + τX/4) for the sum over n logits, 1/n of it for the mean; times τ as for one."""
    temperature, count = num.of(loss.temperature), prod(shape)
    each = num.sqrt(count) / (1 + num.exp(0 - temperature * logits.entry))
    constant = num.minimum(each, num.sqrt(count) / 2 + temperature * logits.norm / 4)
    reduced = constant if loss.reduce == "sum" else constant / count
    return reduced if loss.normalise else temperature * reduced


def hinge_kr(num: Numbers[N], loss: HingeKR, shape: Shape, logits: Extent[N]) -> N:
    """1 + α."""
    return 1 + num.of(loss.alpha)


def multiclass_unit(num: Numbers[N], loss: MulticlassHinge | MulticlassKR, shape: Shape, logits: Extent[N]) -> N:
    """1/√K or √K."""
    return over_outputs(num, loss.reduce, shape[0])


def multiclass_hinge_kr(num: Numbers[N], loss: MulticlassHingeKR, shape: Shape, logits: Extent[N]) -> N:
    """(1 + α)/√K or (1 + α)·√K."""
    return (1 + num.of(loss.alpha)) * over_outputs(num, loss.reduce, shape[0])


def multi_margin(num: Numbers[N], loss: MultiMargin, shape: Shape, logits: Extent[N]) -> N:
    """√((K-1)/K) for p = 1, 2·margin·√((K-1)/K) + 2X for p = 2."""
    share = num.sqrt(Fraction(shape[0] - 1, shape[0]))
    return share if loss.p == 1 else 2 * (num.of(loss.margin) * share + logits.norm)


def cosine(num: Numbers[N], loss: Cosine, shape: Shape, logits: Extent[N]) -> N:
    """1/floor."""
    return 1 / num.of(loss.floor)


CLASS = "a class index"
SIGN = "-1 or 1"
SHARE = "a number from 0 to 1"
SHARES = "a number from 0 to 1 for each output"

LOSSES: tuple[AnyLoss, ...] = (
    Loss("cross_entropy", CrossEntropy, check_cross_entropy, cross_entropy, CLASS, "loss.md#cross-entropy"),
    Loss(
        "token_cross_entropy",
        TokenCrossEntropy,
        check_token_cross_entropy,
        token_cross_entropy,
        CLASS_OF_TOKEN,
        "loss.md#cross-entropy-of-tokens",
        reads=("row",),
    ),
    Loss(
        "pixel_cross_entropy",
        PixelCrossEntropy,
        check_pixel_cross_entropy,
        pixel_cross_entropy,
        CLASS_OF_PIXEL,
        "loss.md#cross-entropy-of-tokens",
    ),
    Loss("nll", NoAttributes, several_classes, one, CLASS, "loss.md#negative-log-likelihood"),
    Loss("bce", Logistic, one_logit, binary_cross_entropy, SHARE, "loss.md#binary-cross-entropy"),
    Loss(
        "multilabel_bce",
        MultilabelBCE,
        any_numbers,
        multilabel_bce,
        SHARES,
        "loss.md#binary-cross-entropy",
        reads=("entry",),
    ),
    Loss("hinge", Hinge, one_logit, one, SIGN, "loss.md#margins"),
    Loss("kr", NoAttributes, one_logit, one, SIGN, "loss.md#margins"),
    Loss("hkr", HingeKR, one_logit, hinge_kr, SIGN, "loss.md#margins"),
    Loss("multiclass_hinge", MulticlassHinge, several_classes, multiclass_unit, CLASS, "loss.md#one-against-all"),
    Loss("multiclass_kr", MulticlassKR, several_classes, multiclass_unit, CLASS, "loss.md#one-against-all"),
    Loss(
        "multiclass_hkr", MulticlassHingeKR, several_classes, multiclass_hinge_kr, CLASS, "loss.md#one-against-all"
    ),
    Loss("multi_margin", MultiMargin, several_classes, multi_margin, CLASS, "loss.md#multi-margin"),
    Loss("cosine", Cosine, several_classes, cosine, CLASS, "loss.md#cosine"),
    *regression.LOSSES,
)
