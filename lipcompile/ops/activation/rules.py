"""Elementwise activations and sorting. Proofs: activation.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

from lipcompile.core.record import AnyOp, Inputs, Shape, Site, Spelling, Theta
from lipcompile.diagnostics import Refusal
from lipcompile.numbers import N, Numbers, Scalar, text
from lipcompile.ops.rules import (
    Elementwise,
    Function,
    elementwise,
    entry_of_input,
    feature_axis,
    magnitude,
    one,
    plain,
)
from lipcompile.ops.schema import Axis


@dataclass(frozen=True, slots=True)
class LeakyReLU:
    """x for x >= 0, slope·x below."""

    slope: Scalar = Fraction(1, 100)


@dataclass(frozen=True, slots=True)
class ELU:
    """x for x >= 0, alpha·(e^x - 1) below."""

    alpha: Scalar = Fraction(1)


@dataclass(frozen=True, slots=True)
class CELU:
    """x for x >= 0, alpha·(e^(x/alpha) - 1) below; alpha > 0."""

    alpha: Scalar = Fraction(1)


@dataclass(frozen=True, slots=True)
class GELU:
    """x·Φ(x), Φ the normal distribution; or its approximation x·(1 + tanh(√(2/π)·(x + 0.044715·x³)))/2."""

    approximate: Literal["none", "tanh"] = "none"


@dataclass(frozen=True, slots=True)
class HardSigmoid:
    """slope·x + offset, cut to [0, 1]."""

    slope: Scalar = Fraction(1, 6)
    offset: Scalar = Fraction(1, 2)


@dataclass(frozen=True, slots=True)
class Hardtanh:
    """x, cut to [low, high]."""

    low: Scalar = Fraction(-1)
    high: Scalar = Fraction(1)


@dataclass(frozen=True, slots=True)
class HardShrink:
    """x where |x| > threshold, 0 elsewhere."""

    threshold: Scalar = Fraction(1, 2)


@dataclass(frozen=True, slots=True)
class GroupSort:
    """Sorts each run of `size` consecutive entries along `axis`; the default axis holds the features."""

    size: int = 2
    axis: Axis = None


@dataclass(frozen=True, slots=True)
class FullSort:
    """Sorts all entries along `axis`; the default axis holds the features."""

    axis: Axis = None


def group_sort_shape(attributes: GroupSort, inputs: tuple[Shape, ...]) -> Shape:
    """The input's shape, if groups of `size` fill the axis."""
    axis = feature_axis(attributes.axis, inputs[0])
    if inputs[0][axis] % attributes.size:
        raise Refusal(
            "LIP102",
            f"groups of {attributes.size} do not divide axis {axis} of size {inputs[0][axis]}",
            "choose a group size that divides it",
        )
    return inputs[0]


def full_sort_shape(attributes: FullSort, inputs: tuple[Shape, ...]) -> Shape:
    """The input's shape."""
    feature_axis(attributes.axis, inputs[0])
    return inputs[0]


def celu_shape(attributes: CELU, inputs: tuple[Shape, ...]) -> Shape:
    """The input's shape, if alpha is positive; float32 must hold alpha and 1/alpha."""
    _within(attributes.alpha, "alpha", Fraction(1, 10**30), Fraction(10**30))
    return inputs[0]


def hard_sigmoid_shape(attributes: HardSigmoid, inputs: tuple[Shape, ...]) -> Shape:
    """The input's shape, if the offset is a value of the function."""
    _within(attributes.offset, "offset", Fraction(0), Fraction(1))
    return inputs[0]


def hardtanh_shape(attributes: Hardtanh, inputs: tuple[Shape, ...]) -> Shape:
    """The input's shape, if the interval is not empty."""
    low, high = attributes.low, attributes.high
    if isinstance(low, Fraction) and isinstance(high, Fraction) and low > high:
        raise Refusal("LIP104", f"`low` must be at most `high`, but {text(low)} > {text(high)}")
    return inputs[0]


def hard_shrink_shape(attributes: HardShrink, inputs: tuple[Shape, ...]) -> Shape:
    """The input's shape, if the threshold is one."""
    if isinstance(attributes.threshold, Fraction) and attributes.threshold < 0:
        raise Refusal("LIP104", f"`threshold` must not be negative; it is {text(attributes.threshold)}")
    return inputs[0]


