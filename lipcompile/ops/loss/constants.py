"""The common parts of the families of losses: shapes, ranges of arguments, sums and means over outputs."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import prod
from typing import Any, Literal

from lipcompile.core.record import Shape
from lipcompile.diagnostics import Refusal
from lipcompile.numbers import N, Numbers, Scalar

Reduce = Literal["mean", "sum"]
_POSITIVE = ("temperature", "floor", "target_norm", "delta", "beta")
_NOT_NEGATIVE = ("alpha", "margin")


def several_classes(attributes: Any, logits: Shape) -> None:
    """Require a vector of at least two logits."""
    if len(logits) != 1 or logits[0] < 2:
        message = f"this loss needs a vector of two or more logits, not the shape {list(logits)}"
        raise Refusal("LIP211", message, _help_line(logits))
    check_numbers(attributes)


def _help_line(logits: Shape) -> str:
    if len(logits) == 2 and logits[0] == 1 < logits[1]:
        return "the shape of an example has no batch, so (8,) and not (1, 8); or put flatten before the last dense"
    if len(logits) == 2 and logits[1] > 1:
        return "put flatten before the last dense layer, or use token_cross_entropy if every token has a label"
    if len(logits) == 1:
        return "use the loss bce for one logit"
    if len(logits) == 3:
        return (
            "the classes come first, as after a convolution: end with .flatten(1) and a dense layer for "
            "one label per example, or use pixel_cross_entropy if every pixel has a label"
        )
    return "dense acts on the last axis: put flatten before the last one"


def table_of_logits(attributes: Any, logits: Shape) -> None:
    """Require two or more logits along the last axis, for each token of one or more axes before it."""
    if len(logits) < 2 or logits[-1] < 2:
        message = f"this loss needs logits [tokens, classes], not the shape {list(logits)}"
        raise Refusal("LIP211", message, "use cross_entropy for one label per example" if len(logits) < 2 else "")
    check_numbers(attributes)


def image_of_logits(attributes: Any, logits: Shape) -> None:
    """Require two or more logits along the first axis, for each position of one or more axes behind it."""
    if len(logits) < 2 or logits[0] < 2:
        message = f"this loss needs logits [classes, height, width], not the shape {list(logits)}"
        raise Refusal("LIP211", message, "use cross_entropy for one label per example" if len(logits) < 2 else "")
    check_numbers(attributes)


def one_logit(attributes: Any, logits: Shape) -> None:
    """Require exactly one logit."""
    if prod(logits) != 1 or len(logits) > 1:
        raise Refusal("LIP211", f"this loss needs one logit, not the shape {list(logits)}", _one_help(logits))
    check_numbers(attributes)


def _one_help(logits: Shape) -> str:
    return "end with dense(1)" + ", or use multilabel_bce if every output has a label" * (prod(logits) > 1)


def any_numbers(attributes: Any, logits: Shape) -> None:
    """Take outputs of any shape."""
    check_numbers(attributes)


def check_numbers(attributes: Any) -> None:
    """Require the numbers of a loss, where they are known, to be positive, or not negative."""
    for name in _POSITIVE:
        value = getattr(attributes, name, None)
        if isinstance(value, Fraction) and value <= 0:
            raise Refusal("LIP212", f"`{name}` must be positive")
    for name in _NOT_NEGATIVE:
        value = getattr(attributes, name, None)
        if isinstance(value, Fraction) and value < 0:
            raise Refusal("LIP212", f"`{name}` must not be negative")


def over_outputs(num: Numbers[N], reduce: Reduce, count: int) -> N:
    """Bound of a gradient of entries up to 1: √K for their sum over K outputs, 1/√K for the mean."""
    return 1 / num.sqrt(count) if reduce == "mean" else num.sqrt(count)


def largest(num: Numbers[N], values: Sequence[Scalar]) -> N:
    """The largest of one or more scalars."""
    return num.maximum(*(num.of(value) for value in values))
