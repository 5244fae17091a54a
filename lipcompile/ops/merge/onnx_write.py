"""Ops that bring several tensors together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

import numpy as np

from lipcompile.core.graph import Node
from lipcompile.emitters.onnx.writer import Emit, Writer, axis_of
from lipcompile.ops.resample.onnx_write import align


def _aligned(writer: Writer, node: Node, x: Sequence[str]) -> list[str]:
    pairs = zip(x, node.site.inputs, strict=True)
    return [align(writer, operand, shape, len(node.shape)) for operand, shape in pairs]


def _sum(writer: Writer, node: Node, x: Sequence[str]) -> str:
    operands, weights = _aligned(writer, node, x), node.attributes.weights
    count = len(operands)
    if count > 1 and all(weight == Fraction(1, count) for weight in weights):
        return writer.op("Mean", *operands)
    if weights == (1, -1):
        return writer.op("Sub", *operands)
    terms = [writer.times(operand, weight) for operand, weight in zip(operands, weights, strict=True)]
    if count == 1:
        return terms[0] if weights != (1,) else writer.op("Identity", terms[0])
    return writer.op("Add" if count == 2 else "Sum", *terms)


def _extreme(op_type: str) -> Emit:
    return lambda writer, node, x: writer.op(op_type, *x)


def _where(writer: Writer, node: Node, x: Sequence[str]) -> str:
    mask = np.array(node.attributes.mask, dtype=np.bool_).reshape((1, *node.shape))
    return writer.op("Where", writer.constant(mask), *x)


EMITTERS: Mapping[str, Emit] = {
    "add": _sum,
    "multiply": lambda writer, node, x: writer.op("Mul", *_aligned(writer, node, x)),
    "matmul": lambda writer, node, x: writer.op("MatMul", *x),
    "concat": lambda writer, node, x: writer.op("Concat", *x, axis=axis_of(node)),
    "maximum": _extreme("Max"),
    "minimum": _extreme("Min"),
    "where": _where,
}
