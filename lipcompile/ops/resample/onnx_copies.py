"""Importers of operators that repeat a tensor, or take some of its entries by a mask."""

from __future__ import annotations

from lipcompile.core.diagnostics import Refusal
from lipcompile.core.graph import Value
from lipcompile.frontends.onnx.context import MIXES, Context, shape_of
from lipcompile.frontends.onnx.node import OnnxNode
from lipcompile.frontends.onnx.sizes import is_formal
from lipcompile.frontends.onnx.values import integers
from lipcompile.ops.resample.rules import Expand, Gather
from lipcompile.ops.shape.onnx_read import reshape_to
from lipcompile.ops.table import OP_BY_NAME


def tile(context: Context, node: OnnxNode) -> Value:
    """Repeat axes: each becomes two, of which the first is copied, and one again."""
    operand, known = context.tensor(node), context.known(node, 1, "the number of repeats")
    if known is None:
        raise Refusal("LIP102", "Tile without a number of repeats")
    example, repeats = shape_of(operand), integers(known, "the number of repeats")
    if len(repeats) != len(example) + 1 or any(map(is_formal, repeats)) or min(repeats) < 1:
        raise Refusal("LIP102", f"Tile cannot repeat {['batch', *example]} {list(repeats)} times")
    if repeats[0] != 1:
        raise Refusal("LIP108", "Tile repeats the examples of the batch", MIXES)
    apart = tuple(size for axis in example for size in (1, axis))
    copied = tuple(size for pair in zip(repeats[1:], example, strict=True) for size in pair)
    if copied == apart:
        return operand
    value = reshape_to(context, node, operand, apart, "_apart")
    value = context.add(node, OP_BY_NAME["expand"], Expand(copied), [value], "_copies")
    joined = tuple(count * size for count, size in zip(repeats[1:], example, strict=True))
    return value if value.shape is None else reshape_to(context, node, value, joined)


def compress(context: Context, node: OnnxNode) -> Value:
    """The entries of an axis for which a constant says so."""
    operand, known = context.tensor(node), context.known(node, 1, "the condition")
    axis = node.attributes.get("axis")
    if axis is None or known is None:
        raise Refusal("LIP108", "Compress without an axis runs over all examples", MIXES)
    along = context.axis(node, node.integer("axis", 0), len(shape_of(operand)) + 1)
    places = tuple(place for place, taken in enumerate(known.array.reshape(-1).tolist()) if taken)
    if not places or places[-1] >= shape_of(operand)[along]:
        raise Refusal("LIP102", f"Compress takes {len(places)} entries of {list(shape_of(operand))}")
    return context.add(node, OP_BY_NAME["gather"], Gather(places, along), [operand])
