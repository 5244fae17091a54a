"""Importers of functions of entries that have no Lipschitz constant, for nodes that nothing else imports.

Where gradients are clipped, all are allowed. Where theorems bound them, these are comparisons of what tokens give
without a trained parameter: masks and positions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, defs

from lipcompile.core.graph import Value
from lipcompile.core.record import NoAttributes, Shape
from lipcompile.diagnostics import Refusal
from lipcompile.frontends.onnx.constants import (
    alike,
    fitted,
    of_every_example,
    plus_entries,
    scaled,
    times_entries,
)
from lipcompile.frontends.onnx.context import Context, shape_of
from lipcompile.frontends.onnx.file.memory import expect_array
from lipcompile.frontends.onnx.layout import FIRST, Placed, placed, unplaced
from lipcompile.frontends.onnx.node import OnnxNode
from lipcompile.frontends.onnx.refused import seeded
from lipcompile.frontends.onnx.sizes import has_batch
from lipcompile.frontends.onnx.values import DIFFERS, LARGEST, OF_BATCH, Known, scalar
from lipcompile.ops.linear.onnx_read import fixed
from lipcompile.ops.linear.rules import DENSE_TRANSPOSE, Dense
from lipcompile.ops.merge.rules import MAXIMUM, PRODUCT, SUM, Sum
from lipcompile.ops.pointwise.rules import BOUNDED, NOISE, POINTWISE, TRUTHS, Name, Pointwise
from lipcompile.ops.reduce.rules import Reduce
from lipcompile.ops.resample.rules import Expand
from lipcompile.ops.shape.onnx_read import permute, reshape_to
from lipcompile.ops.table import OP_BY_NAME

Array = NDArray[Any]
ZERO, ONE = Fraction(0), Fraction(1)
# The kinds of whole numbers with a sign: int8, int16, int32, int64.
_WHOLE = (3, 5, 6, 7)
# Ops whose output is made of the entries of their operands, or of products of two.
_OF_TRUTHS = (
    *("reshape", "flatten", "transpose", "expand", "slice", "gather", "concat"),
    *("maximum", "minimum", "multiply"),
)


def instead(context: Context, node: OnnxNode) -> Value | Placed | None:
    """Return a node as functions of entries; None where it is none, or where they are not allowed.

    Raises Refusal (LIP108, LIP308) where that is all that is wrong.
    """
    make = _FUNCTIONS.get(node.op_type)
    read = [context.items.get(name) for name in node.proto.input]
    poisoned = any(isinstance(item, Value) and item.shape is None for item in read)
    if make is None or poisoned or context.layout != FIRST:
        return None
    layouts = {item.layout for item in read if isinstance(item, Placed)}
    layout = layouts.pop() if len(layouts) == 1 else FIRST
    context.layout = FIRST if layout.axis and node.op_type in _OF_PLACES else layout
    try:
        return placed(make(context, node), context.layout)
    except Refusal as refusal:
        if refusal.code in ("LIP108", "LIP308") and _clips(context):
            raise
        return None
    finally:
        context.layout = FIRST


def _apply(
    context: Context,
    node: OnnxNode,
    function: Name,
    operands: Sequence[Value],
    number: Fraction = Fraction(0),
    suffix: str = "",
) -> Value:
    """Add a function of entries; raises Refusal where neither a clip nor the absence of gradients allows it."""
    of_tokens = function in BOUNDED and bool(context.numbered)
    if not _clips(context) and not (of_tokens and all(map(context.builder.is_frozen, operands))):
        raise Refusal("LIP100", f"`{function}` is not Lipschitz")
    return context.add(node, POINTWISE, Pointwise(function, number), operands, suffix)


def _clips(context: Context) -> bool:
    """Whether clips may bound the gradients of all parameters."""
    return context.parameters.options.bounds in ("clip", "auto")


# Operands


def _operands(context: Context, node: OnnxNode) -> list[Value]:
    """Return the operands as tensors of one shape, constants among them."""
    items = [context.item(node, index) for index in range(len(node.proto.input))]
    tensors = [context.tensor(node, index) for index, item in enumerate(items) if not isinstance(item, Known)]
    if not tensors:
        raise Refusal("LIP110", f"{node.op_type} of constants is computed while importing, or not at all")
    if any(map(context.builder.holds_tokens, tensors)):
        raise Refusal("LIP204", "nothing says how many tokens there are")
    first = alike(context, node, tensors)[0]
    for known in [item for item in items if isinstance(item, Known)]:
        first, _ = fitted(context, node, first, known)
    found = iter(alike(context, node, [first, *tensors])[1:])
    return [
        _constant(context, node, first, item, f"_{index}") if isinstance(item, Known) else next(found)
        for index, item in enumerate(items)
    ]


def _finite(array: Array) -> Array:
    """Return an array of finite numbers, infinite ones cut; raises Refusal for NaN and for a size of the batch."""
    if has_batch(array):
        raise Refusal("LIP108", DIFFERS, OF_BATCH)
    numbers = np.clip(array.astype(np.float64), -LARGEST, LARGEST)
    if np.isnan(numbers).any():
        raise Refusal("LIP304", "a constant is NaN", "export the model again before training diverged")
    return numbers.astype(np.float32)


def _constant(context: Context, node: OnnxNode, like: Value, known: Known, suffix: str) -> Value:
    """A constant as a tensor, the same for every example."""
    array = _finite(context.of_one_example(known, shape_of(like)).array)
    context.parameters.hold(known)
    if array.size == 1:
        number = Fraction(float(array.reshape(-1)[0]))
        return _apply(context, node, "constant", [like], number, f"{suffix}_constant")
    zeros = _apply(context, node, "constant", [like], suffix=f"{suffix}_constant")
    return plus_entries(context, node, zeros, array, suffix)


# Comparisons and truths: numbers that are 0 or 1


def _compared(function: Name, *, reverse: bool) -> Callable[[Context, OnnxNode], Value]:
    """left ⋚ right as left - right ⋚ 0, or the reverse."""

    def importer(context: Context, node: OnnxNode) -> Value:
        left, right = _operands(context, node)
        signs = (-ONE, ONE) if reverse else (ONE, -ONE)
        difference = context.add(node, SUM, Sum(signs), [left, right], "_difference")
        return _apply(context, node, function, [difference])

    return importer


def _of_one(function: Name) -> Callable[[Context, OnnxNode], Value]:
    return lambda context, node: _apply(context, node, function, [context.tensor(node)])


def _not(context: Context, node: OnnxNode) -> Value:
    return _complement(context, node, context.tensor(node))


def _complement(context: Context, node: OnnxNode, truth: Value, suffix: str = "") -> Value:
    return _apply(context, node, "equal", [truth], suffix=suffix)


def _and(context: Context, node: OnnxNode) -> Value:
    return context.add(node, PRODUCT, NoAttributes(), _operands(context, node))


def _or(context: Context, node: OnnxNode) -> Value:
    return context.add(node, MAXIMUM, NoAttributes(), _operands(context, node))


def _xor(context: Context, node: OnnxNode) -> Value:
    difference = context.add(node, SUM, Sum((ONE, -ONE)), _operands(context, node), "_difference")
    return _complement(context, node, _apply(context, node, "equal", [difference], suffix="_same"))


def _is_truth(context: Context, value: Value) -> bool:
    """Whether all entries are 0 or 1: those of comparisons, moved about, or their products."""
    made = context.builder.made(value)
    if made is not None and made.op.name in _OF_TRUTHS:
        return all(_is_truth(context, Value(name, ())) for name in made.inputs)
    return made is not None and made.op is POINTWISE and made.attributes.function in TRUTHS


def _cast(context: Context, node: OnnxNode) -> Value:
    """To booleans: what is not 0; to whole numbers: without the fraction; of truths and tokens: as they are."""
    value, to = context.numbers(context.tensor(node)), node.integer("to", 0)
    floating = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16)
    if context.builder.holds_tokens(value):
        raise Refusal("LIP204", "nothing says how many tokens there are")
    if _is_truth(context, value) or to in floating:
        return value
    if to == TensorProto.BOOL:
        return _complement(context, node, _complement(context, node, value, "_zero"))
    if to not in _WHOLE:
        raise Refusal("LIP100", "a cast to few bits is discontinuous")
    return _apply(context, node, "truncated", [value])


# Rows of a table at computed places


def rows_at(context: Context, node: OnnxNode, places: Value, table: Known) -> Value:
    """Rows of a constant table [entries, width] at whole numbers [...] that an example computes: [..., width].

    The places, one hot, times the table as it is stored, so that an embedding may share it.
    """
    entries, width = table.array.shape
    chosen = one_hot(context, node, places, entries)
    return context.parameters.add(DENSE_TRANSPOSE, Dense(width), chosen, [("weight", table)], node.name)


def one_hot(context: Context, node: OnnxNode, places: Value, entries: int) -> Value:
    """Whole numbers [...] as rows [..., entries] that are 1 at their place; raises Refusal."""
    example = shape_of(places)
    wide = reshape_to(context, node, places, (*example, 1), "_column")
    copied = context.add(node, OP_BY_NAME["expand"], Expand((*example, entries)), [wide], "_copies")
    numbers = np.arange(entries, dtype=np.float32)
    apart = plus_entries(context, node, copied, np.broadcast_to(-numbers, (*example, entries)), "_from")
    return _apply(context, node, "equal", [apart], suffix="_one_hot")


def from_the_end(context: Context, node: OnnxNode, places: Value, entries: int) -> Value:
    """Add how many entries there are to negative places, as an index of torch counts; raises Refusal."""
    turned = scaled(context, node, places, -ONE, "_turned")
    negative = _apply(context, node, "greater", [turned], suffix="_negative")
    return context.add(node, SUM, Sum((ONE, Fraction(entries))), [places, negative], "_counted")


def _place(context: Context, node: OnnxNode) -> Value:
    """The place of the first of the largest or smallest entries along an axis: no equal one is before it."""
    operand = context.tensor(node)
    example = shape_of(operand)
    axis = context.axis(node, node.integer("axis", 0), len(example) + 1)
    if node.integer("select_last_index", 0):
        raise Refusal("LIP100", "the last of equal entries")
    reduce = OP_BY_NAME["reduce_max" if node.op_type == "ArgMax" else "reduce_min"]
    most = context.add(node, reduce, Reduce((axis,), keep=True), [operand], "_most")
    wide = context.add(node, OP_BY_NAME["expand"], Expand(example), [most], "_copies")
    apart = context.add(node, SUM, Sum((ONE, -ONE)), [operand, wide], "_apart")
    equal = _apply(context, node, "equal", [apart], suffix="_equal")
    size = example[axis]
    before = fixed(context, node, equal, axis, np.tril(np.ones((size, size), np.float32), -1), "_before")
    first = _apply(context, node, "equal", [before], suffix="_first")
    chosen = context.add(node, PRODUCT, NoAttributes(), [equal, first], "_chosen")
    place = fixed(context, node, chosen, axis, np.arange(size, dtype=np.float32)[None], "_place")
    if node.integer("keepdims", 1):
        return place
    return reshape_to(context, node, place, (*example[:axis], *example[axis + 1 :]), "_dropped")


# Entries at places along the last axis that each example computes


def places_in_order(context: Context, node: OnnxNode, operand: Value, count: int, *, descending: bool) -> Value:
    """The places of the first entries in order along the last axis: [..., n] to [..., count].

    An entry's rank is how many stand before it; of equal ones the first does. Raises Refusal under theorems.
    """
    if not _clips(context):
        raise Refusal("LIP100", "places are not Lipschitz")
    *others, size = shape_of(operand)
    square = (*others, size, size)
    expect_array(square)
    own, other = (_wide(context, node, operand, (*others, *pair), square) for pair in ((size, 1), (1, size)))
    apart = context.add(node, SUM, Sum((-ONE, ONE) if descending else (ONE, -ONE)), [own, other], "_apart")
    equal = _apply(context, node, "equal", [apart], suffix="_equal")
    earlier = np.broadcast_to(np.tril(np.ones((size, size), np.float32), -1), square)
    first = times_entries(context, node, equal, earlier, "_first")
    beyond = _apply(context, node, "greater", [apart], suffix="_beyond")
    before = context.add(node, SUM, Sum((ONE, ONE)), [beyond, first], "_before")
    hot = one_hot(context, node, _total(context, node, before, -1, "_rank"), count)
    turned = permute(context, node, hot, (*range(len(others)), len(others) + 1, len(others)), "_in_order")
    place = fixed(context, node, turned, len(others) + 1, np.arange(size, dtype=np.float32)[None], "_place")
    return reshape_to(context, node, place, (*others, count), "_places")


def _wide(context: Context, node: OnnxNode, value: Value, shape: Shape, wide: Shape) -> Value:
    """Reshape, and copy along axes of size 1."""
    apart = reshape_to(context, node, value, shape, "_column")
    return apart if shape == wide else context.add(node, OP_BY_NAME["expand"], Expand(wide), [apart], "_wide")


def _total(context: Context, node: OnnxNode, value: Value, axis: int, suffix: str) -> Value:
    return context.add(node, OP_BY_NAME["reduce_sum"], Reduce((axis,)), [value], suffix)


def _hot(context: Context, node: OnnxNode, size: int) -> Value:
    """Return the places along the last axis, one hot: [..., count, size]. Raises Refusal for other axes."""
    places = context.tensor(node, 1)
    if context.axis(node, node.integer("axis", 0), len(shape_of(places)) + 1) != len(shape_of(places)) - 1:
        raise Refusal("LIP110", f"{node.op_type} at computed places of another axis than the last")
    return one_hot(context, node, places, size)


def _gathered(context: Context, node: OnnxNode) -> Value:
    """Entries at places along an axis: the sum of those that the places are hot at."""
    operand, places = context.tensor(node), context.tensor(node, 1)
    rank = len(shape_of(operand))
    axis = context.axis(node, node.integer("axis", 0), rank + 1)
    last = [*(other for other in range(rank) if other != axis), axis]
    operand = permute(context, node, operand, last, "_last")
    places = permute(context, node, context.numbers(places), last, "_places")
    *others, size = shape_of(operand)
    hot = one_hot(context, node, places, size)
    wide = _wide(context, node, operand, (*others, 1, size), shape_of(hot))
    chosen = context.add(node, PRODUCT, NoAttributes(), [hot, wide], "_chosen")
    found = _total(context, node, chosen, -1, "_entries")
    return permute(context, node, found, [last.index(other) for other in range(rank)], "_first")


def _scattered(context: Context, node: OnnxNode) -> Value:
    """Numbers put at places, which must differ, or added there."""
    reduction, places = node.text("reduction", "none"), context.tensor(node, 1)
    differ = shape_of(places)[-1:] == (1,) or _differ(context, node.proto.input[1])
    if reduction not in ("none", "add") or (reduction == "none" and not differ):
        raise Refusal("LIP110", "ScatterElements at places that may be equal")
    data = context.item(node, 0)
    size = data.array.shape[-1] if isinstance(data, Known) else context.shape(node)[-1]
    hot = _hot(context, node, size)
    covered = _total(context, node, hot, -2, "_covered")
    kept = _as_tensor(context, node, 0, covered)
    if reduction == "none":
        free = _complement(context, node, covered, "_free")
        kept = context.add(node, PRODUCT, NoAttributes(), [kept, free], "_kept")
    numbers = _as_tensor(context, node, 2, places)
    wide = _wide(context, node, numbers, (*shape_of(places), 1), shape_of(hot))
    put = context.add(node, PRODUCT, NoAttributes(), [hot, wide], "_at_places")
    return context.add(node, SUM, Sum((ONE, ONE)), [kept, _total(context, node, put, -2, "_put")])


def _differ(context: Context, name: str) -> bool:
    """Whether the places along an axis are those of entries in order, of which no two are one."""
    while (maker := context.makers.get(name)) is not None and maker.op_type in ("Cast", "Identity"):
        name = maker.proto.input[0]
    return maker is not None and maker.op_type == "TopK"


def _as_tensor(context: Context, node: OnnxNode, index: int, like: Value) -> Value:
    """An operand of the shape of another tensor, which may be a constant; raises Refusal."""
    item = context.item(node, index)
    if isinstance(item, Known):
        return _constant(context, node, like, item, f"_{index}")
    found = context.tensor(node, index)
    if found.shape != like.shape:
        raise Refusal("LIP110", f"{node.op_type} at computed places of a part of the other axes")
    return found


# Choices, quotients, powers


def _where(context: Context, node: OnnxNode) -> Value:
    """A choice; where theorems bound gradients, a·m + b·(1 - m) with a mask of zeros and ones."""
    mask, left, right = _operands(context, node)
    try:
        return _apply(context, node, "select", [mask, left, right])
    except Refusal:
        if not _is_truth(context, mask):
            raise
    hidden = _complement(context, node, mask, "_hidden")
    seen, other = (
        context.add(node, PRODUCT, NoAttributes(), pair, suffix)
        for pair, suffix in (([mask, left], "_seen"), ([hidden, right], "_other"))
    )
    return context.add(node, SUM, Sum((ONE, ONE)), [seen, other])


def _sum(context: Context, node: OnnxNode) -> Value:
    """A sum, of which a constant may be infinite: what hides scores of an attention."""
    return context.add(node, SUM, Sum((ONE, ONE)), _operands(context, node))


def _quotient(context: Context, node: OnnxNode) -> Value:
    """A quotient of real numbers; one of whole numbers loses its fraction."""
    whole = _is_whole(context, node.outputs[0])
    quotient = _apply(context, node, "quotient", _operands(context, node), suffix="_real" if whole else "")
    return _apply(context, node, "truncated", [quotient]) if whole else quotient


def _remainder(context: Context, node: OnnxNode) -> Value:
    """x - y·⌊x/y⌋, which has the sign of y; of C's fmod, the fraction is cut off, and it has the sign of x."""
    operands = _operands(context, node)
    quotient = _apply(context, node, "quotient", operands, suffix="_quotient")
    times = _apply(context, node, "truncated" if node.integer("fmod", 0) else "floor", [quotient], suffix="_times")
    whole = context.add(node, PRODUCT, NoAttributes(), [times, operands[1]], "_whole")
    return context.add(node, SUM, Sum((ONE, -ONE)), [operands[0], whole])


