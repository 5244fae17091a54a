"""Losses of one example over real targets, and their Lipschitz constants in the output. Proofs: regression.md."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import prod
from typing import Any

from lipcompile.core.record import AnyLoss, Extent, Loss, NoAttributes, Shape
from lipcompile.numbers import N, Numbers, Scalar
from lipcompile.ops.loss.constants import Reduce, any_numbers, over_outputs
from lipcompile.ops.rules import unbounded

ONE = Fraction(1)


@dataclass(frozen=True, slots=True)
class SquaredError:
    """½‖ŷ - t‖², or the mean of (ŷ - t)² over the outputs.

    target_norm: a bound of ‖t‖; without one the loss has no Lipschitz constant.
    """

    target_norm: Scalar | None = None


@dataclass(frozen=True, slots=True)
class AbsoluteError:
    """|ŷ - t|, averaged or summed over the outputs."""

    reduce: Reduce = "mean"


@dataclass(frozen=True, slots=True)
class Huber:
    """½r² of residuals r = ŷ - t up to delta, delta·(|r| - ½delta) beyond, averaged or summed over the outputs.

    target_norm: a bound of ‖t‖, where there is one.
    """

    delta: Scalar = ONE
    target_norm: Scalar | None = None
    reduce: Reduce = "mean"


@dataclass(frozen=True, slots=True)
class SmoothL1:
    """½r²/beta of residuals r = ŷ - t up to beta, |r| - ½beta beyond, averaged or summed over the outputs."""

    beta: Scalar = ONE
    target_norm: Scalar | None = None
    reduce: Reduce = "mean"


def squared_error(num: Numbers[N], loss: SquaredError, shape: Shape, logits: Extent[N]) -> N:
    """X + Y; without Y, ∞."""
    return num.unbounded() if loss.target_norm is None else logits.norm + num.of(loss.target_norm)


def mean_squared_error(num: Numbers[N], loss: SquaredError, shape: Shape, logits: Extent[N]) -> N:
    """(2/K)·(X + Y); without Y, ∞."""
    return (
        num.unbounded() if loss.target_norm is None else 2 * (logits.norm + num.of(loss.target_norm)) / prod(shape)
    )


def absolute_error(num: Numbers[N], loss: AbsoluteError, shape: Shape, logits: Extent[N]) -> N:
    """√K for the sum, 1/√K for the mean."""
    return over_outputs(num, loss.reduce, prod(shape))


def huber(num: Numbers[N], loss: Huber, shape: Shape, logits: Extent[N]) -> N:
    """min(δ·√K, X + Y) for the sum, 1/K of it for the mean; without Y, δ·√K."""
    steepest = num.of(loss.delta) * over_outputs(num, loss.reduce, prod(shape))
    if loss.target_norm is None:
        return steepest
    return num.minimum(steepest, _residual(num, loss, loss.target_norm, shape, logits))


def smooth_l1(num: Numbers[N], loss: SmoothL1, shape: Shape, logits: Extent[N]) -> N:
    """min(√K, (X + Y)/β) for the sum, 1/K of it for the mean; without Y, √K."""
    steepest = over_outputs(num, loss.reduce, prod(shape))
    if loss.target_norm is None:
        return steepest
    return num.minimum(steepest, _residual(num, loss, loss.target_norm, shape, logits) / num.of(loss.beta))


def _residual(num: Numbers[N], loss: Huber | SmoothL1, target_norm: Scalar, shape: Shape, logits: Extent[N]) -> N:
    """X + Y for the sum, 1/K of it for the mean."""
    longest = logits.norm + num.of(target_norm)
    return longest / prod(shape) if loss.reduce == "mean" else longest


def _regression(name: str, attributes: type[Any], rule: Any, proof: str, target: str) -> AnyLoss:
    return Loss(name, attributes, any_numbers, rule, target, f"regression.md#{proof}")


REAL = "numbers of the shape of the output"
ANY = "a target of the function"

LOSSES: tuple[AnyLoss, ...] = (
    _regression("squared_error", SquaredError, squared_error, "squared-error", REAL),
    _regression("mean_squared_error", SquaredError, mean_squared_error, "squared-error", REAL),
    _regression("absolute_error", AbsoluteError, absolute_error, "absolute-error", REAL),
    _regression("huber", Huber, huber, "huber", REAL),
    _regression("smooth_l1", SmoothL1, smooth_l1, "huber", REAL),
    _regression("own", NoAttributes, unbounded, "a-function-of-python", ANY),
)
