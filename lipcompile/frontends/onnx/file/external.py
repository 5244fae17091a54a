"""Tensors that a model keeps in files beside it: read as bytes, from regular files inside of its folder alone."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from lipcompile.core import limits
from lipcompile.core.diagnostics import Location, Refusal
from lipcompile.frontends import files
from lipcompile.frontends.onnx.file.tensors import nbytes

if TYPE_CHECKING:
    from onnx import TensorProto

_KEEP = "keep the data files beside the model, or export it as one file"
_DAMAGED = "export the model again, with its data files"


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
