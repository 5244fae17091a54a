"""Attacks of the linear ops."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

import torch
from torch import Tensor

from lipcompile.core.record import Constraint, ConstraintKind, Shape, Site
from lipcompile.ops.conv.rules import Conv, ConvTranspose
from lipcompile.ops.counting import Mode
from lipcompile.ops.linear.rules import BiasShape, Dense
from lipcompile.ops.table import OP_BY_NAME

from .. import harness
from ..draw import Draw, Drawn
from ..family import Attack, Tensors, Theta, Witness, split_axis, windows
from ..harness import Point, unit
from ..points import into
from ..witness import BIAS, BIAS_NORM, THREE, constant, constraint, one_hot, worst_direction


def _dense(draw: Draw) -> Drawn:
    return Dense(draw.rng.randint(1, 5)), [draw.any_shape()], draw.parameters()


def _bias(draw: Draw) -> Drawn:
    shape = draw.any_shape()
    tail = shape[draw.rng.randint(0, len(shape)) :]
    size = tuple(draw.rng.choice((1, entries)) for entries in tail)
    return BiasShape(size), [shape], {"bias": Constraint("ball", draw.fraction())}


def _conv(draw: Draw) -> Drawn:
    rank, image = draw.image()
    groups = draw.rng.randint(1, 2)
    modes: tuple[Mode, ...] = ("zeros", "circular", "reflect", "replicate")
    conv = Conv(
        groups * draw.rng.randint(1, 2),
        groups=groups,
        padding_mode=draw.rng.choice(modes),
        **draw.window(rank),
    )
    return conv, [(groups * image[0], *image[1:])], draw.parameters()


def _conv_transpose(draw: Draw) -> Drawn:
    rank, image = draw.image()
    groups = draw.rng.randint(1, 2)
    window = draw.window(rank)
    extra = tuple(draw.rng.randrange(step) for step in window["stride"])
    conv = ConvTranspose(groups * draw.rng.randint(1, 2), output_padding=extra, groups=groups, **window)
    return conv, [(groups * image[0], *image[1:])], draw.parameters()


def conv_transpose(site: Site[ConvTranspose], xs: Tensors, theta: Theta) -> Tensor:
    """Each entry adds its copy of the kernel to the output, from which the padding is then cut."""
    attributes, x, groups = site.attributes, xs[0], site.attributes.groups
    axes = list(zip(x.shape[1:], attributes.stride, attributes.dilation, attributes.kernel, strict=True))
    sizes = [(n - 1) * s + d * (k - 1) + 1 for n, s, d, k in axes]
    full = [size + extra for size, extra in zip(sizes, attributes.output_padding, strict=True)]
    kernel, parts = split_axis(theta["weight"], 0, (groups, -1)), split_axis(x, 0, (groups, -1))
    result = x.new_zeros(groups, attributes.channels // groups, *full)
    for tap in product(*map(range, attributes.kernel)):
        place = tuple(slice(t * d, t * d + (n - 1) * s + 1, s) for t, (n, s, d, _) in zip(tap, axes, strict=True))
        slot: Any = (..., *tap)
        added = torch.einsum("gcf,gc...->gf...", kernel[slot], parts)
        result[(slice(None), slice(None), *place)] += added
    cut = tuple(slice(low, size - high) for size, (low, high) in zip(full, attributes.padding, strict=True))
    result = result[(slice(None), slice(None), *cut)].flatten(0, 1)
    return result + theta["bias"].reshape(-1, *(1,) * len(axes)) if "bias" in theta else result


def conv(site: Site[Conv], xs: Tensors, theta: Theta) -> Tensor:
    attributes, x = site.attributes, xs[0]
    read = windows(x, attributes, mode=attributes.padding_mode)
    rank, groups = len(attributes.kernel), attributes.groups
    outputs = read.shape[1 : 1 + rank]
    read = split_axis(read.flatten(1 + rank).flatten(1, rank), 0, (groups, -1))
    kernel = split_axis(theta["weight"].flatten(2), 0, (groups, -1))
    result = torch.einsum("gcot,gfct->gfo", read, kernel).reshape(-1, *outputs)
    return result + theta["bias"].reshape(-1, *(1,) * rank) if "bias" in theta else result


def dense(site: Site[Dense], xs: Tensors, theta: Theta) -> Tensor:
    result = xs[0] @ theta["weight"].T
    return result + theta["bias"] if "bias" in theta else result


def dense_transpose(site: Site[Dense], xs: Tensors, theta: Theta) -> Tensor:
    """Each feature adds its row of the weight to the output."""
    result = sum(xs[0][..., i, None] * theta["weight"][i] for i in range(xs[0].shape[-1]))
    return result + theta["bias"] if "bias" in theta else torch.as_tensor(result)


def bias(site: Site[BiasShape], xs: Tensors, theta: Theta) -> Tensor:
    return xs[0] + theta["bias"]


def dense_witness(shape: Shape, kind: ConstraintKind, *, bias: bool, op: str = "dense") -> Witness:
    """All positions alike: the input along the first feature, which the weight sends to the first output."""
    constraints = {"weight": constraint(kind)} | ({"bias": BIAS} if bias else {})
    case = harness.case(OP_BY_NAME[op], Dense(3), [shape], [5], constraints, cotangent=2)
    x = torch.zeros(shape, dtype=torch.float64)
    x[..., 0] = 1
    weight = torch.zeros(case.parameter_shape("weight"), dtype=torch.float64)
    weight[0, 0] = float(THREE)
    if kind == "orthogonal":
        weight = torch.eye(*weight.shape, dtype=torch.float64)
    theta = {"weight": weight} | ({"bias": one_hot((3,), 0, BIAS_NORM)} if bias else {})
    return case, Point((5 * unit(x),), theta)


def bias_witness(shape: Shape, size: Shape) -> Witness:
    """The input is the broadcast bias, stretched."""
    case = harness.case(OP_BY_NAME["bias"], BiasShape(size), [shape], [5], {"bias": BIAS})
    bias = one_hot(size, 0, BIAS_NORM)
    return case, Point((5 * unit(bias.expand(shape)),), {"bias": bias})


def conv_witness(
    conv: Conv | ConvTranspose, shape: Shape, kind: ConstraintKind, *, bias: bool, taps: Tensor
) -> Witness:
    """A kernel from the first channel to the first, the worst input for it, a bias of the first channel."""
    constraints = {"weight": constraint(kind)} | ({"bias": BIAS} if bias else {})
    op = OP_BY_NAME["conv" if isinstance(conv, Conv) else "conv_transpose"]
    case = harness.case(op, conv, [shape], [5], constraints, cotangent=2)
    weight = torch.zeros(case.parameter_shape("weight"), dtype=torch.float64)
    weight[0, 0] = taps
    theta = {"weight": into(case, "weight", weight)}
    if bias:
        theta["bias"] = one_hot((conv.channels,), 0, BIAS_NORM)
    start = Point((constant(shape, 5),), theta)
    return case, Point((worst_direction(case, start),), theta)


def _around(rank: int, size: int, stride: int = 1, groups: int = 1) -> tuple[Conv, Shape, Tensor]:
    """A circular convolution of kernel 3; with stride 2, only the taps that share an entry are used."""
    ones = (1,) * rank
    conv = Conv(
        2 * groups, (3,) * rank, (stride,) * rank, ((1, 1),) * rank, ones, groups=groups, padding_mode="circular"
    )
    line = torch.ones(3, dtype=torch.float64)
    line[1] = 1 if stride == 1 else 0
    taps = line
    for _ in range(rank - 1):
        taps = taps[..., None] * line
    return conv, (2 * groups, *(size,) * rank), taps


def _conv_witnesses() -> list[Witness]:
    kinds: tuple[ConstraintKind, ...] = ("spectral", "orthogonal", "frobenius")
    found = []
    for conv, shape, taps in (_around(1, 5), _around(2, 4, groups=2), _around(3, 3), _around(2, 4, stride=2)):
        for kind in kinds:
            found += [conv_witness(conv, shape, kind, bias=bias, taps=taps) for bias in (False, True)]
    line = torch.ones(3, dtype=torch.float64)
    # Two entries, mirrored at both ends, are as good as a circle; one entry stands at all places of three windows.
    mirrored = Conv(1, (3,), (1,), ((1, 1),), (1,), padding_mode="reflect")
    replicated = Conv(1, (3,), (1,), ((2, 2),), (1,), padding_mode="replicate")
    for conv, shape in ((mirrored, (1, 2)), (replicated, (1, 1))):
        found += [conv_witness(conv, shape, kind, bias=True, taps=line) for kind in kinds]
    # One entry, read by three outputs through one tap each: r·v = 1 is below m = 3.
    single = Conv(1, (3,), (1,), ((2, 2),), (1,))
    found += [conv_witness(single, (1, 1), kind, bias=True, taps=line) for kind in kinds]
    # Zeros around a long line: the border costs less than 1%.
    line_of_zeros = Conv(1, (3,), (1,), ((1, 1),), (1,))
    found += [conv_witness(line_of_zeros, (1, 32), kind, bias=False, taps=line) for kind in kinds]
    return found


def _conv_transpose_witnesses() -> list[Witness]:
    kinds: tuple[ConstraintKind, ...] = ("spectral", "orthogonal", "frobenius")
    line = torch.ones(3, dtype=torch.float64)
    # Copies of the kernel side by side; the channels of the second group rest.
    beside = ConvTranspose(4, (2, 3), (2, 3), ((0, 0), (0, 0)), (0, 0), (1, 1), groups=2)
    # One output that three positions write through one tap each.
    single = ConvTranspose(1, (3,), (1,), ((2, 2),), (0,), (1,))
    # Long lines, where the border costs less than 1%: three or, with stride 2, two taps write an output.
    long = ConvTranspose(1, (3,), (1,), ((1, 1),), (0,), (1,))
    strided = ConvTranspose(1, (3,), (2,), ((1, 1),), (1,), (1,))
    found = []
    for kind in kinds:
        taps = torch.ones(2, 3, dtype=torch.float64)
        found += [conv_witness(beside, (2, 2, 2), kind, bias=bias, taps=taps) for bias in (False, True)]
        found.append(conv_witness(single, (1, 3), kind, bias=True, taps=line))
        found.append(conv_witness(long, (1, 32), kind, bias=False, taps=line))
        found.append(conv_witness(strided, (1, 32), kind, bias=False, taps=torch.tensor([1.0, 0, 1]).double()))
    return found


def _dense_witnesses(op: str = "dense") -> list[Witness]:
    return [
        dense_witness(shape, kind, bias=bias, op=op)
        for shape in ((4,), (2, 3, 4))
        for kind in ("spectral", "orthogonal", "frobenius")
        for bias in (False, True)
    ]


def _bias_witnesses() -> list[Witness]:
    return [bias_witness(*shapes) for shapes in (((4,), (4,)), ((2, 3), (3,)), ((2, 3), (2, 1)), ((2, 3), ()))]


ATTACKS: Mapping[str, Attack] = {
    "dense": Attack(_dense, dense, _dense_witnesses),
    "dense_transpose": Attack(_dense, dense_transpose, lambda: _dense_witnesses("dense_transpose")),
    "bias": Attack(_bias, bias, _bias_witnesses),
    "conv": Attack(_conv, conv, _conv_witnesses),
    "conv_transpose": Attack(_conv_transpose, conv_transpose, _conv_transpose_witnesses),
}
