"""Tensors of the example that meet constants which are no weights: masks, limits, divisors, exponents.

What a constant does to a tensor is put together from factors and shifts that are not trained: they are computed
from what the file stores, and training what they came from would mean something else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lipcompile.core.graph import Value
from lipcompile.core.record import NoAttributes, Shape
from lipcompile.diagnostics import Refusal
from lipcompile.frontends.onnx.context import MIXES, Context, shape_of
from lipcompile.frontends.onnx.file.memory import expect_array
from lipcompile.frontends.onnx.layout import Layout, Placed, placed, unplaced
from lipcompile.frontends.onnx.node import OnnxNode
from lipcompile.frontends.onnx.sizes import BATCH, has_batch
from lipcompile.frontends.onnx.values import LARGEST, Known, PoisonedError, floats, is_floating, scalar
from lipcompile.ops.activation.rules import Hardtanh
from lipcompile.ops.merge.rules import PRODUCT, SUM, WHERE, Sum, Where
from lipcompile.ops.normalisation.onnx_read import factored, shift
from lipcompile.ops.pointwise.rules import Pointwise
from lipcompile.ops.pool.onnx_read import reduction_of
from lipcompile.ops.resample.rules import Expand
from lipcompile.ops.shape.onnx_read import cut, reshape_to
from lipcompile.ops.shape.rules import Slice
from lipcompile.ops.table import OP_BY_NAME

Array = NDArray[Any]
# Larger powers are written by nobody, and would make graphs long.
LARGEST_POWER = 8


def broadcast(shapes: Sequence[Shape]) -> Shape:
    """Return the shape that these have together, aligned at their last axes; raises Refusal (LIP102)."""
    try:
        return tuple(int(size) for size in np.broadcast_shapes(*shapes))
    except ValueError:
        listed = " and ".join(str(list(shape)) for shape in shapes)
        raise Refusal("LIP102", f"tensors of shapes {listed} do not fit each other") from None


def check_ranks(operands: Sequence[Value]) -> None:
    """With fewer axes, an operand would meet the batch axis of the others with an axis of its own."""
    if len({len(shape_of(operand)) for operand in operands}) != 1:
        listed = " and ".join(str(["batch", *shape_of(operand)]) for operand in operands)
        raise Refusal(
            "LIP108", f"broadcasting {listed} mixes examples", "bring the tensors to the same rank first"
        )


def widened(context: Context, node: OnnxNode, operand: Value, shape: Shape, suffix: str = "_copies") -> Value:
    """Copy a tensor along axes of size 1 until it has this shape."""
    if operand.shape == shape:
        return operand
    return context.add(node, OP_BY_NAME["expand"], Expand(shape), [operand], suffix)


def alike(context: Context, node: OnnxNode, operands: Sequence[Value]) -> list[Value]:
    """Bring tensors to one shape; raises Refusal (LIP108) if they are not of one rank."""
    check_ranks(operands)
    shape = broadcast([shape_of(operand) for operand in operands])
    return [widened(context, node, operand, shape, f"_copies{i}") for i, operand in enumerate(operands)]


def real(known: Known) -> Known:
    """Return whole numbers as real ones, which those that are computed from tokens are here."""
    if known.array.dtype.kind not in "iu" or has_batch(known.array):
        return known
    return replace(known, array=known.array.astype("float64"))


def fitted(context: Context, node: OnnxNode, operand: Value, known: Known) -> tuple[Value, Known]:
    """Return a tensor and a constant of one example, the tensor copied where the constant is longer."""
    aligned = context.of_one_example(real(known), shape_of(operand))
    shape = broadcast([shape_of(operand), aligned.array.shape])
    return widened(context, node, operand, shape), aligned


def scaled(context: Context, node: OnnxNode, operand: Value, factor: Fraction, suffix: str = "") -> Value:
    """A tensor times a number."""
    return context.add(node, SUM, Sum((factor,)), [operand], suffix)


# Factors and shifts that are not trained


def times_entries(context: Context, node: OnnxNode, operand: Value, factors: Array, suffix: str) -> Value:
    """Multiply the entries of a tensor by numbers of its shape."""
    if bool((factors == 1).all()):
        return operand
    named = replace(node, name=node.name + suffix)
    return factored(context, named, operand, Known(factors), frozen=True)


def plus_entries(context: Context, node: OnnxNode, operand: Value, numbers: Array, suffix: str) -> Value:
    """Add numbers to the entries of a tensor, of its shape or broadcast to it."""
    if not bool(numbers.any()):
        return operand
    return shift(context, replace(node, name=node.name + suffix), operand, Known(numbers), frozen=True)


def finite(context: Context, known: Known) -> Known:
    """Return a constant that nothing trains with large numbers in the place of infinite ones, as masks have."""
    if not context.parameters.is_fixed(known) or not bool(np.isinf(known.array).any()):
        return known
    return replace(known, array=np.clip(known.array, -LARGEST, LARGEST).astype(known.array.dtype))


def of_every_example(context: Context, node: OnnxNode, known: Known, suffix: str) -> Value | Placed:
    """A constant that is the same for each example, of size 1 along the batch, as a tensor: zeros, and a bias.

    So it can be computed with like any tensor, and is trained where it is a parameter; poisoned if a node of it is
    refused. Raises Refusal.
    """
    array, place = known.array, known.copies or 0
    if array.ndim == 0 or array.shape[place] != 1 or not is_floating(array) or known.times > 1:
        raise Refusal("LIP110", "a constant of all examples is real numbers [1, …]")
    named, shape = replace(node, name=node.name + suffix), (*array.shape[:place], *array.shape[place + 1 :])
    try:
        zeros, known = _zeros(context, named, shape), finite(context, known)
        made = shift(context, named, zeros, replace(known, array=known.array.reshape(shape), copies=None))
    except PoisonedError:
        return Value(named.name, None)
    if known.copies is None:
        context.single.add(made.name)
    return placed(made, Layout(place))


def rows_of_each(context: Context, node: OnnxNode) -> Value | Placed | None:
    """Rows of a constant that a Tile repeats for each example: these and the batch are one axis.

    None where a Tile does anything else; raises Refusal.
    """
    known, repeats = (context.known(node, index, what) for index, what in enumerate(("the data", "the repeats")))
    if known is None or repeats is None or known.copies is not None or not is_floating(known.array):
        return None
    sizes = repeats.array.reshape(-1).tolist()
    if len(sizes) != known.array.ndim or sorted(sizes) != [*(1,) * (len(sizes) - 1), BATCH]:
        return None
    place = sizes.index(BATCH)
    if known.array.shape[place] == 1:
        return None
    apart = replace(known, array=np.expand_dims(known.array, place), copies=place)
    made = unplaced(of_every_example(context, node, apart, "_of_each"))
    return placed(made, Layout(place, inner=True))


def _zeros(context: Context, node: OnnxNode, shape: Shape) -> Value:
    """Zeros for each example: an entry of its input, times 0, copied.

    A model that looks for NaN and infinity may replace them; times 0 they would stay NaN.
    """
    given = unplaced(next(item for item in context.items.values() if isinstance(item, Value | Placed)))
    flat = reshape_to(context, node, context.numbers(given), (prod(shape_of(given)),), "_flat")
    if context.builder.holds_tokens(flat):
        raise Refusal("LIP204", "nothing says how many tokens there are")
    first = cut(context, node, flat, Slice(0, 0, 1), "_first")
    if _asks_for_numbers(context):
        zero = context.add(node, OP_BY_NAME["pointwise"], Pointwise("constant"), [first], "_zero")
    else:
        zero = scaled(context, node, first, Fraction(0), "_zero")
    return widened(context, node, reshape_to(context, node, zero, (1,) * len(shape), "_number"), shape, "_zeros")


def _asks_for_numbers(context: Context) -> bool:
    """Whether a model asks which numbers are NaN or infinite, but for weights of attention, where exporters do."""
    asked = [node.proto.input[0] for node in context.makers.values() if node.op_type in ("IsInf", "IsNaN")]
    made = [context.makers.get(name) for name in asked]
    return any(maker is None or maker.op_type != "Softmax" for maker in made)


def divided(context: Context, node: OnnxNode, operand: Value, divisor: Known) -> Value:
    """Divide by a constant with more than one entry."""
    operand, aligned = fitted(context, node, operand, divisor)
    array, shape = floats(aligned.array, "the divisor").astype(np.float64), shape_of(operand)
    context.parameters.hold(divisor)
    expect_array(shape)
    if not bool(array.all()):
        raise Refusal("LIP104", "a division by zero")
    return times_entries(context, node, operand, np.broadcast_to(1 / array, shape), "_divided")


# Masks


def mask_of(context: Context, known: Known, example: Shape) -> Array:
    """Return the condition of a Where for each entry of the example."""
    mask = context.of_one_example(known, example).array
    expect_array(example)
    try:
        return np.broadcast_to(mask.astype(bool), example)
    except ValueError:
        message = f"a condition of shape {list(mask.shape)} does not fit {list(example)}"
        raise Refusal("LIP102", message) from None


def where(context: Context, node: OnnxNode) -> Value:
    """Entries of one operand where a constant condition holds, of the other elsewhere; one may be constant."""
    condition = context.item(node, 0)
    if not isinstance(condition, Known):
        message = "unsupported op Where: it jumps where a condition that depends on the example changes"
        raise Refusal("LIP100", message, "use a constant condition, maximum or relu")
    sides = [context.item(node, index) for index in (1, 2)]
    known = [side for side in sides if isinstance(side, Known)]
    if not known:
        operands = alike(context, node, [context.tensor(node, index) for index in (1, 2)])
        chosen = mask_of(context, condition, shape_of(operands[0])).reshape(-1)
        return context.add(node, WHERE, Where(tuple(bool(entry) for entry in chosen)), operands)
    index = 2 if isinstance(sides[0], Known) else 1
    operand, other = fitted(context, node, context.tensor(node, index), known[0])
    context.parameters.hold(known[0])
    kept = mask_of(context, condition, shape_of(operand))
    return masked(context, node, operand, kept if index == 1 else ~kept, other.array)


def masked(context: Context, node: OnnxNode, operand: Value, kept: Array, other: Array) -> Value:
    """Keep some entries of a tensor; numbers, broadcast to its shape, take the place of the others."""
    numbers = np.where(kept, np.float64(0), np.broadcast_to(floats(other, "a constant"), kept.shape))
    if not np.isfinite(numbers).all():
        raise Refusal("LIP304", "a constant is NaN or infinite", "hide by a large number, such as -100")
    dtype = np.float32
    value = times_entries(context, node, operand, kept.astype(dtype), "_kept")
    return plus_entries(context, node, value, numbers.astype(dtype), "_filled")


def triangle(context: Context, node: OnnxNode) -> Value:
    """The upper or lower triangle of the last two axes; zeros elsewhere."""
    operand, known = context.tensor(node), context.known(node, 1, "k")
    example = shape_of(operand)
    if context.layout.place >= context.layout.rank(example) - 2:
        raise Refusal("LIP108", "Trilu acts on the batch axis: it mixes examples", MIXES)
    offset = 0 if known is None else int(scalar(known))
    expect_array(example)
    cut = np.triu if node.integer("upper", 1) else np.tril
    return times_entries(context, node, operand, cut(np.ones(example, np.float32), offset), "_triangle")


# Limits and powers

# No number of a network is larger, and bfloat16 holds it: what a missing bound of Clip stands for.
NO_END = Fraction(LARGEST)
_CLOSE = 10_000


def within(context: Context, node: OnnxNode, operand: Value, low: Fraction, high: Fraction) -> Value:
    """x, cut to an interval, of which ±`NO_END` is no end; [0, ∞) makes it ReLU, no end at all the identity."""
    low, high = max(low, -NO_END), min(high, NO_END)
    if high < NO_END or low not in (-NO_END, 0):
        return context.add(node, OP_BY_NAME["hardtanh"], Hardtanh(low, high), [operand])
    return operand if low else context.add(node, OP_BY_NAME["relu"], NoAttributes(), [operand])


def limited(context: Context, node: OnnxNode, operand: Value, known: Known, *, largest: bool) -> Value:
    """max(x, c) = c + relu(x - c), min(x, c) = c - relu(c - x); one number is the end of an interval.

    In c + (x - c) a number x is rounded as c is: not by 10⁻³ more than it would be.
    """
    operand, aligned = fitted(context, node, operand, known)
    shape = shape_of(operand)
    context.parameters.hold(known)
    expect_array(shape)
    limit = np.broadcast_to(floats(aligned.array, "a limit"), shape)
    if limit.size and bool((limit == limit.flat[0]).all()):
        end = Fraction(float(limit.flat[0]))
        return within(context, node, operand, *((end, NO_END) if largest else (-NO_END, end)))
    if bool((abs(limit) > _CLOSE).any()):
        message = f"limits that differ, one of which is {limit.flat[abs(limit).argmax()]:.3g}"
        raise Refusal("LIP110", message, f"use limits up to {_CLOSE}, one limit for all entries, or torch.where")
    sign = 1 if largest else -1
    above = plus_entries(context, node, _signed(context, node, operand, sign, "_turned"), -sign * limit, "_over")
    cut = context.add(node, OP_BY_NAME["relu"], NoAttributes(), [above], "_relu")
    return plus_entries(context, node, _signed(context, node, cut, sign, "_back"), limit, "_limit")


def _signed(context: Context, node: OnnxNode, operand: Value, sign: int, suffix: str) -> Value:
    return operand if sign == 1 else scaled(context, node, operand, Fraction(-1), suffix)


def power(context: Context, node: OnnxNode) -> Value:
    """A whole power: products of the tensor with itself."""
    exponent = context.item(node, 1)
    if not isinstance(exponent, Known) or exponent.array.size != 1:
        raise Refusal("LIP100", "unsupported op Pow: its slope is unbounded", "use a constant whole exponent")
    operand = context.tensor(node)
    context.parameters.hold(exponent)
    context.of_one_example(exponent, shape_of(operand))
    number = scalar(exponent)
    if number.denominator != 1 or not 1 <= number <= LARGEST_POWER:
        message = f"unsupported op Pow: x to the power {float(number):g} has unbounded slopes"
        raise Refusal("LIP100", message, f"use a whole exponent of 1 to {LARGEST_POWER}")
    value = operand
    for count in range(1, int(number)):
        value = context.add(node, PRODUCT, NoAttributes(), [value, operand], f"_{count}" if count > 1 else "")
    return value


def sum_of_squares(context: Context, node: OnnxNode) -> Value:
    """Σx² over axes."""
    operand = context.tensor(node)
    squares = context.add(node, PRODUCT, NoAttributes(), [operand, operand], "_squares")
    return reduction_of(context, node, squares, "reduce_sum")
