"""Importers of operators that move entries about or cut some off. The batch axis stays where it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from math import prod

import numpy as np
from onnx import TensorProto

from lipcompile.core.graph import Value
from lipcompile.core.record import NoAttributes, Shape
from lipcompile.diagnostics import Refusal
from lipcompile.frontends.onnx.context import MIXES, Context, Importer, shape_of
from lipcompile.frontends.onnx.layout import FIRST, Placed, permuted, placed, reshaped
from lipcompile.frontends.onnx.node import OnnxNode
from lipcompile.frontends.onnx.refused import seeded
from lipcompile.frontends.onnx.sizes import BATCH, has_batch, is_formal, multiple, shown
from lipcompile.frontends.onnx.values import Item, Known, OwnPlaces, Strided, integers, is_floating, scalar
from lipcompile.ops.resample.rules import Gather
from lipcompile.ops.shape.rules import Dropout, Reshape, Slice, Transpose
from lipcompile.ops.table import OP_BY_NAME

# What exporters write for `until the end`.
_ENDLESS = 2**31 - 1


def identity(context: Context, node: OnnxNode) -> Item | None:
    """The operand itself."""
    return context.item(node, 0)


def reshape_to(context: Context, node: OnnxNode, operand: Value, shape: Shape, suffix: str = "") -> Value:
    """Add what turns the operand into this shape: nothing, a flatten or a reshape."""
    if operand.shape == shape:
        return operand
    if len(shape) == 1:
        return context.add(node, OP_BY_NAME["flatten"], NoAttributes(), [operand], suffix)
    return context.add(node, OP_BY_NAME["reshape"], Reshape(shape), [operand], suffix)


def permute(context: Context, node: OnnxNode, operand: Value, axes: Sequence[int], suffix: str = "") -> Value:
    """Add a permutation of the example's axes, unless it changes nothing."""
    if tuple(axes) == tuple(range(len(axes))):
        return operand
    return context.add(node, OP_BY_NAME["transpose"], Transpose(tuple(axes)), [operand], suffix)


def _with_sizes(context: Context, node: OnnxNode, target: Sequence[int]) -> Placed | Value:
    """Give a tensor the sizes of the file, in which the batch may be anywhere."""
    item = context.item(node, 0)
    operand, layout = (item.value, item.layout) if isinstance(item, Placed) else (context.tensor(node), FIRST)
    shape, new = reshaped(layout, shape_of(operand), target, context.batch)
    return placed(reshape_to(context, node, operand, shape), new)


def sizes_of(context: Context, node: OnnxNode) -> tuple[int, ...]:
    """Return the sizes of the first operand in the file, the batch's as a formal number."""
    item = context.item(node, 0)
    if isinstance(item, Placed):
        return item.layout.sizes(shape_of(item.value))
    return FIRST.sizes(context.shape(node))


def flatten(context: Context, node: OnnxNode) -> Placed | Value:
    """Two axes: all before `axis` and all from it on. The batch may be in the first, before or behind others."""
    sizes = sizes_of(context, node)
    axis = node.integer("axis", 1)
    axis = axis + len(sizes) if axis < 0 else axis
    if not 0 <= axis <= len(sizes):
        raise Refusal("LIP102", f"axis {axis} does not exist among {len(sizes)} axes")
    return _with_sizes(context, node, (prod(sizes[:axis]), prod(sizes[axis:])))


def reshape(context: Context, node: OnnxNode) -> Placed | Value:
    """A constant shape: 0 copies a size (unless allowzero), -1 is what remains."""
    sizes, target = sizes_of(context, node), context.known(node, 1, "the shape")
    if target is None:
        raise Refusal("LIP102", "Reshape without a shape")
    wanted, copies = integers(target, "the shape"), not node.integer("allowzero", 0)
    if copies and any(size == 0 and axis >= len(sizes) for axis, size in enumerate(wanted)):
        raise Refusal("LIP102", f"the shape {shown(wanted)} copies an axis that {shown(sizes)} does not have")
    full = [sizes[axis] if copies and size == 0 else size for axis, size in enumerate(wanted)]
    return _with_sizes(context, node, full)


