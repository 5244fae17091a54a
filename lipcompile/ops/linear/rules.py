"""Linear ops: dense, bias; convolutions are in `ops.conv`. Proofs: linear.md."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from lipcompile.core.record import (
    AnyOp,
    Condition,
    Constraint,
    ConstraintKind,
    Inputs,
    KappaRule,
    OperatorNormRule,
    ParameterRule,
    Shape,
    Site,
    Spelling,
    Theta,
)
from lipcompile.diagnostics import Refusal
from lipcompile.numbers import N, Numbers
from lipcompile.ops.rules import norm_of_input, plain


@dataclass(frozen=True, slots=True)
class Dense:
    """`features` outputs per position; acts on the last axis of the example."""

    features: int


@dataclass(frozen=True, slots=True)
class BiasShape:
    """A bias of `size`, aligned with the last axes of the example and broadcast over the others."""

    size: tuple[int, ...]


# Shapes


def dense_shape(attributes: Dense, inputs: tuple[Shape, ...]) -> Shape:
    """[..., d] -> [..., features]."""
    if not inputs[0]:
        raise Refusal("LIP102", "dense needs an axis to act on, but the example is a single number")
    return (*inputs[0][:-1], attributes.features)


def bias_shape(attributes: BiasShape, inputs: tuple[Shape, ...]) -> Shape:
    """The input's shape, if the bias broadcasts to it without enlarging it."""
    tail = inputs[0][len(inputs[0]) - len(attributes.size) :]
    fits = len(attributes.size) <= len(inputs[0]) and all(
        own in (1, other) for own, other in zip(attributes.size, tail, strict=True)
    )
    if not fits:
        raise Refusal("LIP102", f"a bias of shape {attributes.size} does not broadcast to {inputs[0]}")
    return inputs[0]


# Parameters


def dense_weight_shape(attributes: Dense, inputs: tuple[Shape, ...]) -> Shape:
    """[out, in]."""
    return (attributes.features, inputs[0][-1])


def adjoint_weight_shape(attributes: Dense, inputs: tuple[Shape, ...]) -> Shape:
    """[in, out]."""
    return (inputs[0][-1], attributes.features)


def stored_norm(num: Numbers[N], site: Site[object], constraint: Constraint) -> N:
    """u = c: the constraint bounds the operator norm itself, and Frobenius bounds it for a plain matrix."""
    return num.of(constraint.bound)


def positions(site: Site[BiasShape] | Site[Dense]) -> int:
    """P: at how many positions each entry of the parameter is used."""
    size = site.attributes.size if isinstance(site.attributes, BiasShape) else site.output[-1:]
    return site.entries // prod(size)


def position_count(site: Site[BiasShape] | Site[Dense]) -> Mapping[str, Condition]:
    """P."""
    return {"positions": positions(site)}


def bias_kappa(num: Numbers[N], site: Site[Any], x: Inputs[N], theta: Theta[N]) -> N:
    """κ = √P."""
    return num.sqrt(positions(site))


# Norms and Lipschitz constants


def dense_norm(num: Numbers[N], site: Site[Dense], x: Inputs[N], theta: Theta[N]) -> N:
    """X_out = u·X + √P·B."""
    return theta["weight"] * x[0].norm + broadcast_bias(num, positions(site), theta)


def bias_norm(num: Numbers[N], site: Site[BiasShape], x: Inputs[N], theta: Theta[N]) -> N:
    """X_out = X + √P·B."""
    return x[0].norm + broadcast_bias(num, positions(site), theta)


def broadcast_bias(num: Numbers[N], count: int, theta: Theta[N]) -> N:
    """√P·B: the norm of the `count` copies of a bias, 0 without one."""
    return num.sqrt(count) * theta["bias"] if "bias" in theta else num.of(0)


def weight_lipschitz(num: Numbers[N], site: Site[object], x: Inputs[N], theta: Theta[N]) -> Sequence[N]:
    """l = u."""
    return [theta["weight"]]


