"""Elementwise activations and sorting. Proofs: activation.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from lipcompile.diagnostics import Refusal
from lipcompile.numbers import N, Numbers, Scalar
from lipcompile.ops.record import (
    AnyOp,
    LipschitzRule,
    NoAttributes,
    NormRule,
    Shape,
    Site,
    Spelling,
)
from lipcompile.ops.rules import feature_axis, magnitude, norm_of_input, one_lipschitz, plain, same_shape
from lipcompile.ops.schema import Axis


@dataclass(frozen=True, slots=True)
class LeakyReLU:
    """x for x >= 0, slope·x below."""

    slope: Scalar = Fraction(1, 100)


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
            f"groups of {attributes.size} do not fill axis {axis} of size {inputs[0][axis]}",
            "choose a group size that divides it",
        )
    return inputs[0]


def full_sort_shape(attributes: FullSort, inputs: tuple[Shape, ...]) -> Shape:
    """The input's shape."""
    feature_axis(attributes.axis, inputs[0])
    return inputs[0]


def leaky_slope(num: Numbers[N], slope: Scalar) -> N:
    """max(1, |a|)."""
    return num.maximum(num.of(1), magnitude(num, slope))


def leaky_norm(num: Numbers[N], site: Site[LeakyReLU], x: Sequence[N], theta: Mapping[str, N]) -> N:
    """X_out = max(1, |a|)·X."""
    return leaky_slope(num, site.attributes.slope) * x[0]


def leaky_lipschitz(num: Numbers[N], site: Site[LeakyReLU], x: Sequence[N], theta: Mapping[str, N]) -> Sequence[N]:
    """l = max(1, |a|)."""
    return [leaky_slope(num, site.attributes.slope)]


def tanh_norm(num: Numbers[N], site: Site[NoAttributes], x: Sequence[N], theta: Mapping[str, N]) -> N:
    """X_out = min(X, √n): s = 1, φ(0) = 0, sup|φ| = 1."""
    return num.minimum(x[0], num.sqrt(site.entries))


def sigmoid_norm(num: Numbers[N], site: Site[NoAttributes], x: Sequence[N], theta: Mapping[str, N]) -> N:
    """X_out = min(X/4 + √n/2, √n): s = 1/4, φ(0) = 1/2, sup|φ| = 1."""
    return num.minimum(x[0] / 4 + num.sqrt(site.entries) / 2, num.sqrt(site.entries))


def sigmoid_lipschitz(
    num: Numbers[N], site: Site[NoAttributes], x: Sequence[N], theta: Mapping[str, N]
) -> Sequence[N]:
    """l = 1/4."""
    return [num.of(1) / 4]


def softplus_norm(num: Numbers[N], site: Site[NoAttributes], x: Sequence[N], theta: Mapping[str, N]) -> N:
    """X_out = X + √n·ln 2: s = 1, φ(0) = ln 2."""
    return x[0] + num.sqrt(site.entries) * num.log(2)


def _elementwise(
    name: str,
    onnx: str,
    attributes: type[Any] = NoAttributes,
    norm: NormRule[Any] = norm_of_input,
    lipschitz: LipschitzRule[Any] = one_lipschitz,
) -> AnyOp:
    proof = "activation.md#elementwise"
    return plain(name, attributes, same_shape, proof, norm=norm, lipschitz=lipschitz, onnx=(onnx,))


_GROUP_SORTS = (Spelling("groupsort"), Spelling("maxmin", preset=(("size", 2),)))

OPS: tuple[AnyOp, ...] = (
    _elementwise("relu", "Relu"),
    _elementwise("leaky_relu", "LeakyRelu", LeakyReLU, leaky_norm, leaky_lipschitz),
    _elementwise("tanh", "Tanh", norm=tanh_norm),
    _elementwise("sigmoid", "Sigmoid", norm=sigmoid_norm, lipschitz=sigmoid_lipschitz),
    _elementwise("softplus", "Softplus", norm=softplus_norm),
    _elementwise("abs", "Abs"),
    plain("groupsort", GroupSort, group_sort_shape, "activation.md#sorting", dsl=_GROUP_SORTS),
    plain("fullsort", FullSort, full_sort_shape, "activation.md#sorting"),
)
