"""An .onnx file -> a checked ModelProto, or an `InputError` that says what the file is instead."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from lipcompile.diagnostics import InputError, Location, input_error

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, TensorProto

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


def read(path: Path) -> tuple[ModelProto, str]:
    """Return the model of a file, its tensors in memory, and the file's sha256; raises InputError."""
    at = Location(str(path))
    try:
        content = path.read_bytes()
    except OSError as error:
        raise input_error("LIP001", f"`{path}` cannot be read: {error.strerror}", "check the path", at) from None
    model = _parse(content, at)
    _load_external(model, path, at)
    model = _inlined(model)
    _check(model, path, len(content), at)
    return model, hashlib.sha256(content).hexdigest()


def _parse(content: bytes, at: Location) -> ModelProto:
    import onnx

    if not content:
        raise input_error("LIP002", "the file is empty: it is not an ONNX model", EXPORT_AGAIN, at)
    for magic, what, mend in _MAGIC:
        if content.startswith(magic):
            raise input_error("LIP002", f"this is {what}, not an ONNX model", mend, at)
    if _is_text(content):
        raise _text_error(content, at)
    try:
        model = onnx.load_model_from_string(content)
    except Exception:  # protobuf's DecodeError, which has no typed home
        raise _undecodable(content, at) from None
    if _has_damaged_names(model):
        raise _undecodable(content, at)
    if not model.ir_version or not (model.graph.node or model.graph.output):
        raise input_error("LIP002", "this is not an ONNX model: it holds no graph", EXPORT_AGAIN, at)
    return model


def _has_damaged_names(model: ModelProto) -> bool:
    """Whether a string of the file is not UTF-8: such a field is read as bytes."""
    names: list[str | bytes] = [text for entry in model.metadata_props for text in (entry.key, entry.value)]
    names += [entry.domain for entry in model.opset_import]
    for graph in graphs(model):
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


# Tensors outside the file


def graphs(model: ModelProto) -> Iterator[GraphProto]:
    """Yield the graph and every graph inside an attribute of a node."""
    pending = [model.graph]
    while pending:
        graph = pending.pop()
        yield graph
        for node in graph.node:
            for attribute in node.attribute:
                pending += [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]


def _stored_tensors(model: ModelProto) -> Iterator[TensorProto]:
    for graph in graphs(model):
        yield from graph.initializer
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.HasField("t"):
                    yield attribute.t


def _load_external(model: ModelProto, path: Path, at: Location) -> None:
    """Read tensors kept in other files, which must lie in the folder of the model."""
    from onnx.external_data_helper import load_external_data_for_model, uses_external_data

    if not any(uses_external_data(tensor) for tensor in _stored_tensors(model)):
        return
    try:
        load_external_data_for_model(model, str(path.resolve().parent))
    except Exception as error:
        message = f"weights kept outside the file cannot be read: {_first_line(error)}"
        help_line = "keep the data files beside the model, or export it as one file"
        raise input_error("LIP004", message, help_line, at) from None


def _inlined(model: ModelProto) -> ModelProto:
    """Replace calls of functions that the file defines by their bodies."""
    if not model.functions:
        return model
    from onnx.inliner import inline_local_functions

    try:
        return inline_local_functions(model)
    except Exception:  # the importer then names the functions as operators it does not know
        return model


# Checks


def opset(model: ModelProto) -> int | None:
    """Return the version of the standard operators that the model asks for."""
    return next((entry.version for entry in model.opset_import if entry.domain in OFFICIAL_DOMAINS), None)


def is_standard(op_type: str, version: int) -> bool:
    """Whether this version of ONNX defines the operator."""
    from onnx import defs

    try:
        defs.get_schema(op_type, version)
    except defs.SchemaError:
        return False
    return True


def _check(model: ModelProto, path: Path, size: int, at: Location) -> None:
    from onnx import checker, defs

    version, newest = opset(model), defs.onnx_opset_version()
    if version is None:
        raise input_error("LIP003", "the ONNX model names no operator set: it is damaged", EXPORT_AGAIN, at)
    if not 7 <= version <= newest:
        message = f"the model uses operator set {version}; sets 7 to {newest} are understood"
        mend = (
            "export it with opset_version=17" if version < 7 else "upgrade onnx, or export with opset_version=17"
        )
        raise input_error("LIP007", message, mend, at)
    try:
        with _every_shape_present(model):
            checker.check_model(str(path) if size > _LARGEST_MESSAGE else model)
    except Exception as error:
        if all(is_standard(node.op_type, version) for node in _standard_nodes(model)):
            raise input_error(
                "LIP003", f"not a valid ONNX model: {_first_line(error)}", EXPORT_AGAIN, at
            ) from None
        # Otherwise the importer refuses the unknown operator by its name, beside everything else it finds.


@contextmanager
def _every_shape_present(model: ModelProto) -> Iterator[None]:
    """Pretend that inputs and outputs declare shapes: the checker insists, the importer does not."""
    types = [value.type.tensor_type for value in (*model.graph.input, *model.graph.output)]
    bare = [kind for kind in types if not kind.HasField("shape")]
    for kind in bare:
        kind.shape.SetInParent()
    try:
        yield
    finally:
        for kind in bare:
            kind.ClearField("shape")


def _standard_nodes(model: ModelProto) -> Iterator[NodeProto]:
    return (node for graph in graphs(model) for node in graph.node if node.domain in OFFICIAL_DOMAINS)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__
