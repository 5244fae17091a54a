"""Windows of convolutions and pools as ONNX describes them, and the importers of pools."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lipcompile.diagnostics import Refusal
from lipcompile.frontends.onnx_import.context import Context, shape_of
from lipcompile.frontends.onnx_import.node import OnnxNode
from lipcompile.frontends.onnx_import.values import integers
from lipcompile.graph import Value
from lipcompile.ops import OP_BY_NAME
from lipcompile.ops.pool import GlobalPool, Pool

Importer = Callable[[Context, OnnxNode], Any]
Pairs = tuple[tuple[int, int], ...]


def per_axis(node: OnnxNode, name: str, rank: int) -> tuple[int, ...]:
    """Return a positive integer per spatial axis, 1 by default."""
    found = node.integers(name)
    values = found if found is not None else (1,) * rank
    if len(values) != rank or any(value < 1 for value in values):
        raise Refusal("LIP102", f"{name} of {node.op_type} needs {rank} positive integers, not {list(values)}")
    return values


def window_padding(
    node: OnnxNode, sizes: Sequence[int], kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> Pairs:
    """Return the zeros before and after each axis, from `pads` or `auto_pad`."""
    rank, auto = len(kernel), node.text("auto_pad", "NOTSET")
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        if "Pool" in node.op_type and any(
            d > 1 or s > k for k, s, d in zip(kernel, stride, dilation, strict=True)
        ):
            message = f"runtimes disagree on auto_pad={auto} of {node.op_type} with this stride or dilation"
            raise Refusal("LIP110", message, "export the model with explicit pads")
        axes = zip(sizes, kernel, stride, dilation, strict=True)
        return tuple(_same(*axis, lower=auto == "SAME_LOWER") for axis in axes)
    pads = node.integers("pads") or ()
    if auto not in ("NOTSET", "VALID") or (auto == "VALID" and any(pads)):
        raise Refusal("LIP102", f"auto_pad={auto} of {node.op_type} does not go with pads {list(pads)}")
    values = pads or (0,) * (2 * rank)
    if len(values) != 2 * rank or any(value < 0 for value in values):
        raise Refusal(
            "LIP102", f"pads of {node.op_type} need {2 * rank} integers of at least 0, not {list(values)}"
        )
    return tuple(zip(values[:rank], values[rank:], strict=True))


def _same(size: int, kernel: int, stride: int, dilation: int, *, lower: bool) -> tuple[int, int]:
    """Zeros for ⌈size/stride⌉ outputs; the odd one stands before (lower) or after."""
    outputs = -(-size // stride)
    total = max((outputs - 1) * stride + dilation * (kernel - 1) + 1 - size, 0)
    small, large = total // 2, total - total // 2
    return (large, small) if lower else (small, large)


def _pool(context: Context, node: OnnxNode) -> Pool:
    kernel = node.integers("kernel_shape")
    example = context.shape(node)
    if not kernel or len(example) != len(kernel) + 1 or min(kernel) < 1:
        raise Refusal("LIP102", f"a window of {list(kernel or ())} does not fit an example of {list(example)}")
    stride, dilation = per_axis(node, "strides", len(kernel)), per_axis(node, "dilations", len(kernel))
    padding = window_padding(node, example[1:], kernel, stride, dilation)
    if node.integer("ceil_mode", 0):
        _refuse_partial(example[1:], kernel, stride, dilation, padding)
    return Pool(kernel, stride, padding, dilation)


def _refuse_partial(
    sizes: Sequence[int], kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int], padding: Pairs
) -> None:
    """Accept ceil_mode=1 only where no window sticks out: then it changes nothing."""
    for size, taps, step, gap, sides in zip(sizes, kernel, stride, dilation, padding, strict=True):
        if (size + sum(sides) - gap * (taps - 1) - 1) % step:
            raise Refusal(
                "LIP110",
                "ceil_mode=1 makes a window that sticks out of its input: not yet supported",
                "export with ceil_mode=0, or pad the input first",
            )


def max_pool(context: Context, node: OnnxNode) -> Value:
    """The maximum over windows; the indices, a second output, are not offered."""
    return context.add(node, OP_BY_NAME["max_pool"], _pool(context, node), [context.tensor(node)])


def average_pool(context: Context, node: OnnxNode) -> Value:
    """The mean over windows of one size: padding must count."""
    pool = _pool(context, node)
    if any(map(any, pool.padding)) and not node.integer("count_include_pad", 0):
        raise Refusal(
            "LIP110",
            "this average leaves the padding out, so that its windows have different sizes: not yet supported",
            "export with count_include_pad=1 (torch: count_include_pad=True), or without padding",
        )
    return context.add(node, OP_BY_NAME["avg_pool"], pool, [context.tensor(node)])


def lp_pool(context: Context, node: OnnxNode) -> Value:
    """The Euclidean norm of windows."""
    if node.integer("p", 2) != 2:
        raise Refusal("LIP110", f"LpPool with p={node.integer('p', 2)} is not yet supported", "use p=2")
    return context.add(node, OP_BY_NAME["l2_pool"], _pool(context, node), [context.tensor(node)])


def global_average_pool(context: Context, node: OnnxNode) -> Value:
    """The mean over all spatial entries, their axes kept."""
    return context.add(node, OP_BY_NAME["global_avg_pool"], GlobalPool(keep=True), [context.tensor(node)])


def global_max_pool(context: Context, node: OnnxNode) -> Value:
    """The maximum over one window that holds all spatial entries."""
    spatial = context.shape(node)[1:]
    one, none = (1,) * len(spatial), ((0, 0),) * len(spatial)
    pool = Pool(spatial, spatial, none, one)
    return context.add(node, OP_BY_NAME["max_pool"], pool, [context.tensor(node)])


def reduced_axes(context: Context, node: OnnxNode) -> tuple[int, ...]:
    """Return the axes of the example that a reduction removes, from its attribute or its operand, sorted."""
    operand = context.known(node, 1, "the axes")
    rank = len(context.shape(node)) + 1
    axes = node.integers("axes") if operand is None else integers(operand, "the axes")
    if not axes:
        axes = () if node.integer("noop_with_empty_axes", 0) else tuple(range(rank))
    return tuple(sorted({context.axis(node, axis, rank) for axis in axes}))


def reduce_mean(context: Context, node: OnnxNode) -> Value:
    """The mean over all spatial axes: global average pooling spelt out."""
    operand = context.tensor(node)
    axes = reduced_axes(context, node)
    if not axes or axes != tuple(range(1, len(shape_of(operand)))):
        raise Refusal(
            "LIP110",
            "a mean over other than all spatial axes is not yet supported",
            "average over the spatial axes, or use a dense layer",
        )
    keep = bool(node.integer("keepdims", 1))
    return context.add(node, OP_BY_NAME["global_avg_pool"], GlobalPool(keep=keep), [operand])
