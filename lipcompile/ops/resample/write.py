"""How copies and interpolation are written: as Python of torch, and as operators of ONNX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from lipcompile.core.graph import Node
from lipcompile.emitters.onnx.writer import Emit, Writer
from lipcompile.emitters.torch.pieces import Expression, axis_of, keywords

# As Python


def _pad(node: Node, operands: Sequence[str]) -> str:
    optional = {"mode": (node.attributes.mode, "zeros")}
    return f"functional.pad({', '.join([operands[0], f'{node.attributes.padding}', *keywords(optional)])})"


def _upsample(node: Node, operands: Sequence[str]) -> str:
    up = node.attributes
    optional = {"align_corners": (up.align_corners, False)}
    return f"functional.upsample({', '.join([operands[0], f'{up.factor}', repr(up.mode), *keywords(optional)])})"


EXPRESSIONS: Mapping[str, Expression] = {
    "pad": _pad,
    "upsample": _upsample,
    "gather": lambda node, x: f"functional.gather({x[0]}, {node.attributes.indices}, axis={axis_of(node)})",
    "expand": lambda node, x: f"functional.expand({x[0]}, {node.shape})",
}

# As operators of ONNX

_MODES = {"zeros": "constant", "circular": "wrap", "reflect": "reflect", "replicate": "edge"}
_PLACES = {False: "half_pixel", True: "align_corners"}


def padded(writer: Writer, x: str, padding: Sequence[tuple[int, int]], mode: str, rank: int) -> str:
    """Pad the last axes of an example of `rank` axes."""
    return writer.op("Pad", x, _pads(writer, padding, rank), mode=_MODES[mode])


def padded_with(writer: Writer, x: str, padding: Sequence[tuple[int, int]], fill: float, rank: int) -> str:
    """Pad the last axes with a number."""
    value = writer.constant(np.array(fill, dtype=np.float32))
    return writer.op("Pad", x, _pads(writer, padding, rank), value, mode="constant")


def _pads(writer: Writer, padding: Sequence[tuple[int, int]], rank: int) -> str:
    first = (0,) * (rank + 1 - len(padding))
    return writer.integers(*first, *(low for low, _ in padding), *first, *(high for _, high in padding))


def _expand(writer: Writer, node: Node, x: Sequence[str]) -> str:
    aligned = align(writer, x[0], node.site.inputs[0], len(node.shape))
    return writer.op("Expand", aligned, writer.integers(1, *node.shape))


def align(writer: Writer, x: str, shape: Sequence[int], rank: int) -> str:
    """Give an operand of fewer axes the missing ones behind the batch axis, where broadcasting must put them."""
    missing = rank - len(shape)
    return writer.reshape(x, ((1,) * missing + tuple(shape))) if missing else x


def _upsample_nodes(writer: Writer, node: Node, x: Sequence[str]) -> str:
    """One Resize where runtimes have one; other cubic ones axis by axis, each as rows of an image."""
    up, shape = node.attributes, node.site.inputs[0]
    if up.mode != "bicubic" or len(up.factor) == 2:
        return _resized(writer, node, x[0], (1.0, *map(float, up.factor)))
    made = x[0]
    for axis, factor in enumerate(up.factor, start=1):
        image = (prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :]))
        shape = (*shape[:axis], shape[axis] * factor, *shape[axis + 1 :])
        made = writer.reshape(_resized(writer, node, writer.reshape(made, image), (1.0, factor, 1.0)), shape)
    return made


def _resized(writer: Writer, node: Node, x: str, factors: Sequence[float]) -> str:
    scales = writer.constant(np.array((1.0, *factors), dtype=np.float32))
    up = node.attributes
    if up.mode == "nearest":
        place = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        return writer.op("Resize", x, "", scales, mode="nearest", **place)
    mode = {"bilinear": "linear", "bicubic": "cubic"}[up.mode]
    place = {"coordinate_transformation_mode": _PLACES[up.align_corners]}
    return writer.op("Resize", x, "", scales, mode=mode, **place)


EMITTERS: Mapping[str, Emit] = {
    "pad": lambda writer, node, x: padded(
        writer, x[0], node.attributes.padding, node.attributes.mode, len(node.shape)
    ),
    "gather": lambda writer, node, x: writer.op(
        "Gather", x[0], writer.integers(*node.attributes.indices), axis=axis_of(node) + 1
    ),
    "expand": _expand,
    "upsample": _upsample_nodes,
}
