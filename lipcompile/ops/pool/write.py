"""How pools over windows are written: as Python of torch, and as operators of ONNX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import prod
from typing import Any

import numpy as np

from lipcompile.core.graph import Node
from lipcompile.emitters.onnx.writer import Array, Emit, Writer, window_attributes
from lipcompile.emitters.torch.pieces import Expression, keywords
from lipcompile.ops.averaging import adaptive, averages
from lipcompile.ops.pool.rules import counted, windows
from lipcompile.ops.resample.write import padded_with

# As Python


def _arguments(node: Node) -> list[str]:
    """Write the window: what ceil_mode adds is padding."""
    pool = node.attributes
    axes = len(pool.kernel)
    padding = tuple(window.padding for window in windows(node.site))
    optional = {
        "stride": (pool.stride, pool.kernel),
        "padding": (padding, ((0, 0),) * axes),
        "dilation": (pool.dilation, (1,) * axes),
    }
    return [f"{pool.kernel}", *keywords(optional)]


def _pool(name: str) -> Expression:
    return lambda node, x: f"functional.{name}({', '.join([x[0], *_arguments(node)])})"


def _average(node: Node, operands: Sequence[str]) -> str:
    """Write an average, and what its divisors count if that is not every tap."""
    sides = counted(node.site)
    pairs = zip(windows(node.site), sides, strict=True)
    whole = all(w.padding[0] <= low and w.padding[1] <= high for w, (low, high) in pairs)
    divisor = [] if whole else [f"counted={sides}"]
    return f"functional.avg_pool({', '.join([operands[0], *_arguments(node), *divisor])})"


def _adaptive(node: Node, operands: Sequence[str]) -> str:
    size = node.attributes.size
    return f"F.adaptive_avg_pool{len(size)}d({operands[0]}, {size})"


EXPRESSIONS: Mapping[str, Expression] = {
    "max_pool": _pool("max_pool"),
    "l2_pool": _pool("l2_pool"),
    "lp_pool": lambda node, operands: (
        f"functional.lp_pool({', '.join([operands[0], str(node.attributes.p), *_arguments(node)])})"
    ),
    "avg_pool": _average,
    "scaled_avg_pool": _pool("scaled_avg_pool"),
    "adaptive_avg_pool": _adaptive,
}

# As operators of ONNX

Pairs = Sequence[tuple[int, int]]


def _padding(node: Node) -> Pairs:
    """What ceil_mode adds is padding."""
    return tuple(window.padding for window in windows(node.site))


def _fits(node: Node, padding: Pairs) -> bool:
    """Whether runtimes take the padding: each side is less than the kernel."""
    return all(max(sides) < taps for sides, taps in zip(padding, node.attributes.kernel, strict=True))


def _inside(writer: Writer, node: Node, x: str, fill: float) -> tuple[str, Pairs]:
    """Return the operand of a pool and the padding that the pool itself adds; what does not fit is added here.

    The reshape keeps onnxruntime from moving the padding back into the pool, which it then refuses.
    """
    padding = _padding(node)
    if _fits(node, padding):
        return x, padding
    channels, *sizes = node.site.inputs[0]
    grown = tuple(size + low + high for size, (low, high) in zip(sizes, padding, strict=True))
    added = padded_with(writer, x, padding, fill, len(node.shape))
    return writer.reshape(added, (channels, *grown)), ((0, 0),) * len(padding)


def _pool_nodes(op_type: str, fill: float, **attributes: Any) -> Emit:
    """Return the emitter of a pool whose padding counts as `fill`."""

    def emit(writer: Writer, node: Node, x: Sequence[str]) -> str:
        source, padding = _inside(writer, node, x[0], fill)
        dilations = list(node.attributes.dilation)
        power = {"p": node.attributes.p} if node.op.name == "lp_pool" else {}
        return writer.op(
            op_type, source, **window_attributes(node, padding), dilations=dilations, **attributes, **power
        )

    return emit


# Averages


def _average_nodes(writer: Writer, node: Node, x: Sequence[str]) -> str:
    """Averages over all taps, over those on the axis, or over all with a factor for each window."""
    padding, counts = _padding(node), counted(node.site)
    pairs = list(zip(padding, counts, strict=True))
    if all(low <= before and high <= after for (low, high), (before, after) in pairs):
        return _mean(writer, node, x[0])
    if not any(before or after for before, after in counts) and _fits(node, padding):
        return writer.op("AveragePool", x[0], **window_attributes(node, padding), count_include_pad=0)
    return writer.op("Mul", _mean(writer, node, x[0]), writer.constant(_factors(node, counts)))


def _factors(node: Node, counts: Pairs) -> Array:
    """Return, for each window, the number of its taps over that of those that its divisor counts."""
    factors = np.ones((), dtype=np.float32)
    for window, sides, taps in zip(windows(node.site), counts, node.attributes.kernel, strict=True):
        factors = factors[..., None] * np.array([taps / average.divisor for average in averages(window, sides)])
    return factors.astype(np.float32)


def _mean(writer: Writer, node: Node, x: str) -> str:
    """The mean over all taps."""
    source, padding = _inside(writer, node, x, 0.0)
    return writer.op("AveragePool", source, **window_attributes(node, padding), count_include_pad=1)


def _adaptive_nodes(writer: Writer, node: Node, x: Sequence[str]) -> str:
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
    "max_pool": _pool_nodes("MaxPool", -np.inf),
    "l2_pool": _pool_nodes("LpPool", 0.0, p=2),
    "lp_pool": _pool_nodes("LpPool", 0.0),
    "avg_pool": _average_nodes,
    "scaled_avg_pool": lambda writer, node, x: writer.times(
        _mean(writer, node, x[0]), Fraction(prod(node.attributes.kernel))
    ),
    "adaptive_avg_pool": _adaptive_nodes,
}
