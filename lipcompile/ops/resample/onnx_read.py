"""Importers of operators that copy or rearrange entries. The batch axis stays where it is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lipcompile.core.graph import Value
from lipcompile.core.record import NoAttributes, Shape
from lipcompile.diagnostics import Refusal
from lipcompile.frontends.onnx.constants import plus_entries, real, times_entries
from lipcompile.frontends.onnx.context import MIXES, Context, Importer, shape_of
from lipcompile.frontends.onnx.file.memory import expect_array
from lipcompile.frontends.onnx.layout import FIRST, IN_FIRST, Layout, Placed, unplaced
from lipcompile.frontends.onnx.node import OnnxNode
from lipcompile.frontends.onnx.sizes import OWN, is_formal, multiple, shown
from lipcompile.frontends.onnx.values import Known, OwnPlaces, floats, integers, scalar
from lipcompile.ops.counting import Mode
from lipcompile.ops.embedding.rules import Embedding
from lipcompile.ops.merge.rules import MATMUL, SUM, Sum
from lipcompile.ops.pointwise.onnx_read import from_the_end, one_hot, rows_at
from lipcompile.ops.resample.rules import Expand, Gather, Pad
from lipcompile.ops.shape.onnx_read import cut, permute, reshape_to
from lipcompile.ops.shape.rules import Block, Slice
from lipcompile.ops.table import OP_BY_NAME

Array = NDArray[Any]
Pairs = tuple[tuple[int, int], ...]
_PADDING: Mapping[str, Mode] = {"constant": "zeros", "reflect": "reflect", "edge": "replicate", "wrap": "circular"}


def pad(context: Context, node: OnnxNode) -> Value:
    """A number, or reflected, repeated or wrapped entries around the axes of an example; negative sides cut."""
    operand, mode = context.tensor(node), node.text("mode", "constant")
    layout, example = context.layout, shape_of(operand)
    sides = _sides(context, node, layout.rank(example))
    of_batch, merged = sides[layout.place], ((0, 0),) * (layout.outer + layout.inner)
    sides = (*sides[: layout.place], *merged, *sides[layout.place + 1 :])
    filled = _filling(context, node) if mode == "constant" else Fraction(0)
    if mode not in _PADDING:
        raise Refusal("LIP102", f"Pad has no mode {mode}")
    if of_batch != (0, 0):
        raise Refusal("LIP108", "Pad adds examples to the batch", MIXES)
    operand = _cropped(context, node, operand, sides)
    around = tuple((max(low, 0), max(high, 0)) for low, high in sides)
    if not any(map(any, around)):
        return operand
    return _framed(context, node, operand, around, _PADDING[mode], filled)


def _framed(
    context: Context, node: OnnxNode, operand: Value, around: Pairs, mode: Mode, filled: Fraction
) -> Value:
    """Pad all axes: channels are padded as an axis of an image of one channel."""
    first, *spatial = around
    if first == (0, 0) and spatial:
        padded = context.add(node, OP_BY_NAME["pad"], Pad(tuple(spatial), mode), [operand])
    else:
        apart = reshape_to(context, node, operand, (1, *shape_of(operand)), "_apart")
        padded = context.add(node, OP_BY_NAME["pad"], Pad(around, mode), [apart])
        padded = reshape_to(context, node, padded, shape_of(padded)[1:], "_whole")
    if not filled:
        return padded
    return plus_entries(context, node, padded, _frame(shape_of(padded), around, filled), "_filled")


def _filling(context: Context, node: OnnxNode) -> Fraction:
    """Return the number to pad with: an attribute in old operator sets, an operand in new ones."""
    known = context.known(node, 2, "the padding value")
    if known is not None and not math.isfinite(float(known.array.reshape(-1)[0])):
        raise Refusal(
            "LIP104", "the padding value is not finite", "pad with a finite number, or use a smaller window"
        )
    if known is None:
        return node.number("value", Fraction(0))
    context.parameters.hold(known)
    return scalar(known)


def _cropped(context: Context, node: OnnxNode, operand: Value, sides: Pairs) -> Value:
    """Cut off what negative sides take away."""
    for axis, ((low, high), size) in enumerate(zip(sides, shape_of(operand), strict=True)):
        part = Slice(axis, max(-low, 0), size + min(high, 0))
        if part.start >= part.stop:
            raise Refusal("LIP102", f"Pad removes the whole axis of size {size}")
        operand = cut(context, node, operand, part, f"_cut{axis}")
    return operand


def _frame(shape: Shape, around: Pairs, filled: Fraction) -> Array:
    """Return a number at the entries that padding has made, and 0 inside."""
    expect_array(shape)
    frame = np.full(shape, float(filled), np.float32)
    frame[tuple(slice(low, size - high) for (low, high), size in zip(around, shape, strict=True))] = 0
    return frame


def _sides(context: Context, node: OnnxNode, rank: int) -> Pairs:
    known, named = context.known(node, 1, "the padding"), context.known(node, 3, "the axes")
    pads = node.integers("pads") if known is None else integers(known, "the padding")
    axes = tuple(range(rank)) if named is None else integers(named, "the axes")
    if pads is None or len(pads) != 2 * len(axes) or any(not -rank <= axis < rank for axis in axes):
        raise Refusal("LIP102", f"Pad needs two integers for each axis, not {list(pads or ())}")
    sides = [(0, 0)] * rank
    for index, axis in enumerate(axes):
        sides[axis % rank] = (pads[index], pads[index + len(axes)])
    return tuple(sides)


def gather(context: Context, node: OnnxNode) -> Value:
    """Constant indices along an axis of the example (a run of them is a slice), or rows of a table by tokens."""
    chosen = context.item(node, 1)
    if isinstance(chosen, OwnPlaces) and chosen.size and node.integer("axis", 0) == 0:
        return _rows_of_all(context, node, chosen)
    if isinstance(context.item(node, 0), Known):
        return _embedding(context, node)
    operand, indices = context.tensor(node), context.known(node, 1, "the indices")
    axis = context.axis(node, node.integer("axis", 0), len(shape_of(operand)) + 1)
    size = shape_of(operand)[axis]
    found = tuple(_index(index, size) for index in integers(indices, "the indices")) if indices else ()
    if indices is None or not found:
        raise Refusal("LIP102", "Gather selects no entry")
    if found == tuple(range(found[0], found[0] + len(found))):
        value = cut(context, node, operand, Slice(axis, found[0], found[-1] + 1))
    else:
        value = context.add(node, OP_BY_NAME["gather"], Gather(found, axis), [operand])
    if indices.array.ndim == 1:
        return value
    taken, shape = tuple(int(size) for size in indices.array.shape), shape_of(value)
    context.resized(axis, len(taken) - 1)
    return reshape_to(context, node, value, (*shape[:axis], *taken, *shape[axis + 1 :]), "_entry")


def gather_nd(context: Context, node: OnnxNode) -> Value:
    """Constant places among the first axes, which become one for it; or one place that each example computes."""
    chosen = context.item(node, 1)
    if isinstance(chosen, OwnPlaces) and chosen.size:
        return _rows_of_all(context, node, chosen)
    if isinstance(chosen, OwnPlaces):
        return _rows_of_own(context, node, unplaced(chosen.places))
    operand, places = context.tensor(node), context.known(node, 1, "the places")
    if places is None or places.array.ndim == 0 or node.integer("batch_dims", 0):
        raise Refusal("LIP110", "GatherND of places for each example is not yet supported", "gather whole slices")
    layout, own = context.layout, context.layout == FIRST and _are_of_own_example(places)
    if own:
        places = replace(places, array=places.array[0, ..., 1:], copies=None)
        if places.array.shape == (0,):
            return operand
    integers(places, "the places")
    depth, taken, example = places.array.shape[-1], places.array.shape[:-1], shape_of(operand)
    if not own and (layout.outer or layout.inner or layout.axis < depth):
        raise Refusal("LIP108", "GatherND acts on the batch axis: it mixes examples", MIXES)
    rows = _flat(places.array.reshape(-1, depth).T, example[:depth])
    context.resized(0, len(taken) - depth)
    found = _picked(context, node, operand, (int(np.prod(example[:depth])), *example[depth:]), rows)
    return reshape_to(context, node, found, (*map(int, taken), *example[depth:]), "_entry")


def _rows_of_own(context: Context, node: OnnxNode, places: Value) -> Value:
    """Rows of each example at whole numbers [..., 1] that it computes: these, one hot, times the rows."""
    if context.layout != FIRST:
        raise Refusal("LIP108", "GatherND acts on the batch axis: it mixes examples", MIXES)
    operand = context.tensor(node)
    (*taken, depth), (entries, *row) = shape_of(places), shape_of(operand)
    if depth != 1 or node.integer("batch_dims", 0) or context.builder.holds_tokens(operand):
        raise Refusal(
            "LIP110", "GatherND of several places for each example is not yet supported", "take whole rows"
        )
    wanted = reshape_to(context, node, places, (math.prod(taken),), "_places")
    found = _rows_at_places(context, node, operand, from_the_end(context, node, wanted, entries))
    return reshape_to(context, node, found, (*taken, *row), "_entry")


def _rows_at_places(context: Context, node: OnnxNode, operand: Value, places: Value) -> Value:
    """Rows of an example at whole numbers [n] that it computes: these, one hot, times the rows."""
    entries, *row = shape_of(operand)
    hot = one_hot(context, node, places, entries)
    rows = reshape_to(context, node, operand, (entries, math.prod(row)), "_rows")
    return context.add(node, MATMUL, NoAttributes(), [hot, rows])


def _rows_of_all(context: Context, node: OnnxNode, chosen: OwnPlaces) -> Value:
    """Rows of a tensor [B·size, …] at the number of the example times the size, plus places that it computes."""
    data, given = context.item(node, 0), chosen.places
    operand, places = unplaced(data), unplaced(given)
    if not isinstance(operand, Value) or not isinstance(data, Placed) or data.layout != IN_FIRST:
        raise Refusal("LIP108", f"{node.op_type} acts on the batch axis: it mixes examples", MIXES)
    taken, (entries, *row) = [*shape_of(places)], shape_of(operand)
    if node.op_type == "GatherND":
        depth = taken.pop()
        if depth != 1 or node.integer("batch_dims", 0):
            raise Refusal("LIP110", "GatherND of several places for each example is not yet supported")
    if entries != chosen.size or context.builder.holds_tokens(operand):
        message = f"places among {chosen.size} rows of each example, which has {entries}"
        raise Refusal("LIP108", message, MIXES)
    context.layout = given.layout if isinstance(given, Placed) else FIRST
    wanted = reshape_to(context, node, places, (math.prod(taken),), "_places")
    found = _rows_at_places(context, node, operand, wanted)
    return reshape_to(context, node, found, (*taken, *row), "_entry")


def _are_of_own_example(places: Known) -> bool:
    """Whether each example takes entries of its own, or itself: `tensor[arange(B), …]`, places [1, …, depth]."""
    array = places.array
    names = places.copies == 0 and (array.ndim == 2 or (array.ndim > 2 and array.shape[-1] > 1))
    return names and bool((array[..., 0] == OWN).all())


def scatter_nd(context: Context, node: OnnxNode) -> Value:
    """Entries written over at constant places among the first axes, or added there; no two places are one."""
    data, reduction = context.item(node, 0), node.text("reduction", "none")
    if reduction not in ("none", "add"):
        raise Refusal("LIP110", f"ScatterND with reduction `{reduction}` is not yet supported")
    if isinstance(data, Known):
        raise Refusal("LIP110", "ScatterND into a constant is not yet supported")
    context.layout = data.layout if isinstance(data, Placed) else FIRST
    operand = context.tensor(node)
    example, (places, there) = shape_of(operand), _places_to_write(context, node)
    depth = places.shape[-1]
    whole = (math.prod(example[:depth]), *example[depth:])
    rows = _flat(places.reshape(-1, depth).T, example[:depth]) if depth else (0,)
    if len(set(rows)) < len(rows):
        raise Refusal("LIP110", "ScatterND at places that are equal", "write each place once")
    merged = reshape_to(context, node, operand, whole, "_merged")
    if reduction == "none":
        kept = np.ones(whole, np.float32)
        kept[[*rows]] = 0
        merged = times_entries(context, node, merged, kept, "_kept")
    numbers = _updates(context, node, there, (len(rows), *whole[1:]))
    return reshape_to(context, node, _put(context, node, merged, rows, numbers), example, "_whole")


def _places_to_write(context: Context, node: OnnxNode) -> tuple[Array, Layout]:
    """Return the places of a ScatterND within an example [..., depth], and where its numbers have their batch."""
    known, layout = context.known(node, 1, "the places"), context.layout
    if known is None or known.array.ndim < 2:
        raise Refusal("LIP102", "ScatterND without places")
    if layout == FIRST and _are_of_own_example(known):
        return known.array[0, ..., 1:], FIRST
    *taken, depth = known.array.shape
    if layout.outer or layout.inner or not 0 < depth <= layout.axis:
        raise Refusal("LIP108", "ScatterND acts on the batch axis: it mixes examples", MIXES)
    integers(known, "the places")
    return known.array, replace(layout, axis=layout.axis - depth + len(taken))


def _put(context: Context, node: OnnxNode, merged: Value, rows: Sequence[int], numbers: Value | Array) -> Value:
    """Add numbers [n, ...] to these rows of a tensor."""
    places = np.zeros(shape_of(merged), np.float32)
    if not isinstance(numbers, Value):
        places[[*rows]] = numbers
        return plus_entries(context, node, merged, places, "_filled")
    places[[*rows]] = 1
    order = np.zeros(len(places), dtype=int)
    order[[*rows]] = range(len(rows))
    chosen = Gather(tuple(map(int, order)), 0)
    apart = context.add(node, OP_BY_NAME["gather"], chosen, [numbers], "_at_places")
    put = times_entries(context, node, apart, places, "_put")
    return context.add(node, SUM, Sum((Fraction(1), Fraction(1))), [merged, put])


def _updates(context: Context, node: OnnxNode, layout: Layout, shape: Shape) -> Value | Array:
    """Return the numbers that a ScatterND writes, a tensor or a constant of this shape; raises Refusal."""
    item = context.item(node, 2)
    if not isinstance(item, Known):
        data, context.layout = context.layout, layout
        found = context.tensor(node, 2)
        context.layout = data
        return reshape_to(context, node, context.numbers(found), shape, "_updates")
    array, place = item.array, layout.axis
    if array.ndim <= place or array.shape[place] != 1:
        raise Refusal("LIP108", "ScatterND writes other numbers for each example", MIXES)
    context.parameters.hold(item)
    return floats(real(item).array, "a constant").reshape(shape)


def gather_elements(context: Context, node: OnnxNode) -> Value:
    """Constant places along an axis, for each entry of the others; the same in all examples."""
    data = context.item(node, 0)
    if isinstance(data, Known):
        return _entries_at(context, node, data)
    operand, places = context.tensor(node), context.known(node, 1, "the places")
    example = shape_of(operand)
    axis = context.axis(node, node.integer("axis", 0), len(example) + 1)
    if places is None or places.array.ndim != len(example) + 1:
        raise Refusal("LIP102", f"the places of GatherElements do not fit {list(example)}")
    if places.copies is None and context.batch != 1:
        raise Refusal("LIP108", "GatherElements takes entries of some examples only", MIXES)
    own = context.of_one_example(places, example).array
    integers(replace(places, array=own, copies=None), "the places")
    grid = np.indices(own.shape)
    grid[axis] = own
    rows = _flat(grid.reshape(len(example), -1), example)
    found = _picked(context, node, operand, (int(np.prod(example)),), rows)
    return reshape_to(context, node, found, tuple(map(int, own.shape)), "_entry")


def _entries_at(context: Context, node: OnnxNode, data: Known) -> Value:
    """Entries of a constant vector at places that each example computes."""
    places = context.tensor(node, 1)
    vector = context.of_one_example(data, shape_of(places)).array
    if len(shape_of(places)) != 1 or vector.ndim != 1 or node.integer("axis", 0) not in (1, -1):
        raise Refusal("LIP110", "GatherElements at computed places is supported of constant vectors only")
    column = real(replace(data, array=vector.reshape(-1, 1), copies=None))
    found = rows_at(context, node, places, column)
    return reshape_to(context, node, found, shape_of(places), "_entry")


def _flat(places: Array, sizes: Shape) -> tuple[int, ...]:
    """Return places [axes, n], which may count from the end, as those of one axis; raises Refusal (LIP102)."""
    limits = np.array(sizes)[:, None]
    exist = len(places) == len(sizes) and places.size
    if not exist or bool(((places < -limits) | (places >= limits)).any()):
        raise Refusal("LIP102", f"there are no such places among the sizes {list(sizes)}")
    return tuple(int(row) for row in np.ravel_multi_index(tuple(places % limits), sizes))


def _picked(context: Context, node: OnnxNode, operand: Value, shape: Shape, rows: tuple[int, ...]) -> Value:
    """Reshape, and take these entries of the first axis."""
    merged = reshape_to(context, node, operand, shape, "_merged")
    return context.add(node, OP_BY_NAME["gather"], Gather(rows, 0), [merged])


def _embedding(context: Context, node: OnnxNode) -> Value:
    """Rows of a constant table [entries, width], selected by the tokens of the input."""
    table, tokens = context.known(node, 0, "the table"), context.tensor(node, 1)
    if table is None or table.array.ndim != 2 or node.integer("axis", 0) != 0:
        raise Refusal("LIP110", "tokens can only select rows of a constant table [entries, width] yet")
    if not context.builder.holds_tokens(tokens):
        return rows_at(context, node, tokens, table)
    entries, width = (int(size) for size in table.array.shape)
    op = OP_BY_NAME["embedding"]
    return context.parameters.add(op, Embedding(entries, width), tokens, [("table", table)], node.name)


def _index(index: int, size: int) -> int:
    if not -size <= index < size:
        raise Refusal("LIP102", f"index {index} is outside an axis of size {size}")
    return index % size


def expand(context: Context, node: OnnxNode) -> Value:
    """Broadcast to a constant shape, which may keep sizes by a 1; axes may be made before that of the batch."""
    operand, target = context.tensor(node), context.known(node, 1, "the shape")
    if target is None:
        raise Refusal("LIP102", "Expand without a shape")
    sizes, layout, example = integers(target, "the shape"), context.layout, shape_of(operand)
    rank = max(len(sizes), layout.rank(example))
    made, sizes = rank - layout.rank(example), (*(1,) * (rank - len(sizes)), *sizes)
    own, place = layout.sizes(example)[layout.place], layout.place + made
    rest = (*sizes[:place], *sizes[place + 1 :])
    of_all = own if context.batch is None else multiple(own) * context.batch
    if sizes[place] not in (1, own, of_all) or any(map(is_formal, rest)):
        raise Refusal("LIP108", f"Expand to {shown(sizes)} changes the batch", MIXES)
    context.layout = replace(layout, axis=layout.axis + made)
    merged = example[layout.place : layout.place + layout.outer + layout.inner]
    wanted = (*sizes[:place], *merged, *sizes[place + 1 :])
    apart = (*(1,) * made, *example)
    wide = tuple(old if new == 1 else new for old, new in zip(apart, wanted, strict=True))
    if wide == example:
        return operand
    column = reshape_to(context, node, operand, apart, "_apart")
    return context.add(node, OP_BY_NAME["expand"], Expand(wide), [column])


def tile(context: Context, node: OnnxNode) -> Value:
    """Repeat axes: each becomes two, of which the first is copied, and one again."""
    operand, known = context.tensor(node), context.known(node, 1, "the number of repeats")
    if known is None:
        raise Refusal("LIP102", "Tile without a number of repeats")
    example, repeats, layout = shape_of(operand), integers(known, "the number of repeats"), context.layout
    if len(repeats) != layout.rank(example) or min(repeats) < 1:
        raise Refusal("LIP102", f"Tile cannot repeat {shown(layout.sizes(example))} {list(repeats)} times")
    of_batch, merged = repeats[layout.place], (1,) * (layout.outer + layout.inner)
    if context.is_batch(of_batch) and context.is_single(operand) and layout == FIRST:
        of_batch = 1
    repeats = (*repeats[: layout.place], *merged, *repeats[layout.place + 1 :])
    if of_batch != 1 or any(map(is_formal, repeats)):
        raise Refusal("LIP108", "Tile repeats the examples of the batch", MIXES)
    apart = tuple(size for axis in example for size in (1, axis))
    copied = tuple(size for pair in zip(repeats, example, strict=True) for size in pair)
    if copied == apart:
        return operand
    value = reshape_to(context, node, operand, apart, "_apart")
    value = context.add(node, OP_BY_NAME["expand"], Expand(copied), [value], "_copies")
    joined = tuple(count * size for count, size in zip(repeats, example, strict=True))
    return reshape_to(context, node, value, joined)


def compress(context: Context, node: OnnxNode) -> Value:
    """The entries of an axis for which a constant says so."""
    operand, known = context.tensor(node), context.known(node, 1, "the condition")
    axis = node.attributes.get("axis")
    if axis is None or known is None:
        raise Refusal("LIP108", "Compress without an axis runs over all examples", MIXES)
    along = context.axis(node, node.integer("axis", 0), len(shape_of(operand)) + 1)
    places = tuple(place for place, taken in enumerate(known.array.reshape(-1).tolist()) if taken)
    if not places or places[-1] >= shape_of(operand)[along]:
        raise Refusal("LIP102", f"Compress selects {len(places)} entries of {list(shape_of(operand))}")
    return context.add(node, OP_BY_NAME["gather"], Gather(places, along), [operand])


# Rearrangements


def depth_to_space(context: Context, node: OnnxNode) -> Value:
    """Blocks of channels become squares of pixels: columns first (CRD) as in torch, or depth first (DCR)."""
    operand, r = context.tensor(node), _block(node)
    mode = node.text("mode", "DCR")
    channels, *image = _image(node, operand)
    if channels % (r * r):
        raise Refusal("LIP102", f"{channels} channels are not a multiple of {r * r}")
    if mode == "DCR":
        operand = _regrouped(context, node, operand, (r * r, channels // (r * r)), image)
    elif mode != "CRD":
        raise Refusal("LIP102", f"DepthToSpace has no mode {mode}")
    return context.add(node, OP_BY_NAME["depth_to_space"], Block(r), [operand])


def space_to_depth(context: Context, node: OnnxNode) -> Value:
    """Squares of pixels become blocks of channels: columns first (CRD) as in torch, or depth first (DCR)."""
    operand, r, mode = context.tensor(node), _block(node), node.text("mode", "DCR")
    channels, *_ = _image(node, operand)
    if mode not in ("DCR", "CRD"):
        raise Refusal("LIP102", f"SpaceToDepth has no mode {mode}")
    value = context.add(node, OP_BY_NAME["space_to_depth"], Block(r), [operand], "_blocks")
    if mode == "CRD":
        return value
    return _regrouped(context, node, value, (channels, r * r), shape_of(value)[1:])


def _regrouped(
    context: Context, node: OnnxNode, operand: Value, groups: tuple[int, int], image: Sequence[int]
) -> Value:
    """Swap the two factors of the channel axis."""
    value = reshape_to(context, node, operand, (*groups, *image), "_groups")
    value = permute(context, node, value, (1, 0, 2, 3), "_swapped")
    return reshape_to(context, node, value, (groups[0] * groups[1], *image), "_channels")


def _block(node: OnnxNode) -> int:
    size = node.integer("blocksize", 0)
    if size < 1:
        raise Refusal("LIP102", f"{node.op_type} needs a blocksize")
    return size


def _image(node: OnnxNode, operand: Value) -> Shape:
    if len(shape_of(operand)) != 3:
        raise Refusal("LIP102", f"{node.op_type} needs images [channels, height, width]")
    return shape_of(operand)


IMPORTERS: Mapping[str, Importer] = {
    "DepthToSpace": depth_to_space,
    "Expand": expand,
    "Gather": gather,
    "GatherElements": gather_elements,
    "GatherND": gather_nd,
    "Pad": pad,
    "ScatterND": scatter_nd,
    "SpaceToDepth": space_to_depth,
    "Compress": compress,
    "Tile": tile,
}
