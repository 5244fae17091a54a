"""Importers of Resize and Upsample."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto

from lipcompile.core.graph import Value
from lipcompile.core.record import Shape
from lipcompile.diagnostics import Refusal
from lipcompile.frontends.onnx.context import MIXES, Context, Importer, shape_of
from lipcompile.frontends.onnx.file.memory import expect_array
from lipcompile.frontends.onnx.node import OnnxNode
from lipcompile.frontends.onnx.sizes import is_formal
from lipcompile.frontends.onnx.values import Known, evaluate, integers
from lipcompile.ops.linear.onnx_read import fixed
from lipcompile.ops.resample.rules import Interpolation, Upsample
from lipcompile.ops.table import OP_BY_NAME

Array = NDArray[Any]
# The operator set whose reference makes the matrices: it has all attributes of the sets before it.
_REFERENCE = 19


def resize(context: Context, node: OnnxNode) -> Value:
    """Enlarge spatial axes by whole factors, in the conventions that torch shares; else multiply by matrices."""
    operand = context.tensor(node)
    scales, sizes = _wanted(context, node, shape_of(operand))
    if node.text("coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize":
        raise Refusal("LIP110", "Resize with tf_crop_and_resize is not yet supported", "cut, then resize")
    convention = _convention(node)
    if convention and scales[0] == 1 and all(scale.denominator == 1 and scale >= 1 for scale in scales):
        mode, corners = convention
        factors = tuple(int(scale) for scale in scales[1:])
        return _upsampled(context, node, operand, factors, mode, align_corners=corners)
    for axis, scale in enumerate(scales):
        if scale != 1:
            operand = _interpolated(context, node, operand, axis, scale, sizes[axis] if sizes else None)
    return operand


def upsample(context: Context, node: OnnxNode) -> Value:
    """The predecessor of Resize: nearest entries only, for runtimes disagreed on the rest."""
    operand = context.tensor(node)
    scales = context.known(node, 1, "the scales")
    given = node.attributes.get("scales") if scales is None else scales.array.reshape(-1).tolist()
    if node.text("mode", "nearest") != "nearest" or not isinstance(given, list | tuple):
        raise Refusal(
            "LIP110", "Upsample other than with nearest entries is not yet supported", "export with Resize"
        )
    factors = _whole(node, _exact(given), shape_of(operand))
    return _upsampled(context, node, operand, factors, "nearest", align_corners=False)


def _upsampled(
    context: Context,
    node: OnnxNode,
    operand: Value,
    factors: tuple[int, ...],
    mode: Interpolation,
    *,
    align_corners: bool,
) -> Value:
    if all(factor == 1 for factor in factors):
        return operand
    return context.add(node, OP_BY_NAME["upsample"], Upsample(factors, mode, align_corners), [operand])


def _wanted(context: Context, node: OnnxNode, example: Shape) -> tuple[Sequence[Fraction], tuple[int, ...] | None]:
    """Return the scales of the axes of an example, and the sizes if these are what the file gives."""
    if context.version < 11:
        raise Refusal(
            "LIP110", "Resize before operator set 11 is not yet supported", "export with opset 11 or later"
        )
    if node.integers("axes") is not None or node.text("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise Refusal("LIP110", "Resize of chosen axes, or by a policy, is not yet supported", "give all scales")
    scales, sizes = context.known(node, 2, "the scales"), context.known(node, 3, "the sizes")
    if scales is not None and scales.array.size:
        return _of_example(node, _exact(scales.array.reshape(-1)), example), None
    if sizes is None:
        raise Refusal("LIP102", "Resize without scales and sizes")
    wanted = integers(sizes, "the sizes")
    if len(wanted) != len(example) + 1 or not context.is_batch(wanted[0]):
        raise Refusal("LIP108", f"Resize to {list(wanted)} changes the batch", MIXES)
    return [Fraction(new, old) for new, old in zip(wanted[1:], example, strict=True)], wanted[1:]


def _interpolated(
    context: Context, node: OnnxNode, operand: Value, axis: int, scale: Fraction, size: int | None
) -> Value:
    """Resize one axis of an example: a product with the matrix that the reference makes of unit vectors."""
    old = shape_of(operand)[axis]
    new = round(scale * old) if size is None else size
    expect_array((old, new))
    proto = NodeProto()
    proto.CopyFrom(node.proto)
    corners = node.text("coordinate_transformation_mode", "half_pixel") == "align_corners"
    if corners and size is None and scale * old != new:
        message = f"Resize of {old} entries by {float(scale)}, corners aligned, means different things to runtimes"
        raise Refusal("LIP110", message, "give the sizes of the output, not scales")
    del proto.input[:], proto.output[1:]
    proto.input.extend(["x", "", "n"] if size is None else ["x", "", "", "n"])
    wanted = np.array([1, 1, float(scale)], np.float32) if size is None else np.array([old, 1, size])
    units = Known(np.eye(old, dtype=np.float32)[:, None])
    (made,) = evaluate(proto, [units, *[None] * (len(proto.input) - 2), Known(wanted)], _REFERENCE)
    matrix = made[:, 0].T
    if not matrix.size:
        raise Refusal("LIP102", f"Resize leaves nothing of an axis of {old} entries")
    return fixed(context, node, operand, axis, matrix, f"_{axis}")


def _exact(scales: Iterable[Any]) -> list[Fraction]:
    try:
        found = [Fraction(float(scale)) for scale in scales]
    except (ValueError, OverflowError):  # text, NaN, infinity
        raise Refusal("LIP102", "a scale is not a finite number") from None
    if any(is_formal(int(scale)) for scale in found):
        raise Refusal("LIP108", "a scale is computed from the batch size", MIXES)
    return found


def _of_example(node: OnnxNode, scales: Sequence[Fraction], example: Shape) -> Sequence[Fraction]:
    """Check the scales of all axes; return those of the example."""
    if len(scales) != len(example) + 1 or len(example) < 2 or min(scales) <= 0:
        raise Refusal("LIP102", f"{node.op_type} needs a scale for each axis of {['batch', *example]}")
    if scales[0] != 1:
        raise Refusal("LIP108", f"{node.op_type} changes the batch", MIXES)
    return scales[1:]


def _whole(node: OnnxNode, scales: Sequence[Fraction], example: Shape) -> tuple[int, ...]:
    """Check the scales of all axes; return the whole factors of the spatial ones."""
    channels, *spatial = _of_example(node, scales, example)
    if channels != 1 or any(scale.denominator != 1 or scale < 1 for scale in spatial):
        shown = [float(scale) for scale in scales]
        message = f"{node.op_type} by {shown} is not yet supported: only integer factors of spatial axes are"
        raise Refusal("LIP110", message, "export with Resize")
    return tuple(int(scale) for scale in spatial)


def _convention(node: OnnxNode) -> tuple[Interpolation, bool] | None:
    """Return the interpolation and whether corners are aligned; None for conventions that differ from torch's."""
    mode, place = node.text("mode", "nearest"), node.text("coordinate_transformation_mode", "half_pixel")
    if node.integer("antialias", 0) or node.integer("exclude_outside", 0):
        return None
    halves = place in ("half_pixel", "pytorch_half_pixel")
    if mode == "nearest":
        return ("nearest", False) if _is_nearest(node, place, halves=halves) else None
    if mode == "cubic" and node.number("cubic_coeff_a", Fraction(-3, 4)) != Fraction(-3, 4):
        return None
    if not halves and place != "align_corners":
        return None
    return "bilinear" if mode == "linear" else "bicubic", place == "align_corners"


def _is_nearest(node: OnnxNode, place: str, *, halves: bool) -> bool:
    """Whether each entry is repeated: for whole factors half-pixel centres never tie, so each rounding will do."""
    rounding = node.text("nearest_mode", "round_prefer_floor")
    return (place == "asymmetric" and rounding == "floor") or (
        halves and rounding in ("round_prefer_floor", "round_prefer_ceil")
    )


IMPORTERS: Mapping[str, Importer] = {"Resize": resize, "Upsample": upsample}
