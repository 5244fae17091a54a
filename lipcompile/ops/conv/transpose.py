"""Transposed convolution: the adjoint of a convolution, from its outputs to its inputs. Proofs: linear.md."""

from __future__ import annotations

from dataclasses import dataclass

from lipcompile.core.diagnostics import Refusal
from lipcompile.ops import counting
from lipcompile.ops.linear.rules import (
    bias_rule,
    conv_bias_kappa,
    conv_norm,
    fit_channels,
    kernel_rule,
    need_reads,
    weight_lipschitz,
    window_counts,
)
from lipcompile.ops.record import AnyOp, Shape, Site, Spelling
from lipcompile.ops.rules import plain
from lipcompile.ops.schema import Extra, Padding, PerAxis, every


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


def conv_transpose_shape(conv: ConvTranspose, inputs: tuple[Shape, ...]) -> Shape:
    """[channels, *spatial] -> [channels', (spatial - 1)·stride + span - padding + output_padding]."""
    example = inputs[0]
    fit_channels(example, len(conv.kernel), conv.channels, conv.groups)
    if any(extra >= step for extra, step in zip(conv.output_padding, conv.stride, strict=True)):
        raise Refusal("LIP102", "the output padding of a transposed convolution must be below its stride")
    sizes = _output_sizes(conv, example)
    if min(sizes) < 1:
        raise Refusal("LIP103", f"the padding {conv.padding} leaves no output of {list(example)}", "pad by less")
    need_reads(_adjoint_windows(conv, sizes), "pad by less: all that is written is cut off")
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


def conv_transpose_kernel_shape(conv: ConvTranspose, inputs: tuple[Shape, ...]) -> Shape:
    """[in, out / groups, *kernel]."""
    return (inputs[0][0], conv.channels // conv.groups, *conv.kernel)


CONV_TRANSPOSE = plain(
    "conv_transpose",
    ConvTranspose,
    conv_transpose_shape,
    "linear.md#transposed-convolution",
    norm=conv_norm,
    lipschitz=weight_lipschitz,
    parameters=(
        kernel_rule(conv_transpose_kernel_shape, adjoint_windows),
        bias_rule(lambda conv, inputs: (conv.channels,), conv_bias_kappa),
    ),
    dsl=(Spelling("conv_transpose1d", 1), Spelling("conv_transpose2d", 2), Spelling("conv_transpose3d", 3)),
    conditions=window_counts(adjoint_windows),
)

OPS: tuple[AnyOp, ...] = (CONV_TRANSPOSE,)
