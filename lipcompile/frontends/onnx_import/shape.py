"""Importers of operators that move entries about or cut some off. The batch axis stays where it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from math import prod

from lipcompile.diagnostics import Refusal
from lipcompile.frontends.onnx_import.context import MIXES, Context, shape_of
from lipcompile.frontends.onnx_import.node import OnnxNode
from lipcompile.frontends.onnx_import.values import BATCH, Item, Known, Strided, integers, scalar
from lipcompile.graph import Value
from lipcompile.ops import OP_BY_NAME
from lipcompile.ops.record import NoAttributes, Shape
from lipcompile.ops.shape import Dropout, Reshape, Slice, Transpose

# What exporters write for `until the end`.
_ENDLESS = 2**31 - 1


def identity(context: Context, node: OnnxNode) -> Item | None:
    """The operand itself."""
    return context.item(node, 0)


def reshape_to(context: Context, node: OnnxNode, operand: Value, shape: Shape, suffix: str = "") -> Value:
    """Add what turns the operand into this shape: nothing, a flatten or a reshape."""
    if shape == shape_of(operand):
        return operand
    if len(shape) == 1:
        return context.add(node, OP_BY_NAME["flatten"], NoAttributes(), [operand], suffix)
    return context.add(node, OP_BY_NAME["reshape"], Reshape(shape), [operand], suffix)


def permute(context: Context, node: OnnxNode, operand: Value, axes: Sequence[int], suffix: str = "") -> Value:
    """Add a permutation of the example's axes, unless it changes nothing."""
    if tuple(axes) == tuple(range(len(axes))):
        return operand
    return context.add(node, OP_BY_NAME["transpose"], Transpose(tuple(axes)), [operand], suffix)


def flatten(context: Context, node: OnnxNode) -> Value:
    """All axes from `axis` on become one; those before it join the batch, so they may only be 1."""
    example = context.shape(node)
    rank = len(example) + 1
    axis = node.integer("axis", 1)
    axis = axis + rank if axis < 0 else axis
    if axis < 1 or prod(example[: axis - 1]) != 1:
        raise Refusal("LIP108", f"Flatten with axis={axis} merges the batch axis with others", "use axis=1")
    return reshape_to(context, node, context.tensor(node), (prod(example),))


def reshape(context: Context, node: OnnxNode) -> Value:
    """A constant shape that keeps axis 0: 0 copies a size (unless allowzero), -1 is what remains."""
    operand = context.tensor(node)
    target = context.known(node, 1, "the shape")
    if target is None:
        raise Refusal("LIP102", "Reshape without a shape")
    example = shape_of(operand)
    wanted = _sizes(integers(target, "the shape"), example, copies=not node.integer("allowzero", 0))
    return reshape_to(context, node, operand, _within_example(context, wanted, example))


def _sizes(target: Sequence[int], example: Shape, *, copies: bool) -> tuple[int, ...]:
    """Replace zeros by the sizes they copy."""
    full = (BATCH, *example)
    if copies and any(size == 0 and axis >= len(full) for axis, size in enumerate(target)):
        raise Refusal("LIP102", f"the shape {list(target)} copies an axis that {list(example)} does not have")
    return tuple(full[axis] if copies and size == 0 else size for axis, size in enumerate(target))


