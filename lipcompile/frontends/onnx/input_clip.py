"""The clip in front of a file of `export`: x where ‖x‖ < r, x·(r/‖x‖) elsewhere, 0 for what is no number.

For finite examples that is the projection on a ball, and the declared domain of a model is one: where both have
the same radius, the model begins behind the clip, which the emitted module has by itself.
"""

from __future__ import annotations

from fractions import Fraction

from lipcompile.core.graph import Value
from lipcompile.frontends.onnx.context import Context, shape_of
from lipcompile.frontends.onnx.layout import FIRST
from lipcompile.frontends.onnx.node import OnnxNode
from lipcompile.frontends.onnx.patterns.algebra import (
    HALF,
    ONE,
    Found,
    Op,
    Pattern,
    Product,
    Same,
    Single,
    Tensor,
    equal,
)
from lipcompile.ops.pool.onnx_read import reduced_axes
from lipcompile.ops.shape.rules import ClipNorm
from lipcompile.ops.table import OP_BY_NAME

_X = Tensor("x")
_SQUARES = Op("ReduceSum", (Product(ONE, ((_X, ONE), (_X, ONE))),), key="norm")
_NORM = Product(ONE, ((_SQUARES, HALF),))
_FACTOR = Op("Where", (Op("Less", (_NORM, Single("radius"))), Single(ONE), Product("radius", ((_NORM, -ONE),))))
_SCALED = Same("scaled", Product(ONE, ((_X, ONE), (_FACTOR, ONE))))
INPUT_CLIP: Pattern = Op("Where", (Op("IsNaN", (_SCALED,)), Single(Fraction(0)), _SCALED))


def input_clip(context: Context, node: OnnxNode, found: Found) -> Value | None:
    """Return the example itself, if the clip is that of its declared norm, else a clip to the radius."""
    item, radius, reduction = context.items.get(str(found["x"])), found["radius"], found["norm"]
    assert isinstance(radius, Fraction)
    assert isinstance(reduction, OnnxNode)
    if not isinstance(item, Value) or item.shape is None or context.layout != FIRST or radius <= 0:
        return None
    if reduced_axes(context, reduction, item.shape) != tuple(range(len(shape_of(item)))):
        return None
    if not reduction.integer("keepdims", 1):
        return None
    norm = context.builder.declared_norm(item)
    if isinstance(norm, Fraction) and equal(norm, radius):
        return item
    return context.add(node, OP_BY_NAME["clip_norm"], ClipNorm(radius), [item])
