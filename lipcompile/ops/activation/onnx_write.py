"""Activations and sorting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lipcompile.core.graph import Node
from lipcompile.core.record import Shape
from lipcompile.emitters.onnx.writer import Emit, Writer, axis_of, float32
from lipcompile.ops.activation.text import WRITTEN, Written


def _operator(written: Written) -> Emit:
    """Return the emitter of an operator of one operand, whose attributes are numbers of the node."""

    def emit(writer: Writer, node: Node, x: Sequence[str]) -> str:
        values = {name: getattr(node.attributes, own) for name, (own, _) in written.numbers.items()}
        given = {name: float(float32(value)) for name, value in values.items()}
        return writer.op(written.operator, x[0], **given)

    return emit


# Sorting


def grouped(shape: Shape, axis: int, size: int) -> Shape:
    """Return the shape of an example in which an axis is split into groups; `axis` counts the batch."""
    return (*shape[: axis - 1], shape[axis - 1] // size, size, *shape[axis:])


def _group_sort(writer: Writer, node: Node, x: Sequence[str]) -> str:
    """Sort pairs by their extremes, larger groups by TopK."""
    size, axis, shape = node.attributes.size, axis_of(node), node.shape
    if size == 1:
        return writer.op("Identity", x[0])
    groups = writer.reshape(x[0], grouped(shape, axis, size))
    if size > 2:
        return writer.reshape(_sorted(writer, groups, axis + 1, size), shape)
    ends = [writer.reduce(op_type, groups, (axis,), keep=True) for op_type in ("ReduceMin", "ReduceMax")]
    return writer.reshape(writer.op("Concat", *ends, axis=axis + 1), shape)


def _full_sort(writer: Writer, node: Node, x: Sequence[str]) -> str:
    axis = axis_of(node)
    return writer.op("Identity", _sorted(writer, x[0], axis, node.shape[axis - 1]))


def _sorted(writer: Writer, x: str, axis: int, size: int) -> str:
    """Sort an axis, smallest first."""
    values = writer.op("TopK", x, writer.integers(size), axis=axis, largest=0, sorted=1)
    writer.nodes[-1].output.append(f"{values}.places")
    return values


EMITTERS: Mapping[str, Emit] = {
    **{name: _operator(written) for name, written in WRITTEN.items() if written.operator},
    "gelu": lambda writer, node, x: writer.op("Gelu", x[0], approximate=node.attributes.approximate),
    "silu": lambda writer, node, x: writer.op("Mul", x[0], writer.op("Sigmoid", x[0])),
    "hardtanh": lambda writer, node, x: writer.op(
        "Clip", x[0], writer.number(node.attributes.low), writer.number(node.attributes.high)
    ),
    "groupsort": _group_sort,
    "fullsort": _full_sort,
}