def _is_whole(context: Context, name: str) -> bool:
    """Whether a tensor of the file holds whole numbers: its kind is that of an operand, up to the last cast."""
    while (node := context.makers.get(name)) is not None and node.op_type != "Cast":
        schema = defs.get_schema(node.op_type, context.version)
        formal = [parameter.type_str for parameter in schema.inputs]
        kinds = [*formal, *formal[-1:] * len(node.proto.input)]
        kind = schema.outputs[min([*node.proto.output].index(name), len(schema.outputs) - 1)].type_str
        among = {one.type_param_str: one.allowed_type_strs for one in schema.type_constraints}
        if [*among.get(kind, [kind])] == ["tensor(int64)"]:  # places, whatever is read
            return True
        alike = [own for own, found in zip(node.proto.input, kinds, strict=False) if own and found == kind]
        if not alike:
            return False
        name = alike[0]
    item = context.items.get(name)
    if isinstance(item, Known):
        return item.array.dtype.kind in "iu"
    if node is not None:
        return node.integer("to", 0) in _WHOLE
    return isinstance(item, Value) and context.builder.holds_tokens(item)


def _reciprocal(context: Context, node: OnnxNode) -> Value:
    operand = context.tensor(node)
    one = _apply(context, node, "constant", [operand], ONE, "_one")
    return _apply(context, node, "quotient", [one, operand])


