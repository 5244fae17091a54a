"""Constants put beside a tensor of the example: class tokens, registers, prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

import numpy as np

from lipcompile.core.graph import Value
from lipcompile.core.record import Shape
from lipcompile.diagnostics import Refusal
from lipcompile.frontends.onnx.context import MIXES, Context, as_tensor, shape_of
from lipcompile.frontends.onnx.node import OnnxNode
from lipcompile.frontends.onnx.sizes import has_batch, multiple
from lipcompile.frontends.onnx.values import Known
from lipcompile.ops.embedding.rules import CLASS_TOKEN, ClassToken
from lipcompile.ops.merge.rules import CONCAT, Concat


def joined(context: Context, node: OnnxNode, parts: Sequence[Value | Known], axis: int) -> Value:
    """Concatenate tensors and constants along an axis of the example; at least one is a tensor."""
    runs = [(constant, list(run)) for constant, run in groupby(parts, lambda part: isinstance(part, Known))]
    first = next(index for index, (constant, _) in enumerate(runs) if not constant)
    made = _side_by_side(context, node, runs[first][1], axis)
    for part in reversed([part for _, run in runs[:first] for part in run]):
        made = _with_constant(context, node, made, part, axis, last=False)
    for constant, run in runs[first + 1 :]:
        if constant:
            for part in run:
                made = _with_constant(context, node, made, part, axis, last=True)
        else:
            made = _side_by_side(context, node, [made, *run], axis)
    return made


def _side_by_side(context: Context, node: OnnxNode, tensors: Sequence[Value | Known], axis: int) -> Value:
    values = [as_tensor(tensor, node.op_type) for tensor in tensors]
    return values[0] if len(values) == 1 else context.add(node, CONCAT, Concat(axis), values)


def _with_constant(
    context: Context, node: OnnxNode, made: Value, part: Value | Known, axis: int, *, last: bool
) -> Value:
    assert isinstance(part, Known)
    known = _in_real_numbers(_for_one_example(context, part, shape_of(made)))
    if known.array.ndim > axis and known.array.shape[axis] == 0:
        return made
    return beside(context, node, context.numbers(made), known, axis, last=last)


def _in_real_numbers(known: Known) -> Known:
    """Return truths and whole numbers, which nothing trains, as real numbers; other constants as they are."""
    if known.array.dtype.kind not in "biu" or has_batch(known.array):
        return known
    array = known.array.astype(np.float32)
    is_exact = bool((array.astype(np.int64) == known.array).all())
    return replace(known, array=array, sources=frozenset(), moves=()) if is_exact else known


def _for_one_example(context: Context, known: Known, example: Shape) -> Known:
    """Take the axis of the batch away, along which nothing may differ; raises Refusal."""
    layout, array = context.layout, known.array
    of_each = multiple(layout.sizes(example)[layout.place])
    apart = known.times == 1 and not (layout.outer or layout.inner)
    alike = known.times == of_each and known.copies == layout.place and not known.sources
    if not (apart or alike) or array.ndim != layout.rank(example):
        message = f"a constant of shape {list(array.shape)} has no separate batch axis"
        raise Refusal("LIP108", message, MIXES)
    single = array.take([0], axis=layout.place)
    copies = array.shape[layout.place] == context.batch if known.copies is None else known.copies == layout.place
    if not copies or not bool((array == single).all()):
        message = f"a constant of shape {list(array.shape)} is not the same for every example"
        raise Refusal("LIP108", message, MIXES)
    merged = example[layout.place : layout.place + layout.outer + layout.inner]
    before, behind = array.shape[: layout.place], array.shape[layout.place + 1 :]
    column = single.reshape((*before, *(1 for _ in merged), *behind))
    return replace(known, array=np.broadcast_to(column, (*before, *merged, *behind)), copies=None, times=1)


def beside(
    context: Context,
    node: OnnxNode,
    operand: Value,
    known: Known,
    axis: int = 0,
    *,
    last: bool = False,
    suffix: str = "",
) -> Value:
    """Put a constant before a tensor, or behind it, along an axis of the example. Both are without the batch axis.

    A constant that is stored, or written into the graph, is trained; what the file computes of nothing (zeros of
    some shape) is not. Raises Refusal for shapes that do not fit.
    """
    example, shape = shape_of(operand), tuple(known.array.shape)
    fits = len(shape) == len(example) > axis and all(
        own == other for at, (own, other) in enumerate(zip(shape, example, strict=True)) if at != axis
    )
    if not fits or shape[axis] < 1:
        message = f"a constant of shape {list(shape)} cannot be concatenated to {list(example)} along axis {axis}"
        raise Refusal("LIP102", message)
    attributes = ClassToken(shape[axis], axis, last)
    tokens = [("tokens", known)]
    return context.parameters.add(
        CLASS_TOKEN, attributes, operand, tokens, node.name + suffix, frozen=not known.sources
    )
