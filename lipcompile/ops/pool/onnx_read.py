"""Windows of convolutions and pools as ONNX describes them, and the importers of pools."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

from lipcompile.core.graph import Value
from lipcompile.core.record import Shape
from lipcompile.diagnostics import Refusal
from lipcompile.frontends.onnx.context import Context, Importer, as_tensor, shape_of
from lipcompile.frontends.onnx.layout import FIRST, Layout
from lipcompile.frontends.onnx.node import OnnxNode
from lipcompile.frontends.onnx.values import integers
from lipcompile.ops.pool.rules import AveragePool, LpPool, Pool
from lipcompile.ops.reduce.rules import GlobalPool, Reduce
from lipcompile.ops.shape.onnx_read import reshape_to
from lipcompile.ops.table import OP_BY_NAME

Pairs = tuple[tuple[int, int], ...]
# Reductions that also do something to each entry.
_OF_ENTRIES = ("reduce_l1", "reduce_l2")


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
        raise Refusal("LIP102", f"auto_pad={auto} of {node.op_type} cannot be combined with pads {list(pads)}")
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


def images_of(context: Context, node: OnnxNode) -> int:
    """Return how many axes of an example [*images, channels, *spatial] say which of its images it is, 0 for one.

    These and the batch are the first axis of the file. Raises Refusal (LIP108) where the batch stands elsewhere.
    """
    layout = context.layout
    if layout.place or (layout != FIRST and not (layout.outer or layout.inner)):
        as_tensor(context.item(node, 0), node.op_type)
    return layout.outer + layout.inner


def of_channels(importer: Callable[[Context, OnnxNode], Value], *, has_factors: bool = False) -> Importer:
    """Return the importer of what treats each channel by itself: those of several images are channels of one.

    So are the images of a file in which the batch stands where channels do, which may have no factors then.
    """

    def framed(context: Context, node: OnnxNode) -> Value:
        layout, name = context.layout, node.proto.input[0]
        images = 0 if layout == Layout(1) and not has_factors else images_of(context, node)
        if layout == FIRST:
            return importer(context, node)
        operand, before = context.tensor(node), context.items[name]
        axes, spatial = shape_of(operand)[: images + 1], shape_of(operand)[images + 1 :]
        context.items[name] = reshape_to(context, node, operand, (prod(axes), *spatial), "_images")
        context.layout = FIRST
        try:
            made = importer(context, node)
        finally:
            context.items[name], context.layout = before, layout
        return reshape_to(context, node, made, (*axes, *shape_of(made)[1:]), "_of_images")

    return framed


def pool_of(node: OnnxNode, example: Shape) -> Pool:
    """Return the windows of a pool over an example; raises Refusal."""
    kernel = node.integers("kernel_shape")
    if not kernel or len(example) != len(kernel) + 1 or min(kernel) < 1:
        raise Refusal("LIP102", f"a window of {list(kernel or ())} does not fit an example of {list(example)}")
    stride, dilation = per_axis(node, "strides", len(kernel)), per_axis(node, "dilations", len(kernel))
    padding = window_padding(node, example[1:], kernel, stride, dilation)
    ceil_mode = bool(node.integer("ceil_mode", 0))
    if ceil_mode and node.text("auto_pad", "NOTSET") == "VALID":
        message = f"runtimes disagree on ceil_mode=1 of {node.op_type} with auto_pad=VALID"
        raise Refusal("LIP110", message, "export the model with explicit pads")
    return Pool(kernel, stride, padding, dilation, ceil_mode)


def max_pool(context: Context, node: OnnxNode) -> Value:
    """The maximum over windows; the indices, a second output, are not offered."""
    return context.unary(node, "max_pool", pool_of(node, context.shape(node)))


def average_pool(context: Context, node: OnnxNode) -> Value:
    """The mean over windows; padding counts if the attribute says so."""
    pool = pool_of(node, context.shape(node))
    if any(step > 1 for step in pool.dilation):
        raise Refusal("LIP110", "AveragePool with dilations is not yet supported", "use a convolution")
    window = (pool.kernel, pool.stride, pool.padding, pool.dilation, pool.ceil_mode)
    counts = bool(node.integer("count_include_pad", 0))
    return context.unary(node, "avg_pool", AveragePool(*window, counts))


def lp_pool(context: Context, node: OnnxNode) -> Value:
    """The p-norm of windows."""
    pool, p = pool_of(node, context.shape(node)), node.integer("p", 2)
    if p == 2:
        return context.unary(node, "l2_pool", pool)
    norm = LpPool(p, pool.kernel, pool.stride, pool.padding, pool.dilation, pool.ceil_mode)
    return context.unary(node, "lp_pool", norm)


def global_lp_pool(context: Context, node: OnnxNode) -> Value:
    """The p-norm of all spatial entries, their axes kept."""
    spatial, p = context.shape(node)[1:], node.integer("p", 2)
    if p == 2:
        return context.unary(node, "global_l2_pool", GlobalPool(keep=True))
    none, one = ((0, 0),) * len(spatial), (1,) * len(spatial)
    norm = LpPool(p, spatial, spatial, none, one)
    return context.unary(node, "lp_pool", norm)


def global_pool(op: str) -> Callable[[Context, OnnxNode], Value]:
    """Return the importer of a pool over all spatial entries, their axes kept."""
    return lambda context, node: context.unary(node, op, GlobalPool(keep=True))


def reduced_axes(context: Context, node: OnnxNode, example: Shape) -> tuple[int, ...]:
    """Return the axes of the example that a reduction removes, from its attribute or its operand, sorted."""
    operand = context.known(node, 1, "the axes")
    axes = node.integers("axes") if operand is None else integers(operand, "the axes")
    if not axes:
        axes = () if node.integer("noop_with_empty_axes", 0) else tuple(range(context.layout.rank(example)))
    return tuple(sorted({context.axis(node, axis, len(example) + 1) for axis in axes}))


def reduced(op: str) -> Importer:
    """Return the importer of a reduction over axes of the example."""
    return lambda context, node: reduction_of(context, node, context.tensor(node), op)


def reduction_of(context: Context, node: OnnxNode, operand: Value, op: str) -> Value:
    """Reduce a tensor of the shape of the first operand, as the node says."""
    axes = reduced_axes(context, node, shape_of(operand))
    if not axes and op in _OF_ENTRIES:
        message = (
            f"runtimes disagree on {node.op_type} over no axis: some return absolute values, others the input"
        )
        raise Refusal("LIP110", message, "name the axes")
    if not axes:
        return operand
    reduction = Reduce(axes, keep=bool(node.integer("keepdims", 1)))
    for axis in reversed(axes) if not reduction.keep else ():
        context.resized(axis, -1)
    return context.add(node, OP_BY_NAME[op], reduction, [operand])


IMPORTERS: Mapping[str, Importer] = {
    "AveragePool": of_channels(average_pool),
    "GlobalAveragePool": of_channels(global_pool("global_avg_pool")),
    "GlobalLpPool": of_channels(global_lp_pool),
    "GlobalMaxPool": of_channels(global_pool("global_max_pool")),
    "LpPool": of_channels(lp_pool),
    "MaxPool": of_channels(max_pool),
    "ReduceL1": reduced("reduce_l1"),
    "ReduceL2": reduced("reduce_l2"),
    "ReduceLogSumExp": reduced("logsumexp"),
    "ReduceMean": reduced("reduce_mean"),
    "ReduceSum": reduced("reduce_sum"),
}