def _power(context: Context, node: OnnxNode) -> Value:
    """x to a constant power, a constant to the power x."""
    base, exponent = context.item(node, 0), context.item(node, 1)
    if isinstance(exponent, Known) and exponent.array.size == 1:
        context.parameters.hold(exponent)
        operand, _ = fitted(context, node, context.tensor(node), exponent)
        return _apply(context, node, "power", [operand], scalar(exponent))
    if not isinstance(base, Known) or base.array.size != 1 or scalar(base) <= 0:
        raise Refusal("LIP100", "a power of two tensors is not Lipschitz")
    context.parameters.hold(base)
    operand, _ = fitted(context, node, context.tensor(node, 1), base)
    steeper = scaled(context, node, operand, Fraction(math.log(scalar(base))), "_exponent")
    return _apply(context, node, "exp", [steeper])


def _root(context: Context, node: OnnxNode) -> Value:
    return _apply(context, node, "power", [context.tensor(node)], Fraction(1, 2))


# Functions that are made of others


def _around_one(context: Context, node: OnnxNode, operand: Value) -> tuple[Value, Value]:
    """1 - x and 1 + x."""
    one = _apply(context, node, "constant", [operand], ONE, "_one")
    below, above = (
        context.add(node, SUM, Sum((ONE, sign)), [one, operand], name)
        for sign, name in ((-ONE, "_below"), (ONE, "_above"))
    )
    return below, above


