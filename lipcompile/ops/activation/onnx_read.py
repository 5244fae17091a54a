"""Importers of activations with attributes or constant operands."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

from lipcompile.core.graph import Value
from lipcompile.core.record import NoAttributes, Shape
from lipcompile.diagnostics import Refusal
from lipcompile.frontends.onnx.constants import NO_END, scaled, within
from lipcompile.frontends.onnx.context import Context, Importer, shape_of
from lipcompile.frontends.onnx.node import OnnxNode
from lipcompile.frontends.onnx.values import scalar
from lipcompile.ops.activation.rules import ELU, GELU, HardShrink, Hardtanh
from lipcompile.ops.activation.write import WRITTEN, Written
from lipcompile.ops.merge.rules import SUM, Sum
from lipcompile.ops.parametric.rules import PRELU, PerFeature
from lipcompile.ops.table import OP_BY_NAME

ONE = Fraction(1)
# The constants of Selu, which files hold in float32.
_SELU = {"alpha": Fraction("1.6732632423543772"), "gamma": Fraction("1.0507009873554805")}


def _operator(name: str, written: Written) -> Importer:
    """Return the importer of an operator of one operand that is the op, with its numbers."""

    def importer(context: Context, node: OnnxNode) -> Value:
        numbers = {own: node.number(given, absent) for given, (own, absent) in written.numbers.items()}
        return context.unary(node, name, OP_BY_NAME[name].attributes(**numbers))

    return importer


def selu(context: Context, node: OnnxNode) -> Value:
    """SELU with its own constants, up to their rounding to float32; with others, gamma times ELU."""
    given = {name: node.number(name, value) for name, value in _SELU.items()}
    if all(abs(given[name] / value - 1) <= Fraction(1, 10**6) for name, value in _SELU.items()):
        return context.unary(node, "selu", NoAttributes())
    return scaled(context, node, context.unary(node, "elu", ELU(given["alpha"]), "_elu"), given["gamma"])


def gelu(context: Context, node: OnnxNode) -> Value:
    """GELU, exact or by its approximation."""
    known, approximate = {"none": GELU("none"), "tanh": GELU("tanh")}, node.text("approximate", "none")
    if approximate not in known:
        raise Refusal("LIP102", f"Gelu has no approximation `{approximate}`", f"use {' or '.join(known)}")
    return context.unary(node, "gelu", known[approximate])


def swish(context: Context, node: OnnxNode) -> Value:
    """x·σ(αx) = silu(αx)/α."""
    alpha, operand = node.number("alpha", ONE), context.tensor(node)
    if alpha == 1:
        return context.unary(node, "silu", NoAttributes())
    if alpha == 0:
        return scaled(context, node, operand, Fraction(1, 2))
    steeper = scaled(context, node, operand, alpha, "_steeper")
    made = context.add(node, OP_BY_NAME["silu"], NoAttributes(), [steeper], "_silu")
    return scaled(context, node, made, 1 / alpha)


def shrink(context: Context, node: OnnxNode) -> Value:
    """x, or 0 near 0; if what remains is moved by the threshold, x minus x cut to it, which does not jump."""
    bias, threshold = node.number("bias", Fraction(0)), node.number("lambd", Fraction(1, 2))
    if bias == 0:
        return context.unary(node, "hard_shrink", HardShrink(threshold))
    if bias != threshold:
        raise Refusal("LIP110", "Shrink with a bias other than lambd is not yet supported", "use bias = lambd")
    operand = context.tensor(node)
    cut = context.add(node, OP_BY_NAME["hardtanh"], Hardtanh(-threshold, threshold), [operand], "_cut")
    return context.add(node, SUM, Sum((ONE, -ONE)), [operand, cut])


def clip(context: Context, node: OnnxNode) -> Value:
    """x, cut to an interval."""
    return within(context, node, context.tensor(node), *clip_bounds(context, node))


def clip_bounds(context: Context, node: OnnxNode) -> tuple[Fraction, Fraction]:
    """Return the ends of the interval that a Clip cuts to, ±`NO_END` where it has none."""
    return _bound(context, node, 1, "min", -NO_END), _bound(context, node, 2, "max", NO_END)


def _bound(context: Context, node: OnnxNode, index: int, name: str, absent: Fraction) -> Fraction:
    """Return a bound: an attribute in old operator sets, an operand in new ones; `absent` if it is infinite."""
    known = context.known(node, index, f"`{name}`")
    if known is None:
        return node.number(name, absent)
    if known.array.ndim > 1:
        raise Refusal(
            "LIP102", f"`{name}` of {node.op_type} must be a single number; it has shape {list(known.array.shape)}"
        )
    context.parameters.hold(known)
    if known.array.size == 1 and float(known.array.reshape(-1)[0]) == math.copysign(math.inf, absent):
        return absent
    return scalar(known)


def p_relu(context: Context, node: OnnxNode) -> Value:
    """A slope below 0 for each entry of an axis, or one in all."""
    operand, slope = context.tensor(node), context.known(node, 1, "the slope")
    if slope is None:
        raise Refusal("LIP102", "PRelu has no slope")
    example = shape_of(operand)
    slope = context.of_one_example(slope, example)
    attributes = _feature(slope.array.shape, example)
    shape = PRELU.parameter("slope").shape(attributes, (example,))
    slope = replace(slope, array=slope.array.reshape(shape))
    return context.parameters.add(PRELU, attributes, operand, [("slope", slope)], node.name)


def _feature(slope: Sequence[int], example: Shape) -> PerFeature:
    """The axis of the example along which slopes of this shape, aligned with its last axes, differ."""
    if math.prod(slope) == 1:
        return PerFeature(shared=True)
    axes = [axis - len(slope) for axis, size in enumerate(slope) if size != 1]
    if len(axes) > 1:
        raise Refusal("LIP110", f"slopes of shape {list(slope)} differ along more than one axis", "use one axis")
    if axes[0] < -len(example) or example[axes[0]] != math.prod(slope):
        raise Refusal("LIP102", f"slopes of shape {list(slope)} do not fit an example of shape {list(example)}")
    return PerFeature(len(example) + axes[0])


IMPORTERS: Mapping[str, Importer] = {
    **{written.operator: _operator(name, written) for name, written in WRITTEN.items() if written.operator},
    "Clip": clip,
    "Gelu": gelu,
    "PRelu": p_relu,
    "Selu": selu,
    "Shrink": shrink,
    "Swish": swish,
}
