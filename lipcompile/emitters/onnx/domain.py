"""The declared domain of a model, as operators in front of it: each example is clipped to the ball."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from onnx import TensorProto

from lipcompile.core.graph import Input
from lipcompile.emitters.onnx.writer import Writer
from lipcompile.numbers.rounding import below


def clipped(writer: Writer, source: Input) -> str:
    """Return the example as the emitted module clips it: x where ‖x‖ < r, x·(r/‖x‖) elsewhere, and zero for an
    example with an entry that is no finite number.

    The norm is taken in float64, in which the squares of no float32 overflow. Where it is no number, so is the
    factor: a comparison with it is false. What is no number then becomes 0.
    """
    assert isinstance(source.norm, Fraction)
    radius = writer.constant(np.array(below(source.norm)))
    one, zero = writer.constant(np.array(1.0)), writer.constant(np.array(0, dtype=np.float32))
    entries = writer.op("Cast", source.name, to=TensorProto.DOUBLE)
    squares = writer.op("Mul", entries, entries)
    total = writer.reduce("ReduceSum", squares, range(len(source.shape)), keep=True) if source.shape else squares
    norm = writer.op("Sqrt", total)
    inside = writer.op("Less", norm, radius)
    factor = writer.op("Where", inside, one, writer.op("Div", radius, norm))
    scaled = writer.op("Mul", source.name, writer.op("Cast", factor, to=TensorProto.FLOAT))
    return writer.op("Where", writer.op("IsNaN", scaled), zero, scaled)