def _arc(context: Context, node: OnnxNode, slope: Value, factor: Fraction) -> Value:
    """factor·atan(x), of a slope that may be infinite."""
    angle = context.add(node, OP_BY_NAME["atan"], NoAttributes(), [slope], "_angle")
    return scaled(context, node, angle, factor)


def _arccosine(context: Context, node: OnnxNode) -> Value:
    """2·atan √((1 - x)/(1 + x))."""
    quotient = _apply(
        context, node, "quotient", _around_one(context, node, context.tensor(node)), suffix="_quotient"
    )
    root = _apply(context, node, "power", [quotient], Fraction(1, 2), "_root")
    return _arc(context, node, root, Fraction(2))


def _arcsine(context: Context, node: OnnxNode) -> Value:
    """atan(x/√((1 - x)(1 + x)))."""
    operand = context.tensor(node)
    product = context.add(node, PRODUCT, NoAttributes(), _around_one(context, node, operand), "_product")
    root = _apply(context, node, "power", [product], Fraction(1, 2), "_root")
    return _arc(context, node, _apply(context, node, "quotient", [operand, root], suffix="_slope"), ONE)


def _area_tangent(context: Context, node: OnnxNode) -> Value:
    """(log(1 + x) - log(1 - x))/2."""
    below, above = _around_one(context, node, context.tensor(node))
    logs = [_apply(context, node, "log", [part], suffix=f"_{place}") for place, part in enumerate((above, below))]
    return context.add(node, SUM, Sum((Fraction(1, 2), Fraction(-1, 2))), logs)