def _within(value: Scalar, name: str, low: Fraction, high: Fraction) -> None:
    if isinstance(value, Fraction) and not low <= value <= high:
        raise Refusal("LIP104", f"`{name}` must be from {float(low):g} to {float(high):g}; it is {text(value)}")


def size_of(name: str) -> Elementwise:
    """|a|, a the attribute of this name."""
    return lambda num, attributes: magnitude(num, getattr(attributes, name))


def one_or_size_of(name: str) -> Elementwise:
    """max(1, |a|), a the attribute of this name."""
    return lambda num, attributes: num.maximum(num.of(1), magnitude(num, getattr(attributes, name)))


def log_two(num: Numbers[N], attributes: Any) -> N:
    """ln 2, the value of softplus at 0."""
    return num.log(2)


def constant(value: str) -> Elementwise:
    """A number that no attribute changes, rounded up where it is not exact."""

    return lambda num, attributes: num.of(Fraction(value))


def gelu_slope(num: Numbers[N], attributes: GELU) -> N:
    """1/2 + erf(1)/2 + 1/(e√π), at √2; 1.12899… for the approximation. Both rounded up."""
    return num.of(Fraction("1.1289042" if attributes.approximate == "none" else "1.1289931"))


def gelu_share(num: Numbers[N], attributes: GELU, entry: N) -> N:
    """Φ(M) <= (1 + √(1 - e^(-2M²/π)))/2; of the approximation, 1/(1 + e^(-2u)). 2/π and √(2/π) are rounded up."""
    if attributes.approximate == "none":
        inside = 0 - num.expm1(0 - num.of(Fraction("0.6366198")) * entry * entry)
        return (1 + num.sqrt(inside)) / 2
    cubic = entry + num.of(Fraction("0.044715")) * entry * entry * entry
    return 1 / (1 + num.exp(0 - 2 * (num.of(Fraction("0.7978846")) * cubic)))


def silu_share(num: Numbers[N], attributes: Any, entry: N) -> N:
    """σ(M)."""
    return 1 / (1 + num.exp(0 - entry))


def mish_share(num: Numbers[N], attributes: Any, entry: N) -> N:
    """tanh(ln(1 + e^M)) = 1/(1 + 2w²/(1 + 2w)) with w = e^(-M)."""
    w = num.exp(0 - entry)
    return 1 / (1 + 2 * (w * w) / (1 + 2 * w))


def hard_swish_share(num: Numbers[N], attributes: Any, entry: N) -> N:
    """min(1, (M + 3)/6)."""
    return num.minimum(num.of(1), (entry + 3) / 6)


def hard_swish_lipschitz(num: Numbers[N], site: Site[Any], x: Inputs[N], theta: Theta[N]) -> Sequence[N]:
    """l = min(3/2, 1/2 + M/3)."""
    return [num.minimum(num.of(3) / 2, num.of(1) / 2 + x[0].entry / 3)]


def selu_norm(num: Numbers[N], attributes: Any, size: N, entries: int) -> N:
    """min(λα·X, λ·√(X² + c·n)), c the largest α²(1 - e^(-t))² - t²; for n = 1, max(λ·X, λα·(1 - e^(-X)))."""
    scale, steepest = num.of(Fraction("1.0507009873554805")), num.of(Fraction("1.7580993408473769"))
    if entries == 1:
        return num.maximum(scale * size, steepest * (0 - num.expm1(0 - size)))
    bend = num.of(Fraction("0.2195457")) * entries
    return num.minimum(steepest * size, scale * num.sqrt(size * size + bend))


def softsign_norm(num: Numbers[N], attributes: Any, size: N, entries: int) -> N:
    """√n·X / (√n + X); below √n, which is all that is known where X is not."""
    root = num.sqrt(entries)
    return num.minimum(root, root * size / (root + size))


def cosine_norm(num: Numbers[N], attributes: Any, size: N, entries: int) -> N:
    """√n."""
    return num.sqrt(entries)


