"""Importers of norms, with their gains and shifts, and of factors for each entry of an axis."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lipcompile.core.graph import Value
from lipcompile.core.record import Shape
from lipcompile.diagnostics import Refusal
from lipcompile.frontends.onnx.context import MIXES, Context, Importer, shape_of
from lipcompile.frontends.onnx.file.memory import expect_array
from lipcompile.frontends.onnx.node import OnnxNode, module_of
from lipcompile.frontends.onnx.values import Known, floats
from lipcompile.ops.linear.onnx_read import refuse_training
from lipcompile.ops.linear.rules import BIAS, BiasShape
from lipcompile.ops.normalisation.local_response import LocalResponse
from lipcompile.ops.normalisation.rules import GroupNorm, InstanceNorm, OverAxes
from lipcompile.ops.parametric.rules import PerFeature
from lipcompile.ops.pool.onnx_read import of_channels
from lipcompile.ops.shape.onnx_read import permute, reshape_to
from lipcompile.ops.table import OP_BY_NAME

Array = NDArray[Any]
EPSILON = Fraction(1e-5)


# Gains and shifts


def gain(context: Context, node: OnnxNode, operand: Value, known: Known, *, frozen: bool = False) -> Value:
    """Multiply by a constant whose last axes meet those of the tensor: one factor for each entry of some axes."""
    known = context.of_one_example(known, shape_of(operand))
    return factored(context, node, operand, known, frozen=frozen)


def factored(context: Context, node: OnnxNode, operand: Value, known: Known, *, frozen: bool = False) -> Value:
    """As `gain`, by a constant without an axis for the batch.

    `scale` has one axis of factors: several neighbouring axes become one, and several again. Where factors leave
    an axis between these out, they are copied along it or, if they are trained, the axes are moved for the while.
    """
    example = shape_of(operand)
    shape = _aligned(known.array.shape, example)
    varied = [axis for axis, size in enumerate(shape) if size > 1]
    first, last = (varied[0], varied[-1] + 1) if varied else (len(example) - 1, len(example))
    if varied and shape[first:last] != example[first:last]:
        if known.sources and not frozen:
            return _moved_apart(context, node, operand, known, shape)
        shape = (*shape[:first], *example[first:last], *shape[last:])
        expect_array(shape)
        known = Known(np.broadcast_to(known.array, shape))
    joined = (*example[:first], prod(example[first:last]), *example[last:])
    flat = reshape_to(context, node, operand, joined, "_joined")
    attributes = PerFeature(first if varied else None, shared=not varied)
    scale = OP_BY_NAME["scale"]
    factors = replace(known, array=known.array.reshape(scale.parameter("gain").shape(attributes, (joined,))))
    made = context.parameters.add(scale, attributes, flat, [("gain", factors)], f"{node.name}_gain", frozen=frozen)
    return reshape_to(context, node, made, example, "_split")


def _moved_apart(context: Context, node: OnnxNode, operand: Value, known: Known, shape: Shape) -> Value:
    """Multiply by factors of a shape that leaves axes between theirs out, these axes moved to the front."""
    order = sorted(range(len(shape)), key=lambda axis: shape[axis] > 1)
    array = known.array.reshape([shape[axis] for axis in order])
    moved = permute(context, node, operand, order, "_moved")
    made = factored(context, node, moved, replace(known, array=array))
    return permute(context, node, made, [order.index(axis) for axis in range(len(order))], "_back")


def _aligned(shape: Shape, example: Shape) -> Shape:
    """Return a shape that broadcasts into the example, with as many axes as it has."""
    aligned = (*(1,) * (len(example) - len(shape)), *shape)
    if not all(size in (1, whole) for size, whole in zip(aligned, example, strict=True)):
        raise Refusal("LIP102", f"a constant of shape {list(shape)} does not fit an example {list(example)}")
    return aligned


def shift(context: Context, node: OnnxNode, operand: Value, known: Known, *, frozen: bool = False) -> Value:
    """Add a constant whose last axes meet those of the example."""
    attributes = BiasShape(tuple(known.array.shape))
    return context.parameters.add(
        BIAS, attributes, operand, [("bias", known)], f"{node.name}_shift", frozen=frozen
    )


def affine(context: Context, node: OnnxNode, made: Value, stored: Shape, shape: Shape) -> Value:
    """Apply the operands 1 and 2 of a norm, which broadcast as `stored`, reshaped to `shape`; what a norm without
    them stores is left out.
    """
    for index, apply, neutral in ((1, gain, 1), (2, shift, 0)):
        known = context.known(node, index, ("", "the scale", "the bias")[index])
        if known is None or _is_neutral(context, known, neutral):
            continue
        extra = known.array.ndim - len(stored)
        if known.array.shape != (1,) * extra + stored:
            message = f"{node.op_type} has a constant of shape {list(known.array.shape)}, expected {list(stored)}"
            raise Refusal("LIP102", message)
        made = apply(context, node, made, replace(known, array=known.array.reshape(shape)))
    return made


def _is_neutral(context: Context, known: Known, value: int) -> bool:
    """Whether a constant does nothing, and is no weight that may learn to: one that is trained, or a module's."""
    weights = context.parameters.is_trained(known) or any(map(module_of, known.sources))
    return not weights and bool((known.array == value).all())


