"""The shape of what a refused node makes, so that what follows it can be looked at.

ONNX's inference is native code, and aborts the process at sizes that make no sense. So it sees one node at a time,
of operands whose sizes are known, and what comes out is checked before it is used again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, TypeProto, defs, helper, numpy_helper, shape_inference

from lipcompile.core.graph import Value
from lipcompile.core.record import Shape
from lipcompile.frontends.onnx.values import Item, Known

# Larger entries are no sizes, larger constants no lists of them.
_LARGEST, _LONGEST = 2**31, 64


def outputs(proto: NodeProto, items: Mapping[str, Item], version: int) -> dict[str, Shape]:
    """Return the shapes of one example, by the name of the output; none where an operand is no ordinary tensor."""
    operands = {name: items.get(name) for name in proto.input if name}
    types = {name: kind for name, item in operands.items() if (kind := _type(item)) is not None}
    if len(types) != len(operands) or any(attribute.HasField("g") for attribute in proto.attribute):
        return {}
    data = {
        name: numpy_helper.from_array(item.array, name)
        for name, item in operands.items()
        if isinstance(item, Known) and _is_list_of_sizes(item.array)
    }
    try:
        schema = defs.get_schema(proto.op_type, version)
        opsets = [helper.make_opsetid("", version)]
        found = shape_inference.infer_node_outputs(schema, proto, types, data, opset_imports=opsets)
    except Exception:  # an unknown operator, operands that do not fit: there is no guess then
        return {}
    return {name: shape for name, kind in found.items() if (shape := _example(kind)) is not None}


def _type(item: Item | None) -> TypeProto | None:
    if isinstance(item, Known):
        kind = helper.np_dtype_to_tensor_dtype(item.array.dtype)
        return helper.make_tensor_type_proto(kind, list(item.array.shape))
    if isinstance(item, Value) and item.shape is not None and max(item.shape, default=1) < _LARGEST:
        return helper.make_tensor_type_proto(TensorProto.FLOAT, ["batch", *item.shape])
    return None


def _is_list_of_sizes(array: NDArray[Any]) -> bool:
    return array.size <= _LONGEST and array.dtype.kind in "iuf" and bool((abs(array) < _LARGEST).all())


def _example(kind: TypeProto) -> Shape | None:
    """Return a shape without its batch axis, None if it has none or an axis without a size."""
    sizes = [dim.dim_value for dim in kind.tensor_type.shape.dim]
    return tuple(sizes[1:]) if sizes and all(0 < size < _LARGEST for size in sizes[1:]) else None
