"""An .onnx file -> a checked ModelProto, or an `InputError` that says what the file is instead."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import onnx
from onnx import ModelProto, NodeProto, TensorProto, checker, defs

from lipcompile import limits
from lipcompile.diagnostics import InputError, Location, Refusal, input_error
from lipcompile.frontends import files
from lipcompile.frontends.onnx.file import functions, structure, tensors, wire

OFFICIAL_DOMAINS = ("", "ai.onnx")
EXPORT_AGAIN = "export the model again"
# What other files begin with.
_MAGIC = (
    (b"PK\x03\x04", "a zip archive (a PyTorch checkpoint is one)", "export it with torch.onnx.export"),
    (b"\x89HDF", "an HDF5 file (Keras weights are one)", "convert it with tf2onnx"),
    (b"\x1f\x8b", "a gzip archive", "unpack it first"),
    (b"\x80\x04", "a Python pickle", "export the model with torch.onnx.export"),
    (b"\x80\x02", "a Python pickle", "export the model with torch.onnx.export"),
)
_LARGEST_MESSAGE = 2**31 - 1  # of protobuf: a larger model is checked by its path
# A smaller file cannot decode to much.
_SURELY_SMALL = 2**19
# Operands, attributes, types and shapes of a node, in a file that names everything.
FIELDS_PER_NODE = 40


def read(path: Path) -> tuple[ModelProto, str]:
    """Return the model of a file, its tensors in memory, and the file's sha256; raises InputError.

    Of a file that keeps tensors in other files it is that of the file's own and of those tensors.
    """
    at = Location(str(path))
    try:
        content = files.read(path, "file_size")
    except OSError as error:
        raise input_error("LIP001", f"`{path}` cannot be read: {error.strerror}", "check the path", at) from None
    model, size, digest = _parse(content, at), len(content), hashlib.sha256(content).hexdigest()
    del content  # the model holds a copy
    try:
        outside = [tensor for tensor in tensors.stored_tensors(model) if tensor.data_location == tensor.EXTERNAL]
        size += tensors.load(outside, path.parent, size, at)
        digest = _with_data(digest, outside)
        for tensor in tensors.stored_tensors(model):
            tensors.check(tensor)
        model = functions.inlined(model, at)
        limits.spend("constants", -4 * size, "")  # what is computed from weights is about their size
    except Refusal as refusal:
        raise input_error(refusal.code, refusal.message, refusal.help, at) from None
    _check(model, path, size, at)
    return model, digest


def _with_data(digest: str, outside: Sequence[TensorProto]) -> str:
    if not outside:
        return digest
    whole = hashlib.sha256(digest.encode())
    for tensor in outside:
        whole.update(tensor.raw_data)
    return whole.hexdigest()


def _parse(content: bytes, at: Location) -> ModelProto:
    if not content:
        raise input_error("LIP002", "the file is empty: it is not an ONNX model", EXPORT_AGAIN, at)
    for magic, what, help_line in _MAGIC:
        if content.startswith(magic):
            raise input_error("LIP002", f"this is {what}, not an ONNX model", help_line, at)
    if _is_text(content):
        raise _text_error(content, at)
    _check_fields(content, at)
    try:
        model = onnx.load_model_from_string(content)
    except Exception:  # protobuf's DecodeError, which has no typed home
        raise _undecodable(content, at) from None
    _check_nodes(model, at)
    if _has_damaged_names(model):
        raise _undecodable(content, at)
    if not model.ir_version or not (model.graph.node or model.graph.output):
        raise input_error("LIP002", "this is not an ONNX model: it holds no graph", EXPORT_AGAIN, at)
    return model


def _check_fields(content: bytes, at: Location) -> None:
    """Raise InputError if the content would decode to far more than its size, or is nested too deep to decode."""
    if len(content) < _SURELY_SMALL:
        return
    most = FIELDS_PER_NODE * limits.current().nodes
    try:
        found = wire.count_fields(content, ModelProto.DESCRIPTOR, most)
    except RecursionError:
        raise limits.exceeded("depth", "the messages of the file are nested", at) from None
    except wire.MalformedError:
        return  # for the decoder to say
    if found > most:
        raise limits.exceeded("nodes", f"the file has {found} fields, those of", at)


def _check_nodes(model: ModelProto, at: Location) -> None:
    limits.demand("nodes", len(model.graph.node), "the graph has", at)
    limits.demand("nodes", sum(len(graph.node) for graph in tensors.graphs(model)), "the graph has", at)


def _has_damaged_names(model: ModelProto) -> bool:
    """Whether a string of the file is not UTF-8: such a field is read as bytes."""
    names: list[str | bytes] = [text for entry in model.metadata_props for text in (entry.key, entry.value)]
    names += [entry.domain for entry in model.opset_import]
    for function in model.functions:
        names += [function.name, function.domain, function.overload]
    for tensor in tensors.stored_tensors(model):
        names += [text for entry in tensor.external_data for text in (entry.key, entry.value)]
    for graph in tensors.graphs(model):
        names += [value.name for value in (*graph.input, *graph.output, *graph.value_info, *graph.initializer)]
        for node in graph.node:
            names += [node.name, node.op_type, node.domain, *node.input, *node.output]
            names += [attribute.name for attribute in node.attribute]
    return any(isinstance(name, bytes) for name in names)


def _is_text(content: bytes) -> bool:
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return all(char.isprintable() or char in "\r\n\t\f" for char in text)


def _text_error(content: bytes, at: Location) -> InputError:
    if content.startswith(b"version https://git-lfs"):
        return input_error(
            "LIP002", "this is a pointer of Git LFS, not the ONNX model itself", "run git lfs pull", at
        )
    return input_error(
        "LIP002", "this is text, not an ONNX model", "an ONNX model is a binary file; .lip files are text", at
    )


def _undecodable(content: bytes, at: Location) -> InputError:
    """A model begins with its ir_version (field 1, a small integer) and goes on with another field."""
    begins_well = len(content) > 2 and content[0] == 0x08 and 0 < content[1] < 32
    if begins_well:
        return input_error("LIP003", "the ONNX model is truncated or damaged", "copy or export it again", at)
    return input_error("LIP002", "this is a binary file, but not an ONNX model", EXPORT_AGAIN, at)


# Checks


def opset(model: ModelProto) -> int | None:
    """Return the version of the standard operators that the model asks for."""
    return next((entry.version for entry in model.opset_import if entry.domain in OFFICIAL_DOMAINS), None)


def is_standard(op_type: str, version: int) -> bool:
    """Whether this version of ONNX defines the operator."""
    try:
        defs.get_schema(op_type, version)
    except defs.SchemaError:
        return False
    return True


def is_withdrawn(op_type: str, version: int) -> bool:
    """Whether this version of ONNX names the operator only to forbid it."""
    return is_standard(op_type, version) and bool(defs.get_schema(op_type, version).deprecated)


def _check(model: ModelProto, path: Path, size: int, at: Location) -> None:
    _check_nodes(model, at)
    version, newest = opset(model), defs.onnx_opset_version()
    if version is None and model.opset_import:
        names = ", ".join(f"`{entry.domain}`" for entry in model.opset_import)
        message = f"the model uses only operators of {names}, none of the standard"
        raise input_error("LIP109", message, "only standard ONNX operators are understood", at)
    if version is None:
        raise input_error("LIP003", "the ONNX model names no operator set: it is damaged", EXPORT_AGAIN, at)
    if len({entry.version for entry in model.opset_import if entry.domain in OFFICIAL_DOMAINS}) > 1:
        raise input_error("LIP003", "the ONNX model names two versions of the operator set", EXPORT_AGAIN, at)
    if not 7 <= version <= newest:
        message = f"the model uses operator set {version}; sets 7 to {newest} are understood"
        help_line = (
            "export it with opset_version=17" if version < 7 else "upgrade onnx, or export with opset_version=17"
        )
        raise input_error("LIP007", message, help_line, at)
    found = structure.problems(model.graph, at)
    if found:
        raise InputError(found)
    try:
        with _every_shape_present(model):
            checker.check_model(str(path) if size > _LARGEST_MESSAGE else model)
    except Exception as error:
        gone = next((node.op_type for node in _standard_nodes(model) if is_withdrawn(node.op_type, version)), None)
        if gone is not None:
            message = f"operator set {version} has no {gone}: the standard has withdrawn it"
            raise input_error("LIP007", message, "export the model with a newer opset_version", at) from None
        if all(is_standard(node.op_type, version) for node in _standard_nodes(model)):
            raise input_error("LIP003", f"not a valid ONNX model: {first_line(error)}", EXPORT_AGAIN, at) from None
        # Otherwise the importer refuses the unknown operator by its name, beside everything else it finds.


@contextmanager
def _every_shape_present(model: ModelProto) -> Iterator[None]:
    """Pretend that inputs and outputs declare shapes: the checker insists, the importer does not."""
    types = [value.type for value in (*model.graph.input, *model.graph.output)]
    bare = [kind.tensor_type for kind in types if kind.HasField("tensor_type")]
    bare = [kind for kind in bare if not kind.HasField("shape")]
    for kind in bare:
        kind.shape.SetInParent()
    try:
        yield
    finally:
        for kind in bare:
            kind.ClearField("shape")


def _standard_nodes(model: ModelProto) -> Iterator[NodeProto]:
    return (node for graph in tensors.graphs(model) for node in graph.node if node.domain in OFFICIAL_DOMAINS)


def first_line(error: Exception) -> str:
    """Return what an exception says first, cut to 200 characters; its type if it says nothing."""
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__
