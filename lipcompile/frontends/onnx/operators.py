"""The table of ONNX operators: who imports which, and what is said of the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from lipcompile.core.diagnostics import Refusal
from lipcompile.core.graph import Value
from lipcompile.frontends.onnx import constants
from lipcompile.frontends.onnx.context import Context
from lipcompile.frontends.onnx.node import OnnxNode
from lipcompile.frontends.onnx.refused import refusal_of
from lipcompile.frontends.onnx.values import Item
from lipcompile.ops.activation import onnx_read as activation
from lipcompile.ops.attention import onnx_read as attention
from lipcompile.ops.conv import onnx_read as conv
from lipcompile.ops.linear import onnx_einsum as einsum
from lipcompile.ops.linear import onnx_read as linear
from lipcompile.ops.merge import onnx_read as merge
from lipcompile.ops.normalisation import onnx_read as normalisation
from lipcompile.ops.pool import onnx_read as windows
from lipcompile.ops.record import NoAttributes
from lipcompile.ops.recurrent import onnx_read as recurrent
from lipcompile.ops.resample import onnx_copies as copies
from lipcompile.ops.resample import onnx_read as resample
from lipcompile.ops.shape import onnx_read as shape
from lipcompile.ops.table import OP_BY_NAME

Importer = Callable[[Context, OnnxNode], Item | Sequence[Item | None] | None]


def _elementwise(name: str) -> Importer:
    def importer(context: Context, node: OnnxNode) -> Value:
        return context.add(node, OP_BY_NAME[name], NoAttributes(), [context.tensor(node)])

    return importer


IMPORTERS: Mapping[str, Importer] = {
    "Abs": _elementwise("abs"),
    "Add": merge.add,
    "Attention": attention.attention,
    "AveragePool": windows.average_pool,
    "BatchNormalization": normalisation.batch_normalization,
    "Cast": shape.cast,
    "CastLike": shape.cast_like,
    "Celu": activation.celu,
    "Clip": activation.clip,
    "Compress": copies.compress,
    "Concat": merge.concat,
    "Conv": conv.conv,
    "ConvTranspose": conv.conv_transpose,
    "DepthToSpace": resample.depth_to_space,
    "Div": merge.divide,
    "Dropout": shape.dropout,
    "Einsum": einsum.einsum,
    "Elu": activation.elu,
    "Expand": resample.expand,
    "Flatten": shape.flatten,
    "GRU": recurrent.recurrent,
    "Gather": resample.gather,
    "Gelu": activation.gelu,
    "Gemm": linear.gemm,
    "GlobalAveragePool": windows.global_pool("global_avg_pool"),
    "GlobalLpPool": windows.global_lp_pool,
    "GlobalMaxPool": windows.global_pool("global_max_pool"),
    "GroupNormalization": normalisation.group_normalization,
    "HardSigmoid": activation.hard_sigmoid,
    "HardSwish": _elementwise("hard_swish"),
    "Identity": shape.identity,
    "InstanceNormalization": normalisation.instance_normalization,
    "LRN": normalisation.local_response,
    "LSTM": recurrent.recurrent,
    "LayerNormalization": normalisation.layer_normalization,
    "LeakyRelu": activation.leaky_relu,
    "LogSoftmax": normalisation.log_softmax,
    "LpPool": windows.lp_pool,
    "MatMul": linear.mat_mul,
    "Max": merge.maximum,
    "MaxPool": windows.max_pool,
    "Mean": merge.mean,
    "Min": merge.minimum,
    "Mish": _elementwise("mish"),
    "Mul": merge.multiply,
    "Neg": merge.negate,
    "PRelu": activation.p_relu,
    "Pad": resample.pad,
    "Pow": constants.power,
    "RMSNormalization": normalisation.rms_normalization,
    "RNN": recurrent.recurrent,
    "ReduceL1": windows.reduced("reduce_l1"),
    "ReduceL2": windows.reduced("reduce_l2"),
    "ReduceLogSumExp": windows.reduced("logsumexp"),
    "ReduceMax": merge.extreme_of_axis,
    "ReduceMean": windows.reduced("reduce_mean"),
    "ReduceMin": merge.extreme_of_axis,
    "ReduceSum": windows.reduced("reduce_sum"),
    "ReduceSumSquare": constants.sum_of_squares,
    "Relu": _elementwise("relu"),
    "Reshape": shape.reshape,
    "Resize": resample.resize,
    "Selu": activation.selu,
    "Shape": shape.shape,
    "Shrink": activation.shrink,
    "Sigmoid": _elementwise("sigmoid"),
    "Sign": _elementwise("sign"),
    "Size": shape.size,
    "Slice": shape.slice_,
    "Softmax": normalisation.softmax,
    "Softplus": _elementwise("softplus"),
    "Softsign": _elementwise("softsign"),
    "SpaceToDepth": resample.space_to_depth,
    "Split": shape.split,
    "Squeeze": shape.squeeze,
    "Sub": merge.sub,
    "Sum": merge.total,
    "Swish": activation.swish,
    "Tanh": _elementwise("tanh"),
    "Tile": copies.tile,
    "TopK": merge.top_k,
    "Transpose": shape.transpose,
    "Trilu": constants.triangle,
    "Unsqueeze": merge.unsqueezed,
    "Where": constants.where,
    "Upsample": resample.upsample,
}

# Operators that act alike wherever the batch stands among the axes, as long as they do not act on it.
CARRIED = frozenset(
    (
        *("Abs", "Add", "Cast", "Celu", "Clip", "Concat", "Div", "Dropout", "Elu", "Erf", "Exp", "Gather", "Gelu"),
        *(
            "Gemm",
            "HardSigmoid",
            "HardSwish",
            "Identity",
            "LayerNormalization",
            "LeakyRelu",
            "Log",
            "MatMul",
            "Max",
        ),
        *("Mean", "Min", "Mish", "Mul", "Neg", "Pow", "RMSNormalization", "Reciprocal", "ReduceL1", "ReduceL2"),
        *("ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum", "Relu", "Selu", "Shrink"),
        *("Sigmoid", "Sign", "Slice", "Softmax", "Softplus", "Softsign", "Split", "Sqrt", "Sub", "Sum", "Swish"),
        *("Compress", "ReduceSumSquare", "Tanh", "TopK", "Trilu", "Where"),
    )
)
# Operators of which a spelling of a supported one may consist, though they have no bound by themselves.
PARTS = frozenset(
    (
        *("Add", "Cast", "Clip", "Div", "Erf", "Exp", "IsNaN", "Log", "MatMul", "Max", "Mul", "Neg", "Pow"),
        *("Reciprocal", "ReduceMean", "ReduceSum", "ReduceSumSquare", "Relu", "Sign", "Softmax", "Sqrt", "Sub"),
        *("AveragePool", "Where", "Dropout", "Identity", "Abs", "Tanh", "Sigmoid", "Not", "Less", "Greater"),
    )
)
# Operators that only change where entries stand.
PLACING = frozenset(("Flatten", "Reshape", "Squeeze", "Transpose", "Unsqueeze"))

# Operators of shape arithmetic: fine on constants, so nothing is said of them where an operand is unknown.
_ARITHMETIC = frozenset(
    ["ConstantOfShape", "Equal", "Floor", "Ceil", "Mod", "Range", "ReduceProd", "Size", "Where"]
)


def refuse_unseen(node: OnnxNode, *, standard: bool) -> None:
    """Refuse an operator that no operand could make acceptable; raises `Refusal`."""
    if node.op_type == "BatchNormalization":
        linear.refuse_training(node)
    if node.op_type not in IMPORTERS and node.op_type not in _ARITHMETIC | PARTS:
        raise unsupported(node.op_type, standard=standard)


def unsupported(op_type: str, *, standard: bool) -> Refusal:
    """Return what is said of an operator without importer; `standard` tells whether ONNX defines it at all."""
    return refusal_of(op_type, list(IMPORTERS), standard=standard)
