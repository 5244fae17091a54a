"""Stored tensors: which there are, how many bytes they take, and whether what a file holds of them fits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import prod
from typing import TYPE_CHECKING

from lipcompile.core.diagnostics import Refusal

if TYPE_CHECKING:
    from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, SparseTensorProto, TensorProto

_AGAIN = "export the model again"
# Entries of these kinds are packed: bits of one.
_PACKED = {"UINT4": 4, "INT4": 4, "FLOAT4E2M1": 4, "UINT2": 2, "INT2": 2, "FLOAT6E2M3": 6, "FLOAT6E3M2": 6}


def graphs(model: ModelProto) -> Iterator[GraphProto]:
    """Yield the graph and every graph inside an attribute of a node, of functions too."""
    pending = [model.graph, *(graph for function in model.functions for graph in _subgraphs(function.node))]
    while pending:
        graph = pending.pop()
        yield graph
        pending += _subgraphs(graph.node)


def _subgraphs(nodes: Iterable[NodeProto]) -> Iterator[GraphProto]:
    for node in nodes:
        for attribute in node.attribute:
            yield from (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs)


def stored_tensors(model: ModelProto) -> Iterator[TensorProto]:
    """Yield every tensor of a model: initializers, attributes, the parts of sparse ones, of functions too."""
    for graph in graphs(model):
        yield from graph.initializer
        yield from _parts(graph.sparse_initializer)
        yield from _in_attributes(graph.node)
    for function in model.functions:
        yield from _in_attributes(function.node)
        yield from _of_attributes(function.attribute_proto)


def _in_attributes(nodes: Iterable[NodeProto]) -> Iterator[TensorProto]:
    for node in nodes:
        yield from _of_attributes(node.attribute)


def _of_attributes(attributes: Iterable[AttributeProto]) -> Iterator[TensorProto]:
    for attribute in attributes:
        yield from (*([attribute.t] if attribute.HasField("t") else []), *attribute.tensors)
        single = [attribute.sparse_tensor] if attribute.HasField("sparse_tensor") else []
        yield from _parts((*single, *attribute.sparse_tensors))


def _parts(tensors: Iterable[SparseTensorProto]) -> Iterator[TensorProto]:
    for tensor in tensors:
        yield from (tensor.values, tensor.indices)


def nbytes(tensor: TensorProto) -> int:
    """Return the bytes that a tensor takes; raises Refusal (LIP003) if its shape or kind cannot be."""
    from onnx import TensorProto, helper

    if any(size < 0 for size in tensor.dims):
        raise Refusal("LIP003", f"the tensor `{tensor.name}` has the shape {list(tensor.dims)}", _AGAIN)
    kinds = TensorProto.DataType
    kind = kinds.Name(tensor.data_type) if tensor.data_type in kinds.values() else "UNDEFINED"
    if kind in ("UNDEFINED", "STRING"):
        held = "text" if kind == "STRING" else f"entries of the unknown kind {tensor.data_type}"
        raise Refusal("LIP003", f"the tensor `{tensor.name}` holds {held}, no numbers", _AGAIN)
    entries: int = prod(tensor.dims)
    if kind in _PACKED:
        bits = _PACKED[kind]
    else:
        bits = 8 * int(helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize)
    return -(-entries * bits // 8)


def check(tensor: TensorProto) -> None:
    """Raise Refusal (LIP003) if what a file holds of a tensor does not fill its shape; lists are counted later."""
    wanted = nbytes(tensor) if tensor.data_type != tensor.STRING else prod(tensor.dims)
    if tensor.HasField("raw_data"):
        held = f"{len(tensor.raw_data)} bytes"
        fits = len(tensor.raw_data) == wanted
    else:
        held = "no entries"
        fits = wanted == 0 or any(getattr(tensor, name) for name in _LISTS)
    if not fits:
        message = f"the tensor `{tensor.name}` holds {held}, which do not fill its shape {list(tensor.dims)}"
        raise Refusal("LIP003", message, _AGAIN)


_LISTS = ("float_data", "int32_data", "int64_data", "double_data", "uint64_data", "string_data")