def dense_row(num: Numbers[N], site: Site[Dense], x: Inputs[N], theta: Theta[N]) -> N:
    """R_out = u·R + B: rows are mapped one by one. It bounds every entry as well."""
    bias = theta["bias"] if "bias" in theta else num.of(0)
    return theta["weight"] * x[0].row + bias


def bias_row(num: Numbers[N], site: Site[BiasShape], x: Inputs[N], theta: Theta[N]) -> N:
    """R_out = R + √P·B, P the copies of an entry of the bias within one row."""
    own = site.attributes.size[-1] if site.attributes.size else 1
    return x[0].row + num.sqrt(site.output[-1] // own if site.output else 1) * theta["bias"]


def bias_entry(num: Numbers[N], site: Site[BiasShape], x: Inputs[N], theta: Theta[N]) -> N:
    """M_out = M + B."""
    return x[0].entry + theta["bias"]


def weight_rule(
    shape: Callable[[Any, tuple[Shape, ...]], Shape],
    kappa: KappaRule[Any],
    operator_norm: OperatorNormRule[Any] = stored_norm,
    role: str = "weight",
    is_matrix: bool = False,
) -> ParameterRule[Any]:
    """Return the rule of a weight: a linear map whose operator norm is constrained."""
    return ParameterRule(
        role=role,
        argument="constraint",
        shape=shape,
        constraints=("spectral", "orthogonal", "frobenius"),
        operator_norm=operator_norm,
        kappa=kappa,
        optional=False,
        is_matrix=is_matrix,
    )


def bias_rule(shape: Callable[[Any, tuple[Shape, ...]], Shape], kappa: KappaRule[Any]) -> ParameterRule[Any]:
    """Return the rule of an optional bias: a translation whose length is constrained."""
    return replace(stored_rule("bias", "ball", shape, kappa), argument="bias", optional=True)


def stored_rule(
    role: str, constraint: ConstraintKind, shape: Callable[[Any, tuple[Shape, ...]], Shape], kappa: KappaRule[Any]
) -> ParameterRule[Any]:
    """Return the rule of a parameter that the op always has, and whose constraint bounds it as it is stored."""
    return ParameterRule(
        role=role,
        argument="bound",
        shape=shape,
        constraints=(constraint,),
        operator_norm=stored_norm,
        kappa=kappa,
        optional=False,
    )


def _dense(name: str, proof: str, weight: Callable[[Dense, tuple[Shape, ...]], Shape]) -> AnyOp:
    """Return a dense op whose weight is stored in this shape: transposition keeps every norm of the rules."""
    return plain(
        name,
        Dense,
        dense_shape,
        proof,
        norm=dense_norm,
        row=dense_row,
        entry=dense_row,
        lipschitz=weight_lipschitz,
        parameters=(
            # κ = X, for one position and for many: ‖gᵀh‖_F <= ‖g‖‖h‖.
            weight_rule(weight, norm_of_input, is_matrix=True),
            bias_rule(lambda attributes, inputs: (attributes.features,), bias_kappa),
        ),
        conditions=position_count,
        axes="placed",
        any_size=True,
    )


DENSE = _dense("dense", "linear.md#dense", dense_weight_shape)
DENSE_TRANSPOSE = _dense("dense_transpose", "linear.md#dense-transpose", adjoint_weight_shape)
BIAS = plain(
    "bias",
    BiasShape,
    bias_shape,
    "linear.md#bias",
    norm=bias_norm,
    row=bias_row,
    entry=bias_entry,
    parameters=(stored_rule("bias", "ball", lambda attributes, inputs: attributes.size, bias_kappa),),
    dsl=(Spelling("bias"), Spelling("position")),
    conditions=position_count,
    any_size=True,
)
OPS: tuple[AnyOp, ...] = (DENSE, DENSE_TRANSPOSE, BIAS)