# Norms


def over_trailing_axes(op: str) -> Importer:
    """(x - μ)/√(σ² + ε), or x/√(ρ² + ε), over all axes from one on, times a scale, plus a bias."""

    def importer(context: Context, node: OnnxNode) -> Value:
        axes = _trailing(context, node)
        made = context.unary(node, op, OverAxes(None, node.number("epsilon", EPSILON), axes))
        stored = context.shape(node)[axes[0] :]
        return affine(context, node, made, stored, stored)

    return importer


def _trailing(context: Context, node: OnnxNode) -> tuple[int, ...]:
    """Return all axes of the example from `axis` on, of which the batch must not be one."""
    example = context.shape(node)
    axis, rank = node.integer("axis", -1), context.layout.rank(example)
    if axis % rank <= context.layout.place:
        raise Refusal("LIP108", f"{node.op_type} acts on the batch axis: it mixes examples", MIXES)
    return tuple(range(context.axis(node, axis, len(example) + 1), len(example)))


def group_normalization(context: Context, node: OnnxNode) -> Value:
    """(x - μ)/√(σ² + ε) over runs of channels, times a scale, plus a bias, one of each for each channel.

    Its first definition, with a scale for each group, was withdrawn: files of the sets 18 to 20 are not valid.
    """
    groups, example = node.integer("num_groups", 0), context.shape(node)
    if groups < 1:
        raise Refusal("LIP102", f"GroupNormalization cannot have {groups} groups")
    attributes = GroupNorm(groups, None, node.number("epsilon", EPSILON))
    made = context.unary(node, "group_norm", attributes)
    return affine(context, node, made, example[:1], per_channel(example))


def instance_normalization(context: Context, node: OnnxNode) -> Value:
    """(x - μ)/√(σ² + ε) over each channel, times a scale, plus a bias."""
    made = context.unary(node, "instance_norm", InstanceNorm(None, node.number("epsilon", EPSILON)))
    example = context.shape(node)
    return affine(context, node, made, example[:1], per_channel(example))


def per_channel(example: Shape) -> Shape:
    """Return the shape of one number for each channel, which broadcasts into the example."""
    return (example[0], *(1 for _ in example[1:])) if example else ()


def local_response(context: Context, node: OnnxNode) -> Value:
    """Local response normalisation; for even sizes ONNX's window is not torch's."""
    size = node.integer("size", 0)
    if size < 1 or size % 2 == 0:
        raise Refusal("LIP110", f"LRN over {size} channels is not yet supported", "use an odd size")
    alpha, beta = node.number("alpha", Fraction(1, 10000)), node.number("beta", Fraction(3, 4))
    attributes = LocalResponse(size, alpha, beta, node.number("bias", Fraction(1)))
    return context.unary(node, "lrn", attributes)


def batch_normalization(context: Context, node: OnnxNode) -> Value:
    """With fixed statistics: a frozen scale s = γ/√(v + ε) and shift β - s·μ.

    Foldable normalisations were already folded into the layer before them when that layer was imported. Where all
    is clipped, what is trained of γ and β is a parameter.
    """
    refuse_training(node)
    operand, names = context.tensor(node), ("the scale", "the bias", "the mean", "the variance")
    found = [context.known(node, index, name) for index, name in enumerate(names, start=1)]
    axis = context.axis(node, 1, len(shape_of(operand)) + 1)
    channels = shape_of(operand)[axis : axis + 1]
    arrays = [floats(known.array, "a statistic") for known in found if known is not None]
    if len(arrays) != len(names) or any(array.shape != channels for array in arrays):
        raise Refusal("LIP102", f"the statistics of BatchNormalization do not fit {list(shape_of(operand))}")
    gamma, beta, mean, variance = (array.astype(np.float64) for array in arrays)
    parameters = context.parameters
    trains = any(map(parameters.will_train, filter(None, found[:2])))
    if trains:
        gamma, beta = np.ones_like(gamma), np.zeros_like(beta)
    with np.errstate(all="ignore"):
        factors = gamma / np.sqrt(variance + float(node.number("epsilon", EPSILON)))
        moved = beta - factors * mean
    behind = (1,) * (len(shape_of(operand)) - axis - 1)
    made = factored(context, node, operand, _frozen(factors, behind), frozen=True)
    made = shift(context, node, made, _frozen(moved, behind), frozen=True)
    return affine(context, node, made, channels, (*channels, *behind)) if trains else made


def _frozen(array: Array, behind: Shape) -> Known:
    """Return computed numbers, one for each channel, as a constant that is no stored weight."""
    return Known(array.reshape(-1, *behind))


IMPORTERS: Mapping[str, Importer] = {
    "BatchNormalization": batch_normalization,
    "GroupNormalization": group_normalization,
    "InstanceNormalization": of_channels(instance_normalization, has_factors=True),
    "LRN": local_response,
    "LayerNormalization": over_trailing_axes("layer_norm"),
    "RMSNormalization": over_trailing_axes("rms_norm"),
}