def _within_example(context: Context, wanted: Sequence[int], example: Shape) -> Shape:
    """Return the example's part of a new shape; refuse one that moves entries from example to example."""
    entries, rest = prod(example), tuple(wanted[1:])
    keeps = bool(wanted) and (context.is_batch(wanted[0]) or (wanted[0] == -1 and prod(rest) == entries))
    if not keeps or any(size == BATCH for size in rest):
        shown = ["batch" if size == BATCH else size for size in wanted]
        raise Refusal(
            "LIP108", f"reshaping {['batch', *example]} to {shown} merges or moves the batch axis", MIXES
        )
    known = prod(size for size in rest if size != -1)
    fits = entries % known == 0 if -1 in rest and known > 0 else entries == known
    if rest.count(-1) > 1 or not fits or any(size < 1 and size != -1 for size in rest):
        raise Refusal("LIP102", f"{entries} entries of an example do not fit the shape {list(rest)}")
    return tuple(entries // known if size == -1 else size for size in rest)


def _axes(context: Context, node: OnnxNode, index: int) -> tuple[int, ...] | None:
    """Return axes given as an operand or, in older operator sets, as an attribute."""
    operand = context.known(node, index, "the axes")
    return node.integers("axes") if operand is None else integers(operand, "the axes")


def squeeze(context: Context, node: OnnxNode) -> Value:
    """Drop axes of size 1, which must be named: without names, a batch of one would lose its axis."""
    example, axes = context.shape(node), _axes(context, node, 1)
    if axes is None:
        raise Refusal("LIP108", "Squeeze without axes drops the batch axis of a batch of one", "name the axes")
    dropped = {context.axis(node, axis, len(example) + 1) for axis in axes}
    if any(example[axis] != 1 for axis in dropped):
        raise Refusal("LIP102", f"axes {sorted(axes)} of {['batch', *example]} are not all of size 1")
    shape = tuple(size for axis, size in enumerate(example) if axis not in dropped)
    return reshape_to(context, node, context.tensor(node), shape)


def made_axes(context: Context, node: OnnxNode, rank: int) -> set[int]:
    """Return the axes of the example that an Unsqueeze of `rank` axes makes, counted in its result."""
    axes = _axes(context, node, 1)
    if axes is None:
        raise Refusal("LIP102", "Unsqueeze without axes")
    return {context.axis(node, axis, rank + len(axes)) for axis in axes}


def unsqueeze(context: Context, node: OnnxNode) -> Value:
    """Make axes of size 1."""
    sizes = iter(context.shape(node))
    made = made_axes(context, node, len(context.shape(node)) + 1)
    count = len(context.shape(node)) + len(made)
    shape = tuple(1 if axis in made else next(sizes) for axis in range(count))
    return reshape_to(context, node, context.tensor(node), shape)


def transpose(context: Context, node: OnnxNode) -> Value:
    """A permutation that leaves axis 0 alone."""
    rank = len(context.shape(node)) + 1
    order = node.integers("perm") or tuple(reversed(range(rank)))
    if sorted(order) != list(range(rank)):
        raise Refusal("LIP102", f"{list(order)} is no permutation of {rank} axes")
    if order[0] != 0:
        raise Refusal("LIP108", f"the permutation {list(order)} moves the batch axis", MIXES)
    return permute(context, node, context.tensor(node), [axis - 1 for axis in order[1:]])


def shape(context: Context, node: OnnxNode) -> Known:
    """The sizes, the batch's as a marker."""
    import numpy as np

    sizes = (BATCH, *context.shape(node))
    end = node.attributes.get("end")
    return Known(np.array(sizes[slice(node.integer("start", 0), end)], dtype=np.int64))


def cast(context: Context, node: OnnxNode) -> Value:
    """Between single and double precision."""
    from onnx import TensorProto

    if node.integer("to", 0) not in (TensorProto.FLOAT, TensorProto.DOUBLE):
        raise Refusal("LIP110", "casts to other types than float and double are not Lipschitz", "stay in float32")
    return context.tensor(node)


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
    if sum(sizes) != size or len(sizes) != count or min(sizes) < 1:
        raise Refusal("LIP102", f"an axis of size {size} does not split into {count} parts of sizes {list(sizes)}")
    return sizes


def slice_(context: Context, node: OnnxNode) -> Item:
    """Constant bounds on axes of the example, step 1; half of the entries by step 2 may become a MaxMin."""
    operand = context.tensor(node)
    bounds = list(_bounds(context, node))
    rank = len(shape_of(operand)) + 1
    if len({axis % rank for axis, *_ in bounds}) != len(bounds):
        raise Refusal("LIP102", "Slice names an axis twice")
    for axis, start, stop, step in bounds:
        along = _along(context, node, operand, axis, start, stop, step)
        if along is None:
            continue
        size = shape_of(operand)[along]
        if step == 2 and len(bounds) == 1 and start in (0, 1) and stop >= size and size % 2 == 0:
            return Strided(operand, along, start)
        if step != 1:
            raise Refusal("LIP110", f"slices with step {step} are not yet supported", "use step 1")
        part = Slice(along, _clamped(start, size), _clamped(stop, size))
        operand = cut(context, node, operand, part)
        if operand.shape is None:
            return operand
    return operand


def _along(
    context: Context, node: OnnxNode, operand: Value, axis: int, start: int, stop: int, step: int
) -> int | None:
    """Return the example's axis, None for a slice that keeps the whole batch."""
    rank = len(shape_of(operand)) + 1
    if axis in (0, -rank) and start == 0 and step == 1 and stop >= _ENDLESS:
        return None
    return context.axis(node, axis, rank)


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
    if BATCH in (*starts, *stops):
        raise Refusal("LIP108", "Slice has the batch size as a bound", MIXES)
    axes = axes if axes is not None else tuple(range(len(starts)))
    steps = steps if steps is not None else (1,) * len(starts)
    if not len(starts) == len(stops) == len(axes) == len(steps):
        raise Refusal("LIP102", "the bounds of Slice do not fit each other")
    yield from zip(axes, starts, stops, steps, strict=True)


def dropout(context: Context, node: OnnxNode) -> Value:
    """Identity for inference; in training mode, dropout with a constant ratio."""
    ratio, training = context.known(node, 1, "the ratio"), context.known(node, 2, "training_mode")
    operand = context.tensor(node)
    if training is None or not training.array.reshape(-1).any():
        return operand
    probability = Fraction(1, 2) if ratio is None else scalar(ratio)
    return context.add(node, OP_BY_NAME["dropout"], Dropout(probability), [operand])