def _axes(context: Context, node: OnnxNode, index: int) -> tuple[int, ...] | None:
    """Return axes given as an operand or, in older operator sets, as an attribute."""
    operand = context.known(node, index, "the axes")
    return node.integers("axes") if operand is None else integers(operand, "the axes")


def squeeze(context: Context, node: OnnxNode) -> Placed | Value:
    """Drop axes of size 1, which must be named: without names, a batch of one would lose its axis."""
    sizes, axes = sizes_of(context, node), _axes(context, node, 1)
    if axes is None:
        raise Refusal(
            "LIP108", "Squeeze without axes removes the batch axis of a batch of one example", "name the axes"
        )
    if any(-len(sizes) <= axis < len(sizes) and multiple(sizes[axis]) for axis in axes) and context.batch != 1:
        raise Refusal("LIP108", "Squeeze removes the batch axis", MIXES)
    if any(not -len(sizes) <= axis < len(sizes) or sizes[axis] not in (1, BATCH) for axis in axes):
        raise Refusal("LIP102", f"axes {sorted(axes)} of {shown(sizes)} are not all of size 1")
    dropped = {axis % len(sizes) for axis in axes}
    return _with_sizes(context, node, [size for axis, size in enumerate(sizes) if axis not in dropped])


def made_axes(context: Context, node: OnnxNode, rank: int) -> set[int]:
    """Return the file's axes that an Unsqueeze of `rank` axes makes, counted in its result."""
    axes = _axes(context, node, 1)
    if axes is None:
        raise Refusal("LIP102", "Unsqueeze without axes")
    count = rank + len(axes)
    if any(not -count <= axis < count for axis in axes):
        raise Refusal("LIP102", f"axes {list(axes)} do not exist among {count} axes")
    made = {axis % count for axis in axes}
    if len(made) < len(axes):
        raise Refusal("LIP102", f"Unsqueeze names an axis twice: {list(axes)}")
    return made


def unsqueeze(context: Context, node: OnnxNode) -> Placed | Value:
    """Make axes of size 1."""
    sizes = sizes_of(context, node)
    made, rest = made_axes(context, node, len(sizes)), iter(sizes)
    target = [1 if axis in made else next(rest) for axis in range(len(sizes) + len(made))]
    return _with_sizes(context, node, target)


def transpose(context: Context, node: OnnxNode) -> Placed | Value:
    """A permutation of the axes, of which one is the batch."""
    item, rank = context.item(node, 0), len(sizes_of(context, node))
    order = node.integers("perm") or tuple(reversed(range(rank)))
    if sorted(order) != list(range(rank)):
        raise Refusal("LIP102", f"{list(order)} is not a permutation of {rank} axes")
    operand, layout = (item.value, item.layout) if isinstance(item, Placed) else (context.tensor(node), FIRST)
    axes, new = permuted(layout, order, context.batch)
    return placed(permute(context, node, operand, axes), new)


def shape(context: Context, node: OnnxNode) -> Known:
    """The sizes, the batch's as a formal number."""
    sizes = sizes_of(context, node)
    end = node.attributes.get("end")
    return Known(np.array(sizes[slice(node.integer("start", 0), end)], dtype=np.int64))


def size(context: Context, node: OnnxNode) -> Known:
    """The number of entries, a multiple of the batch's size."""
    entries = prod(sizes_of(context, node))
    if not is_formal(entries):
        raise Refusal("LIP102", "Size is not supported for examples with more than 2^20 entries")
    return Known(np.array(entries, dtype=np.int64))


def is_copy(node: OnnxNode) -> bool:
    """Whether a node hands its operand on, but for the precision of floating numbers."""
    floating = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16)
    return node.op_type == "Identity" or (node.op_type == "Cast" and node.integer("to", 0) in floating)


