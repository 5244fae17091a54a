"""Colour spaces in torch and ONNX: there a convolution with a constant kernel of one pixel, and comparisons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from lipcompile.core.graph import Node
from lipcompile.emitters.onnx.writer import Emit, Writer
from lipcompile.emitters.torch.pieces import Expression
from lipcompile.ops.colour.rules import MATRICES

EXPRESSIONS: Mapping[str, Expression] = {
    "colour_space": lambda node, x: f"functional.colour_space({x[0]}, {node.attributes.space!r})",
    "hsv": lambda _, x: f"functional.hsv({x[0]})",
}

_LEAST = 1e-6  # what smaller divisors are replaced by


def _linear(writer: Writer, node: Node, x: Sequence[str]) -> str:
    matrix = np.array(MATRICES[node.attributes.space], dtype=np.float32)
    return writer.op("Conv", x[0], writer.constant(matrix[:, :, None, None]))


def _hsv(writer: Writer, node: Node, x: Sequence[str]) -> str:
    op = writer.op
    zero, one, two, four, six, least = (
        writer.constant(np.array(number, dtype=np.float32)) for number in (0, 1, 2, 4, 6, _LEAST)
    )
    cut = op("Clip", x[0], zero, one)
    red, green, blue = (writer.part(cut, 0, channel, channel + 1) for channel in range(3))
    value = writer.reduce("ReduceMax", cut, (0,), keep=True)
    spread = op("Sub", value, writer.reduce("ReduceMin", cut, (0,), keep=True))
    divisor = op("Max", spread, least)

    def sector(first: str, second: str, start: str) -> str:
        return op("Add", op("Div", op("Sub", first, second), divisor), start)

    others = op("Where", op("Equal", value, green), sector(blue, red, two), sector(red, green, four))
    chosen = op("Where", op("Equal", value, red), sector(green, blue, zero), others)
    turned = op("Div", chosen, six)
    hue = op("Sub", turned, op("Floor", turned))
    return op("Concat", hue, op("Div", spread, op("Max", value, least)), value, axis=1)


EMITTERS: Mapping[str, Emit] = {"colour_space": _linear, "hsv": _hsv}
