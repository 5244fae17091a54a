"""How ops that bring several tensors together are written: as Python of torch, and as operators of ONNX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import reduce

import numpy as np

from lipcompile.core.graph import Node
from lipcompile.emitters.onnx.writer import Emit, Writer
from lipcompile.emitters.torch.pieces import Expression, aligned, axis_of, nearest
from lipcompile.ops.resample.write import align

# As Python


def _sum(node: Node, operands: Sequence[str]) -> str:
    terms = []
    for operand, shape, weight in zip(operands, node.site.inputs, node.attributes.weights, strict=True):
        term = aligned(operand, shape, len(node.shape))
        terms.append(term if weight == 1 else f"{nearest(weight)} * {term}")
    return " + ".join(terms)


def _product(node: Node, operands: Sequence[str]) -> str:
    pairs = zip(operands, node.site.inputs, strict=True)
    return " * ".join(aligned(operand, shape, len(node.shape)) for operand, shape in pairs)


def _nested(function: str) -> Expression:
    """function(function(a, b), c): of as many operands as there are."""
    return lambda node, operands: reduce(lambda a, b: f"{function}({a}, {b})", operands)


def _where(node: Node, operands: Sequence[str]) -> str:
    bits = "".join("01"[entry] for entry in node.attributes.mask)
    return f'functional.where({", ".join(operands)}, mask="{int(bits, 2):x}")'


EXPRESSIONS: Mapping[str, Expression] = {
    "add": _sum,
    "multiply": _product,
    "matmul": lambda node, operands: " @ ".join(operands),
    "concat": lambda node, operands: f"torch.cat([{', '.join(operands)}], dim={axis_of(node) + 1})",
    "maximum": _nested("torch.maximum"),
    "minimum": _nested("torch.minimum"),
    "where": _where,
}

# As operators of ONNX


def _aligned(writer: Writer, node: Node, x: Sequence[str]) -> list[str]:
    pairs = zip(x, node.site.inputs, strict=True)
    return [align(writer, operand, shape, len(node.shape)) for operand, shape in pairs]


def _sum_nodes(writer: Writer, node: Node, x: Sequence[str]) -> str:
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


def _where_nodes(writer: Writer, node: Node, x: Sequence[str]) -> str:
    mask = np.array(node.attributes.mask, dtype=np.bool_).reshape((1, *node.shape))
    return writer.op("Where", writer.constant(mask), *x)


EMITTERS: Mapping[str, Emit] = {
    "add": _sum_nodes,
    "multiply": lambda writer, node, x: writer.op("Mul", *_aligned(writer, node, x)),
    "matmul": lambda writer, node, x: writer.op("MatMul", *x),
    "concat": lambda writer, node, x: writer.op("Concat", *x, axis=axis_of(node) + 1),
    "maximum": _extreme("Max"),
    "minimum": _extreme("Min"),
    "where": _where_nodes,
}