def cast(context: Context, node: OnnxNode) -> Value:
    """Between floating precisions, for the emitted module computes in one of its own; between kinds of tokens."""
    whole = (TensorProto.INT32, TensorProto.INT64)
    if context.builder.holds_tokens(context.tensor(node)):
        if node.integer("to", 0) in whole:
            return context.tensor(node)
        numbers = context.numbers(context.tensor(node))
        if not is_copy(node) or context.builder.holds_tokens(numbers):
            raise Refusal("LIP204", "tokens are cast to numbers", "look them up in an embedding: Gather(table, x)")
        return numbers
    if not is_copy(node):
        raise Refusal("LIP100", "a cast to integers or booleans is discontinuous", "stay in float32")
    return context.tensor(node)


def cast_like(context: Context, node: OnnxNode) -> Item:
    """A tensor or constant in the precision of another one: the emitted module has one precision for all."""
    item, model = context.item(node, 0), context.item(node, 1)
    whole = isinstance(model, Value) and context.builder.holds_tokens(model)
    if whole or (isinstance(model, Known) and not is_floating(model.array)) or item is None:
        raise Refusal("LIP100", "a cast to integers or booleans is discontinuous", "stay in float32")
    if not isinstance(item, Known) or is_floating(item.array) or has_batch(item.array):
        return item
    return replace(item, array=item.array.astype("float64"))


# Parts


def cut(context: Context, node: OnnxNode, operand: Value, part: Slice, suffix: str = "") -> Value:
    """Add a slice, unless it is the whole axis."""
    if part.start == 0 and part.stop == shape_of(operand)[part.axis]:
        return operand
    value = context.add(node, OP_BY_NAME["slice"], part, [operand], suffix)
    context.parts[value.name] = (operand, part)
    return value


def split(context: Context, node: OnnxNode) -> list[Item]:
    """Consecutive parts along an axis."""
    operand = context.tensor(node)
    axis = context.axis(node, node.integer("axis", 0), len(shape_of(operand)) + 1)
    sizes = _part_sizes(context, node, shape_of(operand)[axis])
    stops = [sum(sizes[: index + 1]) for index in range(len(sizes))]
    parts = [Slice(axis, stop - size, stop) for size, stop in zip(sizes, stops, strict=True)]
    return [cut(context, node, operand, part, f"_{index}") for index, part in enumerate(parts)]


