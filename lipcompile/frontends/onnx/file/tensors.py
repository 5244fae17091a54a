"""Stored tensors: which there are, how many bytes they take, and whether what a file holds of them fits.

Those in files beside the model are read as bytes, from regular files inside of its folder alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import prod
from pathlib import Path

from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, SparseTensorProto, TensorProto, helper

from lipcompile import limits
from lipcompile.diagnostics import Location, Refusal
from lipcompile.frontends import files

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

_KEEP = "keep the data files beside the model, or export it as one file"
_DAMAGED = "export the model again, with its data files"


# Tensors in other files


def load(tensors: Iterable[TensorProto], folder: Path, used: int, at: Location) -> int:
    """Put the bytes of external tensors in their place, and return how many there are.

    Raises Refusal (LIP004), or InputError (LIP018) if they and the `used` bytes of the file are above the limit.
    """
    total = 0
    for tensor in tensors:
        if tensor.data_location == tensor.EXTERNAL:
            total += nbytes(tensor)
            limits.demand("file_size", used + total, "the model and its data files hold", at)
            _read(tensor, folder.resolve())
    return total


def _read(tensor: TensorProto, folder: Path) -> None:
    entries = {entry.key: entry.value for entry in tensor.external_data}
    wanted = nbytes(tensor)
    offset, length = _number(tensor, entries, "offset", 0), _number(tensor, entries, "length", wanted)
    if length != wanted:
        shape = f"{length} bytes for its shape {list(tensor.dims)}, which takes {wanted}"
        raise Refusal("LIP004", f"the tensor `{tensor.name}` has {shape}", _DAMAGED)
    location = entries.get("location", "")
    path = _inside(location, folder)
    try:
        content = files.read_part(path, offset, length)
    except OSError as error:
        message = f"weights kept outside the file cannot be read: `{location}`: {error.strerror}"
        raise Refusal("LIP004", message, _KEEP) from None
    if content is None:
        message = f"`{location}` ends before the tensor `{tensor.name}`, at {offset} to {offset + length}"
        raise Refusal("LIP004", message, _DAMAGED)
    tensor.raw_data = content
    tensor.ClearField("external_data")
    tensor.ClearField("data_location")


def _number(tensor: TensorProto, entries: dict[str, str], name: str, default: int) -> int:
    text = entries.get(name, "")
    if name not in entries:
        return default
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise Refusal("LIP004", f"the {name} of the tensor `{tensor.name}` is `{text}`, no number", _DAMAGED)
    return int(text)


def _inside(location: str, folder: Path) -> Path:
    """Return the path of a data file; links are followed, but not out of the folder."""
    try:
        path = (folder / location).resolve()
    except (OSError, RuntimeError, ValueError):  # a circle of links, a null byte
        raise Refusal("LIP004", f"`{location}` is no path of a data file", _DAMAGED) from None
    if Path(location).is_absolute() or not path.is_relative_to(folder) or path == folder:
        message = f"weights are kept in `{location}`, outside of the model's folder: it is not opened"
        raise Refusal("LIP004", message, "put the data files themselves, no links, beside the model")
    return path
