"""Importers of Resize and Upsample: by whole factors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from lipcompile.core.graph import Value
from lipcompile.core.record import Shape
from lipcompile.diagnostics import Refusal
from lipcompile.frontends.onnx.context import MIXES, Context, Importer, shape_of
from lipcompile.frontends.onnx.node import OnnxNode
from lipcompile.frontends.onnx.sizes import is_formal
from lipcompile.frontends.onnx.values import integers
from lipcompile.ops.resample.rules import Interpolation, Upsample
from lipcompile.ops.table import OP_BY_NAME

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]


def resize(context: Context, node: OnnxNode) -> Value:
    """Enlarge spatial axes by whole factors, in the conventions that torch shares."""
    operand = context.tensor(node)
    factors = _factors(context, node, shape_of(operand))
    mode, corners = _convention(node)
    return _upsampled(context, node, operand, factors, mode, align_corners=corners)


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


def _factors(context: Context, node: OnnxNode, example: Shape) -> tuple[int, ...]:
    """Return the factors of the spatial axes, from scales or sizes."""
    if context.version < 11:
        raise Refusal(
            "LIP110", "Resize before operator set 11 is not yet supported", "export with opset 11 or later"
        )
    if node.integers("axes") is not None or node.text("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise Refusal("LIP110", "Resize of chosen axes, or by a policy, is not yet supported", "give all scales")
    scales, sizes = context.known(node, 2, "the scales"), context.known(node, 3, "the sizes")
    if scales is not None and scales.array.size:
        return _whole(node, _exact(scales.array.reshape(-1)), example)
    if sizes is None:
        raise Refusal("LIP102", "Resize without scales and sizes")
    wanted = integers(sizes, "the sizes")
    if len(wanted) != len(example) + 1 or not context.is_batch(wanted[0]):
        raise Refusal("LIP108", f"Resize to {list(wanted)} changes the batch", MIXES)
    ratios = [Fraction(new, old) for new, old in zip(wanted[1:], example, strict=True)]
    return _whole(node, [Fraction(1), *ratios], example)


def _exact(scales: Iterable[Any]) -> list[Fraction]:
    try:
        found = [Fraction(float(scale)) for scale in scales]
    except (ValueError, OverflowError):  # text, NaN, infinity
        raise Refusal("LIP102", "a scale is not a finite number") from None
    if any(is_formal(int(scale)) for scale in found):
        raise Refusal("LIP108", "a scale is computed from the batch size", MIXES)
    return found


def _whole(node: OnnxNode, scales: Sequence[Fraction], example: Shape) -> tuple[int, ...]:
    """Check the factors of all axes; return those of the spatial ones."""
    if len(scales) != len(example) + 1 or len(example) < 2:
        raise Refusal("LIP102", f"{node.op_type} needs a scale for each axis of {['batch', *example]}")
    if scales[0] != 1:
        raise Refusal("LIP108", f"{node.op_type} changes the batch", MIXES)
    if scales[1] != 1 or any(scale.denominator != 1 or scale < 1 for scale in scales):
        shown = [float(scale) for scale in scales]
        raise Refusal(
            "LIP110",
            f"{node.op_type} by {shown} is not yet supported: only integer factors of spatial axes are",
            "enlarge by an integer factor, or shrink with a pool",
        )
    return tuple(int(scale) for scale in scales[2:])


def _convention(node: OnnxNode) -> tuple[Interpolation, bool]:
    """Return the interpolation and whether corners are aligned; refuse conventions that differ from torch's."""
    mode, place = node.text("mode", "nearest"), node.text("coordinate_transformation_mode", "half_pixel")
    if node.integer("antialias", 0) or node.integer("exclude_outside", 0):
        raise Refusal("LIP110", "Resize with antialias or exclude_outside is not yet supported", "switch it off")
    halves = place in ("half_pixel", "pytorch_half_pixel")
    if mode == "nearest" and _is_nearest(node, place, halves=halves):
        return "nearest", False
    if mode == "cubic" and node.number("cubic_coeff_a", Fraction(-3, 4)) != Fraction(-3, 4):
        raise Refusal("LIP110", "cubic weights other than with a = -0.75 are not yet supported", "use a = -0.75")
    if mode in ("linear", "cubic") and (halves or place == "align_corners"):
        return "bilinear" if mode == "linear" else "bicubic", place == "align_corners"
    raise Refusal(
        "LIP110",
        f"Resize with mode={mode} and coordinate_transformation_mode={place} is not yet supported",
        "export torch's interpolate: nearest, or linear and cubic with half_pixel or align_corners",
    )


def _is_nearest(node: OnnxNode, place: str, *, halves: bool) -> bool:
    """Whether each entry is repeated: for whole factors half-pixel centres never tie, so each rounding will do."""
    rounding = node.text("nearest_mode", "round_prefer_floor")
    return (place == "asymmetric" and rounding == "floor") or (
        halves and rounding in ("round_prefer_floor", "round_prefer_ceil")
    )


IMPORTERS: Mapping[str, Importer] = {
    "Resize": resize,
    "Upsample": upsample,
}
