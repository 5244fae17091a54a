"""Pooling over windows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import prod
from typing import Any

import numpy as np

from lipcompile.graph import Node
from lipcompile.ops.averaging import adaptive, averages
from lipcompile.ops.pool import counted, windows
from lipcompile_onnx.writer import Emit, Writer

from .resample import padded_with

Pairs = Sequence[tuple[int, int]]


def _window(node: Node, padding: Pairs, *, dilated: bool) -> dict[str, Any]:
    pool = node.attributes
    found = {
        "kernel_shape": list(pool.kernel),
        "strides": list(pool.stride),
        "pads": [low for low, _ in padding] + [high for _, high in padding],
    }
    return {**found, "dilations": list(pool.dilation)} if dilated else found


def _padding(node: Node) -> Pairs:
    """What ceil_mode adds is padding."""
    return tuple(window.padding for window in windows(node.site))


def _pool(op_type: str, fill: float, **attributes: Any) -> Emit:
    """Return the emitter of a pool whose padding counts as `fill`; runtimes pad by less than the kernel."""

    def emit(writer: Writer, node: Node, x: Sequence[str]) -> str:
        source, padding, kernel = x[0], _padding(node), node.attributes.kernel
        if any(max(sides) >= taps for sides, taps in zip(padding, kernel, strict=True)):
            source = padded_with(writer, source, padding, fill, len(node.shape))
            padding = ((0, 0),) * len(padding)
        power = {"p": node.attributes.p} if hasattr(node.attributes, "p") else {}
        return writer.op(op_type, source, **_window(node, padding, dilated=True), **attributes, **power)

    return emit


def _average(writer: Writer, node: Node, x: Sequence[str]) -> str:
    """Averages over all taps, over those on the axis, or sums over what is counted."""
    padding, counts = _padding(node), counted(node.site)
    pairs = list(zip(padding, counts, strict=True))
    if all(low <= before and high <= after for (low, high), (before, after) in pairs):
        return _mean(writer, node, x[0], padding, counts_padding=True)
    if not any(before or after for before, after in counts):
        return _mean(writer, node, x[0], padding, counts_padding=False)
    shares = [
        np.array([taps_of / average.divisor for average in averages(window, sides)])
        for window, sides, taps_of in zip(windows(node.site), counts, node.attributes.kernel, strict=True)
    ]
    factors = np.ones(())
    for share in shares:
        factors = factors[..., None] * share
    made = _mean(writer, node, x[0], padding, counts_padding=True)
    return writer.op("Mul", made, writer.constant(factors.astype(np.float32)))


def _mean(writer: Writer, node: Node, x: str, padding: Pairs, *, counts_padding: bool) -> str:
    window = _window(node, padding, dilated=False)
    return writer.op("AveragePool", x, **window, count_include_pad=int(counts_padding))


def _sum(writer: Writer, node: Node, x: Sequence[str]) -> str:
    made = _mean(writer, node, x[0], _padding(node), counts_padding=True)
    return writer.times(made, Fraction(prod(node.attributes.kernel)))


def _adaptive(writer: Writer, node: Node, x: Sequence[str]) -> str:
    """Windows of one size where they tile the example, else the mean of each, one axis after the other."""
    sizes, outputs = node.site.inputs[0][1:], node.attributes.size
    if all(size % output == 0 for size, output in zip(sizes, outputs, strict=True)):
        kernel = [size // output for size, output in zip(sizes, outputs, strict=True)]
        return writer.op("AveragePool", x[0], kernel_shape=kernel, strides=kernel)
    made = x[0]
    for axis, (size, output) in enumerate(zip(sizes, outputs, strict=True), start=1):
        parts = [average.entries for average in adaptive(size, output)]
        means = [
            writer.reduce("ReduceMean", writer.part(made, axis, part.start, part.stop), (axis,), keep=True)
            for part in parts
        ]
        made = writer.op("Concat", *means, axis=axis + 1)
    return made


EMITTERS: Mapping[str, Emit] = {
    "max_pool": _pool("MaxPool", -np.inf),
    "l2_pool": _pool("LpPool", 0.0, p=2),
    "lp_pool": _pool("LpPool", 0.0),
    "avg_pool": _average,
    "scaled_avg_pool": _sum,
    "adaptive_avg_pool": _adaptive,
}