def hardtanh_norm(num: Numbers[N], attributes: Hardtanh, size: N, entries: int) -> N:
    """min(√(max(X, c)² + (n-1)·c²), √n·max(|low|, |high|)), c the least |φ|; the root is X if c = 0."""
    low, high = attributes.low, attributes.high
    largest = num.sqrt(entries) * num.maximum(magnitude(num, low), magnitude(num, high))
    least = _least(num, low, high)
    if least is None:
        return num.minimum(size, largest)
    top = num.maximum(size, least)
    reach = top if entries == 1 else num.sqrt(top * top + (entries - 1) * (least * least))
    return num.minimum(reach, largest)


def _least(num: Numbers[N], low: Scalar, high: Scalar) -> N | None:
    """max(0, low, -high): the distance of [low, high] from 0; None if 0 is known to lie in it."""
    if isinstance(low, Fraction) and isinstance(high, Fraction):
        return None if low <= 0 <= high else num.of(max(low, -high))
    return num.maximum(num.of(0), num.of(low), 0 - num.of(high))


def sorted_row(num: Numbers[N], site: Site[GroupSort] | Site[FullSort], x: Inputs[N], theta: Theta[N]) -> N:
    """R_out = R if entries move within rows, else X."""
    last = len(site.output) - 1
    return x[0].row if feature_axis(site.attributes.axis, site.output) == last else x[0].norm


_SMOOTH, _JUMPS = "activation.md#smooth-activations", "activation.md#activations-that-jump"
_GROUP_SORTS = (Spelling("groupsort"), Spelling("maxmin", preset=(("size", 2),)))

OPS: tuple[AnyOp, ...] = (
    elementwise("relu", Function(one)),
    elementwise("leaky_relu", Function(one_or_size_of("slope")), attributes=LeakyReLU),
    elementwise("tanh", Function(one, largest=one)),
    elementwise("sin", Function(one, largest=one)),
    elementwise("cos", Function(one, exact=cosine_norm)),
    elementwise("atan", Function(one, largest=constant("1.5707964"))),
    elementwise("asinh", Function(one)),
    elementwise("erf", Function(constant("1.1283792"), largest=one)),
    elementwise("sigmoid", Function(constant("1/4"), constant("1/2"), one)),
    elementwise("softplus", Function(one, log_two)),
    elementwise("abs", Function(one)),
    elementwise("elu", Function(one_or_size_of("alpha")), attributes=ELU),
    elementwise("celu", Function(one), attributes=CELU, shape=celu_shape),
    elementwise("selu", Function(constant("1.7580993408473769"), exact=selu_norm)),
    elementwise("gelu", Function(gelu_slope, share=gelu_share), attributes=GELU, proof=_SMOOTH, reads=("entry",)),
    elementwise(
        "silu",
        Function(constant("1.0998394"), share=silu_share),
        proof=_SMOOTH,
        reads=("entry",),
        dsl=(Spelling("silu"), Spelling("swish")),
    ),
    elementwise("mish", Function(constant("1.0884982"), share=mish_share), proof=_SMOOTH, reads=("entry",)),
    elementwise(
        "hard_swish", Function(None, share=hard_swish_share), lipschitz=hard_swish_lipschitz, reads=("entry",)
    ),
    elementwise(
        "hard_sigmoid",
        Function(size_of("slope"), size_of("offset"), one),
        attributes=HardSigmoid,
        shape=hard_sigmoid_shape,
    ),
    elementwise("softsign", Function(one, exact=softsign_norm)),
    elementwise(
        "hardtanh",
        Function(one, exact=hardtanh_norm),
        attributes=Hardtanh,
        shape=hardtanh_shape,
        proof="activation.md#cutting-to-an-interval",
        dsl=(Spelling("hardtanh"), Spelling("clip"), Spelling("relu6", preset=(("low", 0), ("high", 6)))),
    ),
    elementwise("sign", Function(None, largest=one), proof=_JUMPS),
    elementwise(
        "hard_shrink", Function(None, share=one), attributes=HardShrink, shape=hard_shrink_shape, proof=_JUMPS
    ),
    plain(
        "groupsort",
        GroupSort,
        group_sort_shape,
        "activation.md#sorting",
        row=sorted_row,
        entry=entry_of_input,
        dsl=_GROUP_SORTS,
    ),
    plain("fullsort", FullSort, full_sort_shape, "activation.md#sorting", row=sorted_row, entry=entry_of_input),
)
