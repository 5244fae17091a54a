"""Linear ops: dense, bias, convolution. Proofs: linear.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from lipcompile.diagnostics import Refusal
from lipcompile.numbers import N, Numbers
from lipcompile.ops import counting
from lipcompile.ops.record import (
    AnyOp,
    Constraint,
    ConstraintKind,
    Op,
    ParameterRule,
    Shape,
    Site,
    Spelling,
    scaled_by_lipschitz,
)
from lipcompile.ops.schema import Padding, PerAxis, every

WEIGHT_CONSTRAINTS: tuple[ConstraintKind, ...] = ("spectral", "orthogonal", "frobenius")


@dataclass(frozen=True, slots=True)
class Dense:
    """`features` outputs per position; acts on the last axis of the example."""

    features: int


@dataclass(frozen=True, slots=True)
class BiasShape:
    """A bias of `size`, aligned with the last axes of the example and broadcast over the others."""

    size: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Conv:
    """A convolution (cross-correlation, as in torch) of an example [channels, *spatial]."""

    channels: int
    kernel: PerAxis
    stride: PerAxis = every(1)
    padding: Padding = every(0)
    dilation: PerAxis = every(1)
    groups: int = 1
    padding_mode: counting.Mode = "zeros"


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


def conv_windows(site: Site[Conv]) -> tuple[counting.Window, ...]:
    """Return the sliding window of each spatial axis."""
    return _conv_windows(site.attributes, site.inputs[0])


def _conv_windows(conv: Conv, example: Shape) -> tuple[counting.Window, ...]:
    return counting.windows_of(
        example[1:], conv.kernel, conv.stride, conv.dilation, conv.padding, conv.padding_mode
    )


def conv_shape(conv: Conv, inputs: tuple[Shape, ...]) -> Shape:
    """[channels, *spatial] -> [channels', *spatial']."""
    example, rank = inputs[0], len(conv.kernel)
    if len(example) != rank + 1:
        raise Refusal(
            "LIP102",
            f"a {rank}-d convolution needs an example of {rank + 1} axes (channels first), not {list(example)}",
        )
    if example[0] % conv.groups or conv.channels % conv.groups:
        raise Refusal(
            "LIP102", f"{conv.groups} groups do not divide {example[0]} input and {conv.channels} output channels"
        )
    return (conv.channels, *(window.outputs for window in _conv_windows(conv, example)))


# Parameters


def dense_weight_shape(attributes: Dense, inputs: tuple[Shape, ...]) -> Shape:
    """[out, in]."""
    return (attributes.features, inputs[0][-1])


def conv_kernel_shape(conv: Conv, inputs: tuple[Shape, ...]) -> Shape:
    """[out, in / groups, *kernel]."""
    return (conv.channels, inputs[0][0] // conv.groups, *conv.kernel)


def stored_norm(num: Numbers[N], site: Site[object], constraint: Constraint) -> N:
    """u = c: the constraint bounds the operator norm itself, and Frobenius bounds it for a plain matrix."""
    return num.of(constraint.bound)


def conv_operator_norm(num: Numbers[N], site: Site[Conv], constraint: Constraint) -> N:
    """u = c, or √min(m, r·v)·c if only the Frobenius norm of the kernel is bounded by c."""
    bound = num.of(constraint.bound)
    return num.sqrt(_overlap(site)) * bound if constraint.kind == "frobenius" else bound


def positions(site: Site[BiasShape] | Site[Dense]) -> int:
    """P: at how many positions each entry of the parameter is used."""
    size = site.attributes.size if isinstance(site.attributes, BiasShape) else site.output[-1:]
    return site.entries // prod(size)


def conv_positions(site: Site[Conv]) -> int:
    """P: the number of output pixels."""
    return prod(site.output[1:])


def _overlap(site: Site[Conv]) -> int:
    windows = conv_windows(site)
    return min(counting.reads(windows), counting.taps(windows))


def input_norm_kappa(num: Numbers[N], site: Site[Dense], x: Sequence[N]) -> N:
    """κ = X, for one position and for many: ‖gᵀh‖_F <= ‖g‖‖h‖."""
    return x[0]


def conv_kappa(num: Numbers[N], site: Site[Conv], x: Sequence[N]) -> N:
    """κ = √min(m, r·v)·X."""
    return num.sqrt(_overlap(site)) * x[0]


def dense_bias_kappa(num: Numbers[N], site: Site[Dense], x: Sequence[N]) -> N:
    """κ = √P."""
    return num.sqrt(positions(site))


def bias_kappa(num: Numbers[N], site: Site[BiasShape], x: Sequence[N]) -> N:
    """κ = √P."""
    return num.sqrt(positions(site))


def conv_bias_kappa(num: Numbers[N], site: Site[Conv], x: Sequence[N]) -> N:
    """κ = √P."""
    return num.sqrt(conv_positions(site))


# Norms and Lipschitz constants


def dense_norm(num: Numbers[N], site: Site[Dense], x: Sequence[N], theta: Mapping[str, N]) -> N:
    """X_out = u·X + √P·B."""
    return theta["weight"] * x[0] + _broadcast_bias(num, positions(site), theta)


def bias_norm(num: Numbers[N], site: Site[BiasShape], x: Sequence[N], theta: Mapping[str, N]) -> N:
    """X_out = X + √P·B."""
    return x[0] + _broadcast_bias(num, positions(site), theta)


def conv_norm(num: Numbers[N], site: Site[Conv], x: Sequence[N], theta: Mapping[str, N]) -> N:
    """X_out = u·X + √P·B."""
    return theta["weight"] * x[0] + _broadcast_bias(num, conv_positions(site), theta)


def _broadcast_bias(num: Numbers[N], count: int, theta: Mapping[str, N]) -> N:
    return num.sqrt(count) * theta["bias"] if "bias" in theta else num.of(0)


def weight_lipschitz(num: Numbers[N], site: Site[object], x: Sequence[N], theta: Mapping[str, N]) -> Sequence[N]:
    """l = u."""
    return [theta["weight"]]


def shift_lipschitz(num: Numbers[N], site: Site[object], x: Sequence[N], theta: Mapping[str, N]) -> Sequence[N]:
    """l = 1."""
    return [num.of(1)]


DENSE = Op(
    name="dense",
    attributes=Dense,
    operands=(1, 1),
    shape=dense_shape,
    norm=dense_norm,
    lipschitz=weight_lipschitz,
    cotangent=scaled_by_lipschitz,
    parameters=(
        ParameterRule(
            role="weight",
            shape=dense_weight_shape,
            constraints=WEIGHT_CONSTRAINTS,
            operator_norm=stored_norm,
            kappa=input_norm_kappa,
            optional=False,
        ),
        ParameterRule(
            role="bias",
            shape=lambda attributes, inputs: (attributes.features,),
            constraints=("ball",),
            operator_norm=stored_norm,
            kappa=dense_bias_kappa,
            optional=True,
        ),
    ),
    dsl=(Spelling("dense"),),
    onnx=("Gemm", "MatMul"),
    proof="linear.md#dense",
)

BIAS = Op(
    name="bias",
    attributes=BiasShape,
    operands=(1, 1),
    shape=bias_shape,
    norm=bias_norm,
    lipschitz=shift_lipschitz,
    cotangent=scaled_by_lipschitz,
    parameters=(
        ParameterRule(
            role="bias",
            shape=lambda attributes, inputs: attributes.size,
            constraints=("ball",),
            operator_norm=stored_norm,
            kappa=bias_kappa,
            optional=False,
        ),
    ),
    dsl=(Spelling("bias"),),
    onnx=("Add",),
    proof="linear.md#bias",
)

CONV = Op(
    name="conv",
    attributes=Conv,
    operands=(1, 1),
    shape=conv_shape,
    norm=conv_norm,
    lipschitz=weight_lipschitz,
    cotangent=scaled_by_lipschitz,
    parameters=(
        ParameterRule(
            role="weight",
            shape=conv_kernel_shape,
            constraints=WEIGHT_CONSTRAINTS,
            operator_norm=conv_operator_norm,
            kappa=conv_kappa,
            optional=False,
        ),
        ParameterRule(
            role="bias",
            shape=lambda conv, inputs: (conv.channels,),
            constraints=("ball",),
            operator_norm=stored_norm,
            kappa=conv_bias_kappa,
            optional=True,
        ),
    ),
    dsl=(Spelling("conv1d", 1), Spelling("conv2d", 2), Spelling("conv3d", 3)),
    onnx=("Conv",),
    proof="linear.md#convolution",
)

OPS: tuple[AnyOp, ...] = (DENSE, BIAS, CONV)