def _part_sizes(context: Context, node: OnnxNode, size: int) -> tuple[int, ...]:
    operand = context.known(node, 1, "the sizes of the parts")
    given = node.integers("split") if operand is None else integers(operand, "the sizes of the parts")
    count = len(node.outputs)
    width = -(-size // count)
    sizes = given or tuple(min(width, size - index * width) for index in range(count))
    if sum(sizes) == size and len(sizes) == count and min(sizes) == 0:
        raise Refusal("LIP110", "Split with an empty part is not yet supported", "remove the empty part")
    if sum(sizes) != size or len(sizes) != count or min(sizes) < 1:
        raise Refusal("LIP102", f"an axis of size {size} does not split into {count} parts of sizes {list(sizes)}")
    return sizes


def slice_(context: Context, node: OnnxNode) -> Item:
    """Constant bounds on axes of the example; half of the entries by step 2 may become a MaxMin."""
    operand = context.tensor(node)
    bounds = list(_bounds(context, node))
    rank = context.layout.rank(shape_of(operand))
    if len({axis % rank for axis, *_ in bounds}) != len(bounds):
        raise Refusal("LIP102", "Slice names an axis twice")
    for axis, start, stop, step in bounds:
        along = _along(context, node, operand, axis, start, stop, step)
        if along is None:
            continue
        size = shape_of(operand)[along]
        alternating = step == 2 and len(bounds) == 1 and start in (0, 1) and stop >= size and size % 2 == 0
        if alternating and context.layout == FIRST and _is_compared(context, node):
            return Strided(operand, along, start)
        if step == 1:
            operand = cut(context, node, operand, Slice(along, _clamped(start, size), _clamped(stop, size)))
        else:
            operand = _in_steps(context, node, operand, along, slice(start, stop, step))
    return operand


def _is_compared(context: Context, node: OnnxNode) -> bool:
    """Whether only maxima and minima read a slice: it is a part of a MaxMin, or will be refused as none."""
    readers = context.readers.get(node.outputs[0], ())
    seen = node.outputs[0] in context.outputs
    return bool(readers) and not seen and all(reader.op_type in ("Max", "Min") for reader in readers)


def _in_steps(context: Context, node: OnnxNode, operand: Value, axis: int, part: slice) -> Value:
    """Add a selection of every so manieth entry, backwards for negative steps."""
    if part.step == 0:
        raise Refusal("LIP102", "Slice with a step of 0")
    places = tuple(range(*part.indices(shape_of(operand)[axis])))
    if not places:
        raise Refusal("LIP102", f"Slice selects no entry of an axis of size {shape_of(operand)[axis]}")
    return context.add(node, OP_BY_NAME["gather"], Gather(places, axis), [operand])


def _along(
    context: Context, node: OnnxNode, operand: Value, axis: int, start: int, stop: int, step: int
) -> int | None:
    """Return the example's axis, None for a slice that keeps the whole batch."""
    rank = context.layout.rank(shape_of(operand))
    if (
        axis in (context.layout.place, context.layout.place - rank)
        and start == 0
        and step == 1
        and stop >= _ENDLESS
    ):
        return None
    return context.axis(node, axis, len(shape_of(operand)) + 1)


def _clamped(bound: int, size: int) -> int:
    return min(max(bound + size if bound < 0 else bound, 0), size)


def _bounds(context: Context, node: OnnxNode) -> Iterator[tuple[int, int, int, int]]:
    """Yield (axis, start, stop, step), from operands or, in older operator sets, from attributes."""
    lists = [node.integers(name) for name in ("starts", "ends", "axes", "steps")]
    for index, what in enumerate(("starts", "ends", "axes", "steps")):
        known = context.known(node, index + 1, what)
        if known is not None:
            lists[index] = integers(known, what)
    starts, stops, axes, steps = lists
    if starts is None or stops is None:
        raise Refusal("LIP102", "Slice without bounds")
    if any(map(is_formal, (*starts, *stops))):
        raise Refusal("LIP108", "the bounds of Slice depend on the batch size", MIXES)
    axes = axes if axes is not None else tuple(range(len(starts)))
    steps = steps if steps is not None else (1,) * len(starts)
    if not len(starts) == len(stops) == len(axes) == len(steps):
        raise Refusal("LIP102", "the bounds of Slice do not fit each other")
    yield from zip(axes, starts, stops, steps, strict=True)


def drop_probability(context: Context, node: OnnxNode) -> Fraction:
    """Return the constant ratio of a Dropout in training mode, 0 for inference; raises Refusal."""
    ratio, training = context.known(node, 1, "the ratio"), context.known(node, 2, "training_mode")
    if training is None or not training.array.reshape(-1).any():
        return Fraction(0)
    if "seed" in node.attributes:
        raise seeded(node.op_type)
    return Fraction(1, 2) if ratio is None else scalar(ratio)


def dropout(context: Context, node: OnnxNode) -> Value:
    """Identity for inference; in training mode, dropout with a constant ratio."""
    operand, probability = context.tensor(node), drop_probability(context, node)
    return context.add(node, OP_BY_NAME["dropout"], Dropout(probability), [operand]) if probability else operand


def of_places(importer: Importer) -> Importer:
    """Return the importer that moves places among the rows of all examples as it moves a tensor."""

    def moved(context: Context, node: OnnxNode) -> Item | Sequence[Item | None] | None:
        item, name = context.item(node, 0), node.proto.input[0] if node.proto.input else ""
        if not isinstance(item, OwnPlaces) or not item.size:
            return importer(context, node)
        context.items[name] = item.places
        try:
            made = importer(context, node)
        finally:
            context.items[name] = item
        return OwnPlaces(made, item.size) if isinstance(made, Value | Placed) else made

    return moved


IMPORTERS: Mapping[str, Importer] = {
    "Cast": cast,
    "CastLike": cast_like,
    "Dropout": dropout,
    "Flatten": of_places(flatten),
    "Identity": identity,
    "Reshape": of_places(reshape),
    "Shape": shape,
    "Size": size,
    "Slice": slice_,
    "Split": split,
    "Squeeze": of_places(squeeze),
    "Transpose": of_places(transpose),
}
