"""Convolution and transposed convolution, its adjoint, from its outputs to its inputs. Proofs: linear.md."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil, isqrt, prod
from typing import Any

from lipcompile.core.record import (
    AnyOp,
    Condition,
    ConditionsRule,
    Constraint,
    Inputs,
    ParameterRule,
    Shape,
    ShapeRule,
    Site,
    Spelling,
    Theta,
)
from lipcompile.diagnostics import Refusal
from lipcompile.numbers import N, Numbers
from lipcompile.ops import counting
from lipcompile.ops.linear.rules import bias_rule, broadcast_bias, weight_lipschitz, weight_rule
from lipcompile.ops.rules import plain
from lipcompile.ops.schema import Extra, Padding, PerAxis, every


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


@dataclass(frozen=True, slots=True)
class ConvTranspose:
    """A transposed convolution, as in torch, of an example [channels, *spatial]; padding cuts its output."""

    channels: int
    kernel: PerAxis
    stride: PerAxis = every(1)
    padding: Padding = every(0)
    output_padding: Extra = every(0)
    dilation: PerAxis = every(1)
    groups: int = 1


# Shapes


def conv_windows(site: Site[Conv]) -> tuple[counting.Window, ...]:
    """Return the sliding window of each spatial axis."""
    return _conv_windows(site.attributes, site.inputs[0])


def _conv_windows(conv: Conv, example: Shape) -> tuple[counting.Window, ...]:
    return counting.windows_of(
        example[1:], conv.kernel, conv.stride, conv.dilation, conv.padding, conv.padding_mode
    )


def conv_shape(conv: Conv, inputs: tuple[Shape, ...]) -> Shape:
    """[channels, *spatial] -> [channels', *spatial']."""
    fit_channels(inputs[0], len(conv.kernel), conv.channels, conv.groups)
    windows = _conv_windows(conv, inputs[0])
    need_reads(windows, "use less padding, or smaller strides")
    return (conv.channels, *(window.outputs for window in windows))


def need_reads(windows: tuple[counting.Window, ...], help_line: str) -> None:
    """Refuse windows of which none holds an entry of the input: the map would be 0."""
    if counting.reads(windows) == 0:
        raise Refusal("LIP103", "every window of this convolution lies wholly in the padding", help_line)


def fit_channels(example: Shape, rank: int, channels: int, groups: int) -> None:
    """Refuse an example that is not [channels, *spatial], or groups that do not divide the channels."""
    if len(example) != rank + 1:
        raise Refusal(
            "LIP102",
            f"a {rank}-d convolution needs an example of {rank + 1} axes (channels first), not {list(example)}",
        )
    if example[0] % groups or channels % groups:
        raise Refusal("LIP102", f"{groups} groups do not divide {example[0]} input and {channels} output channels")


def conv_transpose_shape(conv: ConvTranspose, inputs: tuple[Shape, ...]) -> Shape:
    """[channels, *spatial] -> [channels', (spatial - 1)·stride + span - padding + output_padding]."""
    example = inputs[0]
    fit_channels(example, len(conv.kernel), conv.channels, conv.groups)
    if any(extra >= step for extra, step in zip(conv.output_padding, conv.stride, strict=True)):
        raise Refusal("LIP102", "the output padding of a transposed convolution must be below its stride")
    sizes = _output_sizes(conv, example)
    if min(sizes) < 1:
        raise Refusal(
            "LIP103",
            f"the padding {conv.padding} leaves no output for an example of shape {list(example)}",
            "pad by less",
        )
    need_reads(_adjoint_windows(conv, sizes), "use less padding: it removes the whole output")
    return (conv.channels, *sizes)


def _output_sizes(conv: ConvTranspose, example: Shape) -> tuple[int, ...]:
    axes = zip(
        example[1:], conv.kernel, conv.stride, conv.padding, conv.output_padding, conv.dilation, strict=True
    )
    return tuple((n - 1) * s + d * (k - 1) + 1 - sum(sides) + extra for n, k, s, sides, extra, d in axes)


def adjoint_windows(site: Site[ConvTranspose]) -> tuple[counting.Window, ...]:
    """Return the windows of the convolution that this op is the adjoint of: what they read, it writes."""
    return _adjoint_windows(site.attributes, site.output[1:])


def _adjoint_windows(conv: ConvTranspose, sizes: Shape) -> tuple[counting.Window, ...]:
    return counting.windows_of(sizes, conv.kernel, conv.stride, conv.dilation, conv.padding)


# Parameters


def conv_kernel_shape(conv: Conv, inputs: tuple[Shape, ...]) -> Shape:
    """[out, in / groups, *kernel]."""
    return (conv.channels, inputs[0][0] // conv.groups, *conv.kernel)


def conv_transpose_kernel_shape(conv: ConvTranspose, inputs: tuple[Shape, ...]) -> Shape:
    """[in, out / groups, *kernel]."""
    return (inputs[0][0], conv.channels // conv.groups, *conv.kernel)


def conv_positions(site: Site[Any]) -> int:
    """P: the number of output pixels."""
    return prod(site.output[1:])


def window_counts(windows: Callable[[Site[Any]], tuple[counting.Window, ...]]) -> ConditionsRule[Any]:
    """Return what counts m, r·v and P of a convolution with these windows."""

    def counts(site: Site[Any]) -> Mapping[str, Condition]:
        found = windows(site)
        return {"positions": conv_positions(site), "reads": counting.reads(found), "taps": counting.taps(found)}

    return counts


def conv_bias_kappa(num: Numbers[N], site: Site[Any], x: Inputs[N], theta: Theta[N]) -> N:
    """κ = √P."""
    return num.sqrt(conv_positions(site))


def kernel_rule(
    shape: Callable[[Any, tuple[Shape, ...]], Shape], windows: Callable[[Site[Any]], tuple[counting.Window, ...]]
) -> ParameterRule[Any]:
    """Return the rule of a kernel that is used at many positions, M being the overlap of its windows."""

    def operator_norm(num: Numbers[N], site: Site[Any], constraint: Constraint) -> N:
        """u = c, or √M·c if only the Frobenius norm of the kernel is bounded by c."""
        bound = num.of(constraint.bound)
        return num.sqrt(counting.overlap(windows(site))) * bound if constraint.kind == "frobenius" else bound

    def kappa(num: Numbers[N], site: Site[Any], x: Inputs[N], theta: Theta[N]) -> N:
        """κ = √M·X."""
        return num.sqrt(counting.overlap(windows(site))) * x[0].norm

    return weight_rule(shape, kappa, operator_norm)


def conv_norm(num: Numbers[N], site: Site[Any], x: Inputs[N], theta: Theta[N]) -> N:
    """X_out = u·X + √P·B."""
    return theta["weight"] * x[0].norm + broadcast_bias(num, conv_positions(site), theta)


def convolution(
    name: str,
    attributes: type[Any],
    shape: ShapeRule[Any],
    kernel_shape: Callable[[Any, tuple[Shape, ...]], Shape],
    windows: Callable[[Site[Any]], tuple[counting.Window, ...]],
    proof: str,
) -> AnyOp:
    """Return the record of a convolution, or of an adjoint, whose kernel is used through these windows."""
    return plain(
        name,
        attributes,
        shape,
        proof,
        norm=conv_norm,
        lipschitz=weight_lipschitz,
        parameters=(
            kernel_rule(kernel_shape, windows),
            bias_rule(lambda conv, inputs: (conv.channels,), conv_bias_kappa),
        ),
        dsl=tuple(Spelling(f"{name}{rank}d", rank) for rank in (1, 2, 3)),  # conv2d, conv_transpose2d, …
        conditions=window_counts(windows),
        axes="channels",
        any_size=True,
    )


CONV = convolution("conv", Conv, conv_shape, conv_kernel_shape, conv_windows, "linear.md#convolution")
CONV_TRANSPOSE = convolution(
    "conv_transpose",
    ConvTranspose,
    conv_transpose_shape,
    conv_transpose_kernel_shape,
    adjoint_windows,
    "linear.md#transposed-convolution",
)
OPS: tuple[AnyOp, ...] = (CONV, CONV_TRANSPOSE)

# The windows of ops whose weight is a kernel: they tell what map it is.
WINDOWS: Mapping[str, Callable[[Site[Any]], tuple[counting.Window, ...]]] = {
    CONV.name: conv_windows,
    CONV_TRANSPOSE.name: adjoint_windows,
}


def gathered(name: str, site: Site[Any]) -> int:
    """Return a whole number above the factor from the norm of the weight of an op to that of its map."""
    windows = WINDOWS.get(name)
    return 1 if windows is None else isqrt(ceil(counting.overlap(windows(site)))) + 1
