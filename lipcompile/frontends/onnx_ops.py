"""The table of ONNX operators: who imports which, and what is said of the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction

from lipcompile.diagnostics import Refusal
from lipcompile.frontends import onnx_linear, onnx_merge, onnx_shape, onnx_windows
from lipcompile.frontends.onnx_context import Context
from lipcompile.frontends.onnx_node import OnnxNode
from lipcompile.frontends.onnx_values import Item
from lipcompile.graph import Value
from lipcompile.ops import OP_BY_NAME
from lipcompile.ops.activation import LeakyReLU
from lipcompile.ops.record import NoAttributes
from lipcompile.ops.schema import suggest

Importer = Callable[[Context, OnnxNode], Item | Sequence[Item] | None]


def _elementwise(name: str) -> Importer:
    def importer(context: Context, node: OnnxNode) -> Value:
        return context.add(node, OP_BY_NAME[name], NoAttributes(), [context.tensor(node)])

    return importer


def _leaky_relu(context: Context, node: OnnxNode) -> Value:
    slope = node.number("alpha", Fraction(1, 100))
    return context.add(node, OP_BY_NAME["leaky_relu"], LeakyReLU(slope), [context.tensor(node)])


def _probabilities(context: Context, node: OnnxNode) -> Value:
    """Refuse: at the output, softmax belongs to the loss."""
    if any(output in context.outputs for output in node.outputs):
        raise Refusal(
            "LIP214",
            f"the model ends in {node.op_type}: the loss is a function of the logits before it",
            "drop it: the loss contains it",
        )
    raise Refusal("LIP110", f"{node.op_type} inside a network is not yet supported")


IMPORTERS: Mapping[str, Importer] = {
    "Abs": _elementwise("abs"),
    "Add": onnx_merge.add,
    "AveragePool": onnx_windows.average_pool,
    "BatchNormalization": onnx_linear.batch_normalization,
    "Cast": onnx_shape.cast,
    "Concat": onnx_merge.concat,
    "Conv": onnx_linear.conv,
    "Div": onnx_merge.divide,
    "Dropout": onnx_shape.dropout,
    "Flatten": onnx_shape.flatten,
    "Gather": onnx_shape.gather,
    "Gemm": onnx_linear.gemm,
    "GlobalAveragePool": onnx_windows.global_average_pool,
    "GlobalMaxPool": onnx_windows.global_max_pool,
    "Identity": onnx_shape.identity,
    "LeakyRelu": _leaky_relu,
    "LogSoftmax": _probabilities,
    "LpPool": onnx_windows.lp_pool,
    "MatMul": onnx_linear.mat_mul,
    "Max": onnx_merge.maximum,
    "MaxPool": onnx_windows.max_pool,
    "Mean": onnx_merge.mean,
    "Min": onnx_merge.minimum,
    "Mul": onnx_merge.multiply,
    "Neg": onnx_merge.negate,
    "Pad": onnx_shape.pad,
    "ReduceMax": onnx_merge.extreme_of_axis,
    "ReduceMean": onnx_windows.reduce_mean,
    "ReduceMin": onnx_merge.extreme_of_axis,
    "Relu": _elementwise("relu"),
    "Reshape": onnx_shape.reshape,
    "Shape": onnx_shape.shape,
    "Sigmoid": _elementwise("sigmoid"),
    "Slice": onnx_shape.slice_,
    "Softmax": _probabilities,
    "Softplus": _elementwise("softplus"),
    "Split": onnx_shape.split,
    "Squeeze": onnx_shape.squeeze,
    "Sub": onnx_merge.sub,
    "Sum": onnx_merge.total,
    "Tanh": _elementwise("tanh"),
    "TopK": onnx_merge.top_k,
    "Transpose": onnx_shape.transpose,
    "Unsqueeze": onnx_merge.unsqueezed,
}

# Operators with a known Lipschitz rule that no record implements yet, and what serves meanwhile.
_PLANNED: Mapping[str, str] = {
    "Celu": "relu or softplus",
    "Clip": "relu or tanh",
    "ConvTranspose": "a convolution",
    "DepthToSpace": "a reshape and a transposition",
    "Elu": "relu or softplus",
    "Gelu": "relu or softplus",
    "GroupNormalization": "GroupSort, without a normalisation",
    "HardSigmoid": "sigmoid",
    "HardSwish": "relu or softplus",
    "InstanceNormalization": "GroupSort, without a normalisation",
    "LayerNormalization": "GroupSort, without a normalisation",
    "Mish": "relu or softplus",
    "PRelu": "leaky_relu",
    "Resize": "a pool, or no resampling",
    "Selu": "relu or softplus",
    "Softsign": "tanh",
    "SpaceToDepth": "a reshape and a transposition",
    "Swish": "relu or softplus",
    "ThresholdedRelu": "relu",
}
# Operators that no rule will ever cover, and why.
_HOPELESS: Mapping[str, str] = {
    "ArgMax": "its output jumps: end the model at the logits",
    "Ceil": "it jumps",
    "Einsum": "a product of two tensors",
    "Exp": "its slope is unbounded",
    "Floor": "it jumps",
    "If": "control flow that depends on data",
    "Log": "its slope is unbounded near 0",
    "Loop": "control flow that depends on data",
    "Pow": "its slope is unbounded",
    "Reciprocal": "its slope is unbounded near 0",
    "Round": "it jumps",
    "Scan": "control flow that depends on data",
    "Sign": "it jumps at 0",
    "Sqrt": "its slope is unbounded near 0",
    "Where": "it jumps",
}


def unsupported(op_type: str, *, standard: bool) -> Refusal:
    """Return what is said of an operator without importer; `standard` tells whether ONNX defines it at all."""
    if op_type in _PLANNED:
        return Refusal("LIP110", f"{op_type} is not yet supported", f"use {_PLANNED[op_type]} instead")
    if op_type in _HOPELESS:
        return Refusal("LIP100", f"unsupported op {op_type}: {_HOPELESS[op_type]}", "replace it, or leave it out")
    near = suggest(op_type, list(IMPORTERS)) or f"supported: {', '.join(IMPORTERS)}"
    known = "" if standard else ", which this operator set does not define"
    return Refusal("LIP100", f"unsupported op {op_type}{known}", near)