def _tangent(context: Context, node: OnnxNode) -> Value:
    parts = [context.unary(node, name, NoAttributes(), f"_{name}") for name in ("sin", "cos")]
    return _apply(context, node, "quotient", parts)


def _exponentials(sign: Fraction) -> Callable[[Context, OnnxNode], Value]:
    """(e^x ± e^-x)/2."""

    def importer(context: Context, node: OnnxNode) -> Value:
        operand = context.tensor(node)
        turned = scaled(context, node, operand, -ONE, "_turned")
        both = [_apply(context, node, "exp", [part], suffix=f"_{i}") for i, part in enumerate((operand, turned))]
        return context.add(node, SUM, Sum((Fraction(1, 2), sign / 2)), both)

    return importer


# Numbers that are drawn


def _normal(context: Context, node: OnnxNode) -> Value:
    """mean + scale·n, n drawn for each example by itself; raises Refusal."""
    if not _clips(context):
        raise Refusal("LIP100", "noise has no bound")
    if "seed" in node.attributes:
        raise seeded(node.op_type)
    mean, scale = node.number("mean", ZERO), node.number("scale", ONE)
    drawn = context.add(node, NOISE, NoAttributes(), [_like(context, node)], "_drawn")
    if mean == 0 and scale == 1:
        return drawn
    start = _apply(context, node, "constant", [drawn], mean, "_mean")
    return context.add(node, SUM, Sum((scale, ONE)), [drawn, start])


