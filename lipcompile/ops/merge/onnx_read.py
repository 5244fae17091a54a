"""Importers of arithmetic between tensors, of concatenation, and of sorting in its many spellings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np

from lipcompile.core.graph import Value
from lipcompile.core.record import NoAttributes, Shape
from lipcompile.diagnostics import Refusal
from lipcompile.frontends.onnx.constants import (
    alike,
    broadcast,
    check_ranks,
    divided,
    finite,
    fitted,
    limited,
    scaled,
    widened,
)
from lipcompile.frontends.onnx.context import MIXES, Context, Importer, shape_of
from lipcompile.frontends.onnx.entries import tied
from lipcompile.frontends.onnx.layout import FIRST, placed
from lipcompile.frontends.onnx.node import OnnxNode
from lipcompile.frontends.onnx.refused import DIRECTIONS
from lipcompile.frontends.onnx.sizes import OF_OWN, OWN, has_batch, of_own
from lipcompile.frontends.onnx.values import (
    Extreme,
    Item,
    Known,
    OwnPlaces,
    Strided,
    floats,
    integers,
    scalar,
)
from lipcompile.ops.activation.rules import FullSort
from lipcompile.ops.embedding.onnx_read import joined
from lipcompile.ops.linear.onnx_read import times
from lipcompile.ops.linear.rules import BIAS, BiasShape
from lipcompile.ops.merge.rules import MAXIMUM, MINIMUM, PRODUCT, SUM, Sum
from lipcompile.ops.normalisation.onnx_read import factored
from lipcompile.ops.pointwise.onnx_read import places_in_order
from lipcompile.ops.pool.onnx_read import reduced_axes, reduction_of
from lipcompile.ops.shape.onnx_read import cut, made_axes, of_places, permute, reshape_to, unsqueeze
from lipcompile.ops.shape.rules import Slice
from lipcompile.ops.table import OP_BY_NAME

ONE = Fraction(1)
# Operators between a sum and the norm that is made of it: a factor, a shift, a root, a limit, copies.
_STEPS_FROM_A_SUM = 6


def add(context: Context, node: OnnxNode) -> Value | OwnPlaces:
    """Two tensors, or a tensor and a constant, which is a bias; or places among the rows of all examples."""
    items = [context.item(node, 0), context.item(node, 1)]
    for index, item in enumerate(items):
        if isinstance(item, Known) and item.step:
            places = context.tensor(node, 1 - index)
            if context.of_one_example(item, shape_of(places)).array.size > 1:
                raise Refusal("LIP108", "the numbers of the examples meet another axis", MIXES)
            return OwnPlaces(placed(places, context.layout), item.step)
    return _combined(context, node, ONE)


def sub(context: Context, node: OnnxNode) -> Value:
    """As `add`, with the sign of the second operand changed."""
    return _combined(context, node, -ONE)


def _combined(context: Context, node: OnnxNode, sign: Fraction) -> Value:
    """a + sign·b."""
    left, right = context.item(node, 0), context.item(node, 1)
    if isinstance(right, Known):
        return _biased(context, node, context.tensor(node), _signed(right, sign))
    tensor = context.tensor(node, 1)
    if isinstance(left, Known):
        return _biased(context, node, tensor if sign == 1 else scaled(context, node, tensor, sign), left)
    return weighted_sum(context, node, [context.tensor(node), tensor], (ONE, sign))


def _signed(known: Known, sign: Fraction) -> Known:
    if sign == 1:
        return known
    moves = (*known.moves, "negated") if known.sources else ()
    array = known.array if _is_whole(known) else floats(known.array, "the operand")
    return replace(known, array=-array, moves=moves)


def _is_whole(known: Known) -> bool:
    """Whether a constant holds whole numbers, which are trained by nobody."""
    return known.array.dtype.kind == "i"


def _biased(context: Context, node: OnnxNode, operand: Value, known: Known) -> Value:
    """Add a constant that is the same for every example; infinite numbers of a mask become large ones."""
    operand, aligned = fitted(context, node, operand, finite(context, known))
    added, name = tied(aligned), f"{node.name}_shift" if node.reads else node.name
    shape = BiasShape(tuple(added.array.shape))
    return context.parameters.add(BIAS, shape, operand, [("bias", added)], name, frozen=_is_whole(known))


def weighted_sum(
    context: Context, node: OnnxNode, operands: Sequence[Value], weights: tuple[Fraction, ...]
) -> Value:
    """Σ α_i·h_i."""
    check_ranks(operands)
    return context.add(node, SUM, Sum(weights), _one_of_whole_size(context, node, operands))


def _one_of_whole_size(context: Context, node: OnnxNode, operands: Sequence[Value]) -> Sequence[Value]:
    """Copy the first tensor along the axes of the others, where none has the shape of all of them together."""
    shapes = [shape_of(operand) for operand in operands]
    whole = broadcast(shapes)
    return operands if whole in shapes else [widened(context, node, operands[0], whole), *operands[1:]]


def multiply(context: Context, node: OnnxNode) -> Value:
    """Two tensors, or a tensor times a constant number, or times one for each entry of some axes."""
    left, right = context.item(node, 0), context.item(node, 1)
    index, known = (1, left) if isinstance(left, Known) else (0, right)
    if not isinstance(known, Known):
        operands = [context.tensor(node), context.tensor(node, 1)]
        check_ranks(operands)
        return context.add(node, PRODUCT, NoAttributes(), _one_of_whole_size(context, node, operands))
    value = context.tensor(node, index)
    if known.array.size > 1:
        value, factors = fitted(context, node, value, known)
        return factored(context, node, value, tied(factors), frozen=_is_whole(known))
    return scaled(context, node, value, _number(context, known, value))


def divide(context: Context, node: OnnxNode) -> Value:
    """A tensor divided by a constant number, or by one for each entry of some axes."""
    divisor = context.item(node, 1)
    if divisor is None:
        raise Refusal("LIP102", "an operand of Div is missing")
    if not isinstance(divisor, Known):
        by_size = _comes_of_a_reduction(context, node.proto.input[1])
        help_line = "divide by a constant number" if not by_size else DIRECTIONS
        raise Refusal("LIP100", "a division by a tensor is not Lipschitz", help_line)
    if divisor.array.dtype.kind in "iu" and not has_batch(divisor.array):
        raise Refusal("LIP100", "a division of whole numbers jumps", "cast them to float32 first")
    if divisor.array.size > 1:
        return divided(context, node, context.tensor(node), divisor)
    number = _number(context, divisor, context.tensor(node))
    if number == 0:
        raise Refusal("LIP104", "a division by zero")
    return scaled(context, node, context.tensor(node), 1 / number)


def _comes_of_a_reduction(context: Context, name: str) -> bool:
    """Whether a tensor is, as a norm or a deviation is, made of sums, means or maxima over axes."""
    for _ in range(_STEPS_FROM_A_SUM):
        maker = context.makers.get(name)
        if maker is None or maker.op_type.startswith("Reduce"):
            return maker is not None
        name = next((read for read in maker.proto.input if read in context.makers), "")
    return False


def _number(context: Context, known: Known, operand: Value) -> Fraction:
    """Return the one entry of a constant; raises Refusal."""
    context.of_one_example(known, shape_of(operand))
    context.parameters.hold(known)
    return scalar(known)


def negate(context: Context, node: OnnxNode) -> Value:
    """-x."""
    return scaled(context, node, context.tensor(node), -ONE)


def total(context: Context, node: OnnxNode) -> Value:
    """The sum of any number of tensors and constants."""
    return _average(context, node, ONE)


def mean(context: Context, node: OnnxNode) -> Value:
    """The mean of any number of tensors and constants."""
    return _average(context, node, ONE / len(node.proto.input))


def _average(context: Context, node: OnnxNode, weight: Fraction) -> Value:
    """weight·Σ h_i; constants are biases."""
    operands, constants = _sorted_out(context, node)
    value = weighted_sum(context, node, operands, (weight,) * len(operands))
    for known in constants:
        value = _biased(context, node, value, times(known, weight))
    return value


def _sorted_out(context: Context, node: OnnxNode) -> tuple[list[Value], list[Known]]:
    """Return the operands that depend on the example, and those that do not."""
    items = [context.item(node, index) for index in range(len(node.proto.input))]
    tensors = [context.tensor(node, index) for index, item in enumerate(items) if not isinstance(item, Known)]
    return tensors, [item for item in items if isinstance(item, Known)]


# Concatenation and MaxMin


def concat(context: Context, node: OnnxNode) -> Value | OwnPlaces:
    """Along an axis of the example; a maximum beside its minimum is a sort."""
    items = [context.item(node, index) for index in range(len(node.proto.input))]
    if len(items) == 2 and isinstance(items[0], Extreme) and isinstance(items[1], Extreme):
        return _max_min(context, node, items[0], items[1])
    parts = [item if isinstance(item, Known) else context.tensor(node, i) for i, item in enumerate(items)]
    rank = next(len(shape_of(part)) for part in parts if isinstance(part, Value)) + 1
    axis = context.axis(node, node.integer("axis", 1), rank)
    first = parts[0]
    if isinstance(first, Known) and first.copies == 0 and first.array.size and bool((first.array == OWN).all()):
        last = axis == rank - 2 and first.array.ndim == rank and first.array.shape[-1] == 1
        if not last or context.layout != FIRST:
            raise Refusal("LIP108", "the numbers of the examples are joined to other numbers", MIXES)
        return OwnPlaces(joined(context, node, parts[1:], axis))
    return joined(context, node, parts, axis)


def _max_min(context: Context, node: OnnxNode, first: Extreme, second: Extreme) -> Value:
    """[max, min] or [min, max] of the same pairs along an axis: a full sort of an axis of size 2, then moved."""
    same = replace(first, largest=second.largest) == second
    if not same or first.largest == second.largest:
        raise Refusal("LIP110", "a maximum and a minimum of different tensors are not yet supported together")
    rank = len(shape_of(first.base)) + (0 if first.made is None else 1)
    along = context.axis(node, node.integer("axis", 1), rank)
    if first.made not in (None, along):
        raise Refusal("LIP110", "a maximum and a minimum must be concatenated along their new axis")
    ordered = _sorted(context, node, first.base, first.axis, descending=first.largest)
    others = [axis for axis in range(len(shape_of(ordered))) if axis != first.axis]
    moved = permute(context, node, ordered, [*others[:along], first.axis, *others[along:]], "_moved")
    if first.made is not None:
        return moved
    sizes = shape_of(moved)
    return reshape_to(context, node, moved, (*sizes[:along], 2 * sizes[along + 1], *sizes[along + 2 :]), "_joined")


def _sorted(context: Context, node: OnnxNode, operand: Value, axis: int, *, descending: bool) -> Value:
    """Sort along an axis; -sort(-x) is the descending order."""
    if not descending:
        return context.add(node, OP_BY_NAME["fullsort"], FullSort(axis), [operand], "_sort")
    negative = scaled(context, node, operand, -ONE, "_negated")
    ordered = context.add(node, OP_BY_NAME["fullsort"], FullSort(axis), [negative], "_sort")
    return scaled(context, node, ordered, -ONE, "_restored")


def maximum(context: Context, node: OnnxNode) -> Item:
    """The largest of several tensors, or half of a MaxMin."""
    return _extreme(context, node, largest=True)


def minimum(context: Context, node: OnnxNode) -> Item:
    """The smallest of several tensors, or half of a MaxMin."""
    return _extreme(context, node, largest=False)


def _extreme(context: Context, node: OnnxNode, *, largest: bool) -> Item:
    items = [context.item(node, index) for index in range(len(node.proto.input))]
    if (sizes := _of_own_numbers(items)) is not None:
        return sizes
    halved = context.layout == FIRST and _has_other_half(context, node)
    pair = _interleaved(context, node, items) or _halves(context, node, items) if halved else None
    if pair is not None:
        return Extreme(largest, *pair)
    operands, constants = _sorted_out(context, node)
    value, *others = alike(context, node, operands)
    if others:
        value = context.add(node, MAXIMUM if largest else MINIMUM, NoAttributes(), [value, *others])
    for known in constants:
        value = limited(context, node, value, known, largest=largest)
    return value


def _of_own_numbers(items: Sequence[Item | None]) -> Known | None:
    """The numbers of the examples, and what these compute: torch.onnx broadcasts places so, for the sizes."""
    own = [item for item in items if isinstance(item, Known) and of_own(item.array).any()]
    computed = [shape_of(item) for item in items if isinstance(item, Value)]
    if not own or not computed or len(own) + len(computed) < len(items):
        return None
    from_end = {one.array.ndim - one.copies for one in own if one.copies is not None}
    if from_end | {len(shape) + 1 for shape in computed} != from_end or len(from_end) != 1:
        return None
    try:
        wide = np.broadcast_shapes(*(one.array.shape for one in own), *((1, *shape) for shape in computed))
    except ValueError:
        return None
    return Known(np.full(wide, OF_OWN), copies=len(wide) - from_end.pop())


def _interleaved(context: Context, node: OnnxNode, items: Sequence[Item | None]) -> tuple[Value, int] | None:
    """Entries 2i and 2i+1: an axis [n] seen as [n/2, 2]."""
    parts = [item for item in items if isinstance(item, Strided)]
    if len(parts) != 2 or len(items) != 2 or {part.offset for part in parts} != {0, 1}:
        return None
    source, axis = parts[0].source, parts[0].axis
    if (parts[1].source, parts[1].axis) != (source, axis):
        return None
    sizes = shape_of(source)
    paired = (*sizes[:axis], sizes[axis] // 2, 2, *sizes[axis + 1 :])
    return _view(context, node, source, paired), axis + 1


def _halves(context: Context, node: OnnxNode, items: Sequence[Item | None]) -> tuple[Value, int] | None:
    """Entries i and i + n/2: an axis [n] seen as [2, n/2]."""
    found = [context.parts.get(item.name) for item in items if isinstance(item, Value)]
    parts = sorted((part for part in found if part is not None), key=lambda part: part[1].start)
    if len(items) != 2 or len(parts) != 2:
        return None
    (source, low), (other, high) = parts
    size = shape_of(source)[low.axis]
    whole = low.start == 0 and low.stop == high.start == size // 2 and high.stop == size
    if source != other or low.axis != high.axis or not whole or size % 2:
        return None
    sizes, axis = shape_of(source), low.axis
    return _view(context, node, source, (*sizes[:axis], 2, size // 2, *sizes[axis + 1 :])), axis


def _view(context: Context, node: OnnxNode, source: Value, shape: Shape) -> Value:
    """Return a reshaped tensor, the same for the maximum and for the minimum."""
    key = (source.name, shape)
    if key not in context.views:
        context.views[key] = reshape_to(context, node, source, shape, "_pairs")
    return context.views[key]


def extreme_of_axis(context: Context, node: OnnxNode) -> Item:
    """ReduceMax and ReduceMin; over an axis of size 2, with the other beside it, half of a MaxMin."""
    operand, axes = context.tensor(node), reduced_axes(context, node, context.shape(node))
    halved = context.layout == FIRST and _has_other_half(context, node)
    if len(axes) != 1 or shape_of(operand)[axes[0]] != 2 or not halved:
        op = "reduce_max" if node.op_type == "ReduceMax" else "reduce_min"
        return reduction_of(context, node, operand, op)
    made = axes[0] if node.integer("keepdims", 1) else None
    return Extreme(node.op_type == "ReduceMax", operand, axes[0], made)


def _has_other_half(context: Context, node: OnnxNode) -> bool:
    """Whether a minimum of the same tensor goes to the same concatenation as this maximum, or the reverse."""
    joined = _concatenation(context, node)
    others = [reader for reader in context.readers[node.proto.input[0]] if reader.op_type != node.op_type]
    halves = [other for other in others if other.op_type in ("ReduceMax", "ReduceMin", "Max", "Min")]
    return joined is not None and any(_concatenation(context, half) == joined for half in halves)


def _concatenation(context: Context, node: OnnxNode) -> tuple[str, ...] | None:
    """Return the outputs of the Concat of two that is all that reads a node, with a new axis or as it is."""
    last = context.follower(node, "Unsqueeze") or node
    found = context.follower(last, "Concat")
    return found.outputs if found is not None and len(found.proto.input) == 2 else None


def unsqueezed(context: Context, node: OnnxNode) -> Item:
    """An axis of size 1; on half of a MaxMin, where the two halves will be stacked."""
    item = context.item(node, 0)
    if not isinstance(item, Extreme):
        return unsqueeze(context, node)
    made = [axis - 1 for axis in made_axes(context, node, len(shape_of(item.base)))]
    if item.made is not None or len(made) != 1 or made[0] < 0:
        raise Refusal("LIP110", "a maximum or minimum can get one new axis to be stacked along")
    return replace(item, made=made[0])


def top_k(context: Context, node: OnnxNode) -> Value | list[Value]:
    """The largest or smallest entries of an axis, in order: a part of a full sort; and where they stood."""
    operand = context.tensor(node)
    axis = context.axis(node, node.integer("axis", -1), len(shape_of(operand)) + 1)
    known = context.known(node, 1, "k")
    count = node.integer("k", 0) if known is None else integers(known, "k")[0]
    if not node.integer("sorted", 1):
        raise Refusal("LIP110", "TopK with sorted=0 returns entries in an undefined order", "sort them")
    if not 1 <= count <= shape_of(operand)[axis]:
        raise Refusal("LIP102", f"an axis of size {shape_of(operand)[axis]} does not have {count} entries")
    descending = bool(node.integer("largest", 1))
    ordered = _sorted(context, node, operand, axis, descending=descending)
    found = cut(context, node, ordered, Slice(axis, 0, count), "_first")
    is_read = len(node.outputs) > 1 and bool(context.readers.get(node.outputs[1]))
    if not is_read or axis != len(shape_of(ordered)) - 1 or context.layout.axis:
        return found
    try:
        return [found, places_in_order(context, node, operand, count, descending=descending)]
    except Refusal:
        return found


IMPORTERS: Mapping[str, Importer] = {
    "Add": add,
    "Concat": concat,
    "Div": divide,
    "Max": maximum,
    "Mean": mean,
    "Min": minimum,
    "Mul": multiply,
    "Neg": negate,
    "ReduceMax": extreme_of_axis,
    "ReduceMin": extreme_of_axis,
    "Sub": sub,
    "Sum": total,
    "TopK": top_k,
    "Unsqueeze": of_places(unsqueezed),
}
