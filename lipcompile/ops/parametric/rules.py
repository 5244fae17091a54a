"""Activations with trainable numbers: slopes, scales, reflections of pairs. Proofs: parametric.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from lipcompile.core.record import AnyOp, Inputs, NormRule, ParameterRule, Shape, Site, Theta
from lipcompile.diagnostics import Refusal
from lipcompile.numbers import N, Numbers, Scalar
from lipcompile.ops.linear.rules import stored_rule
from lipcompile.ops.rules import feature_axis, norm_of_input, plain
from lipcompile.ops.schema import Axis


@dataclass(frozen=True, slots=True)
class PerFeature:
    """One number per entry of `axis` (by default that of the features), or a single `shared` one."""

    axis: Axis = None
    shared: bool = False


@dataclass(frozen=True, slots=True)
class Householder:
    """One reflection per pair of consecutive entries along `axis`, by default that of the features."""

    axis: Axis = None


@dataclass(frozen=True, slots=True)
class FixedHouseholder:
    """The same reflection, of this angle in radians, of every pair of consecutive entries along `axis`."""

    angle: Scalar
    axis: Axis = None


# Shapes


def per_feature_shape(attributes: PerFeature, inputs: tuple[Shape, ...]) -> Shape:
    """The input's shape."""
    per_feature_parameter(attributes, inputs)
    return inputs[0]


def per_feature_parameter(attributes: PerFeature, inputs: tuple[Shape, ...]) -> Shape:
    """[n, 1, ...], which broadcasts from the trailing axes, for an axis of n entries; [1] if shared."""
    axis = feature_axis(attributes.axis, inputs[0])
    if attributes.shared:
        return (1,)
    return (inputs[0][axis], *(1 for _ in inputs[0][axis + 1 :]))


def pairs_shape(attributes: Householder | FixedHouseholder, inputs: tuple[Shape, ...]) -> Shape:
    """The input's shape, if the axis divides into pairs."""
    axis = feature_axis(attributes.axis, inputs[0])
    if inputs[0][axis] % 2:
        raise Refusal(
            "LIP102", f"pairs do not divide axis {axis} of size {inputs[0][axis]}", "give it an even size"
        )
    return inputs[0]


def angles(attributes: Householder, inputs: tuple[Shape, ...]) -> Shape:
    """[pairs, 1, ...], aligned with the trailing axes."""
    axis = feature_axis(attributes.axis, inputs[0])
    return (inputs[0][axis] // 2, *(1 for _ in inputs[0][axis + 1 :]))


# One number per feature


def uses(site: Site[PerFeature]) -> int:
    """P: how many entries use one of the numbers."""
    return site.entries // prod(per_feature_parameter(site.attributes, site.inputs))


def per_feature_kappa(num: Numbers[N], site: Site[PerFeature], x: Inputs[N], theta: Theta[N]) -> N:
    """κ = min(X, √P·M)."""
    return num.minimum(x[0].norm, num.sqrt(uses(site)) * x[0].entry)


def prelu_gain(num: Numbers[N], site: Site[PerFeature], x: Inputs[N], theta: Theta[N]) -> N:
    """max(1, A)."""
    return num.maximum(num.of(1), theta["slope"])


def scale_gain(num: Numbers[N], site: Site[PerFeature], x: Inputs[N], theta: Theta[N]) -> N:
    """Γ."""
    return theta["gain"]


def per_feature(name: str, role: str, gain: NormRule[PerFeature]) -> AnyOp:
    """Return the record of an op that multiplies entries by at most `gain`, with one parameter in a box."""

    def multiplied(measure: str) -> NormRule[Any]:
        return lambda num, site, x, theta: gain(num, site, x, theta) * getattr(x[0], measure)

    def lipschitz(num: Numbers[N], site: Site[Any], x: Inputs[N], theta: Theta[N]) -> Sequence[N]:
        return [gain(num, site, x, theta)]

    return plain(
        name,
        PerFeature,
        per_feature_shape,
        f"parametric.md#{name}",
        norm=multiplied("norm"),
        row=multiplied("row"),
        entry=multiplied("entry"),
        lipschitz=lipschitz,
        reads=("entry",),
        parameters=(stored_rule(role, "box", per_feature_parameter, per_feature_kappa),),
        any_size=True,
    )


# Reflections of pairs


def angle_kappa(num: Numbers[N], site: Site[Householder], x: Inputs[N], theta: Theta[N]) -> N:
    """κ = min(X, √(2P)·M), P the pairs that one angle reflects."""
    return num.minimum(
        x[0].norm, num.sqrt(site.entries // prod(angles(site.attributes, site.inputs))) * x[0].entry
    )


def reflected_row(num: Numbers[N], site: Site[Any], x: Inputs[N], theta: Theta[N]) -> N:
    """R_out = R if pairs lie within rows, else √2·R."""
    within = feature_axis(site.attributes.axis, site.output) == len(site.output) - 1
    return x[0].row if within else num.sqrt(2) * x[0].row


def reflected_entry(num: Numbers[N], site: Site[Any], x: Inputs[N], theta: Theta[N]) -> N:
    """M_out = √2·M."""
    return num.sqrt(2) * x[0].entry


def reflection(name: str, attributes: type[Any], parameters: tuple[ParameterRule[Any], ...] = ()) -> AnyOp:
    """Return the record of an op that reflects pairs of entries, or leaves them."""
    return plain(
        name,
        attributes,
        pairs_shape,
        "parametric.md#householder",
        norm=norm_of_input,
        row=reflected_row,
        entry=reflected_entry,
        reads=("entry",) if parameters else (),
        parameters=parameters,
    )


ANGLE = replace(stored_rule("angle", "free", angles, angle_kappa), argument=None)
PRELU = per_feature("prelu", "slope", prelu_gain)
SCALE = per_feature("scale", "gain", scale_gain)

OPS: tuple[AnyOp, ...] = (
    PRELU,
    SCALE,
    reflection("householder", Householder, (ANGLE,)),
    reflection("fixed_householder", FixedHouseholder),
)