def _like(context: Context, node: OnnxNode) -> Value:
    """What the numbers have the shape of: a tensor, or a constant with a place for each example."""
    item = context.item(node, 0)
    if not isinstance(item, Known):
        return context.numbers(context.tensor(node))
    if item.copies is None:
        raise Refusal("LIP110", "all examples share one draw", "draw for each example: torch.randn_like(x)")
    return unplaced(of_every_example(context, node, item, "_of_each"))


# Functions of all entries along an axis: its number is that of torch if the batch is in front.
_OF_PLACES = ("ArgMax", "ArgMin", "GatherElements", "RandomNormalLike", "ScatterElements")
_FUNCTIONS: Mapping[str, Callable[[Context, OnnxNode], Value]] = {
    "Acos": _arccosine,
    "Add": _sum,
    "And": _and,
    "ArgMax": _place,
    "ArgMin": _place,
    "Asin": _arcsine,
    "Atanh": _area_tangent,
    "Cast": _cast,
    "Ceil": _of_one("ceil"),
    "Cosh": _exponentials(ONE),
    "Div": _quotient,
    "Equal": _compared("equal", reverse=False),
    "Exp": _of_one("exp"),
    "Floor": _of_one("floor"),
    "GatherElements": _gathered,
    "Greater": _compared("greater", reverse=False),
    "GreaterOrEqual": _compared("at_least", reverse=False),
    "IsInf": _of_one("is_infinite"),
    "IsNaN": _of_one("is_nan"),
    "Less": _compared("greater", reverse=True),
    "LessOrEqual": _compared("at_least", reverse=True),
    "Log": _of_one("log"),
    "Mod": _remainder,
    "Not": _not,
    "Or": _or,
    "Pow": _power,
    "RandomNormalLike": _normal,
    "Reciprocal": _reciprocal,
    "Round": _of_one("round"),
    "ScatterElements": _scattered,
    "Sinh": _exponentials(-ONE),
    "Sqrt": _root,
    "Tan": _tangent,
    "Where": _where,
    "Xor": _xor,
}
