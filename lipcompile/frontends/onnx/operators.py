"""The table of ONNX operators: who imports which, and what is said of the others."""

from __future__ import annotations

from collections.abc import Mapping

from onnx import defs

from lipcompile.diagnostics import Refusal
from lipcompile.frontends.onnx import constants
from lipcompile.frontends.onnx.context import Importer
from lipcompile.frontends.onnx.node import OnnxNode
from lipcompile.frontends.onnx.refused import refusal_of
from lipcompile.ops.activation import onnx_read as activation
from lipcompile.ops.activation.write import WRITTEN
from lipcompile.ops.attention import onnx_read as attention
from lipcompile.ops.conv import onnx_read as conv
from lipcompile.ops.linear import onnx_einsum as einsum
from lipcompile.ops.linear import onnx_read as linear
from lipcompile.ops.merge import onnx_read as merge
from lipcompile.ops.normalisation import onnx_read as normalisation
from lipcompile.ops.pool import onnx_read as pool
from lipcompile.ops.recurrent import onnx_read as recurrent
from lipcompile.ops.resample import onnx_read as resample
from lipcompile.ops.resample import onnx_resize as resize
from lipcompile.ops.shape import onnx_read as shape
from lipcompile.ops.softmax import onnx_read as softmax

_BY_FAMILY: Mapping[str, Importer] = {
    **activation.IMPORTERS,
    **attention.IMPORTERS,
    **conv.IMPORTERS,
    **linear.IMPORTERS,
    **merge.IMPORTERS,
    **normalisation.IMPORTERS,
    **pool.IMPORTERS,
    **recurrent.IMPORTERS,
    **resample.IMPORTERS,
    **resize.IMPORTERS,
    **shape.IMPORTERS,
    **softmax.IMPORTERS,
    "Einsum": einsum.einsum,
    "Pow": constants.power,
    "ReduceSumSquare": constants.sum_of_squares,
    "Trilu": constants.triangle,
    "Where": constants.where,
}
IMPORTERS: Mapping[str, Importer] = dict(sorted(_BY_FAMILY.items()))

# Which definition of each operator the importers follow: the newest operator set that changed it, and was read.
# A later set may add an attribute or an operand, as SpaceToDepth got its `mode`; an importer that does not know it
# would take the node for what it was. Most changes add types of tensors, and mean nothing here: but one must look.
_BY_VERSION: Mapping[int, str] = {
    1: "Not",
    10: "Upsample",
    13: (
        "Clip Concat Exp Expand Floor Gather GatherElements GatherND Gemm Greater LRN Less Log LogSoftmax MatMul "
        "Max Mean Min Neg Reciprocal ReduceSum Slice Softmax Sqrt Sum Tile"
    ),
    14: "Add CumSum Div Mul Sub Trilu",
    15: "BatchNormalization Pow",
    16: "GreaterOrEqual LessOrEqual PRelu Where",
    17: "LayerNormalization",
    18: "ReduceL1 ReduceL2 ReduceMean ReduceSumSquare ScatterND Split",
    19: "Resize",
    20: "DFT Gelu IsNaN ReduceMax ReduceMin",
    21: "GroupNormalization",
    22: (
        "AveragePool Bernoulli Conv ConvTranspose Dropout GRU GlobalAveragePool GlobalLpPool GlobalMaxPool "
        "InstanceNormalization LSTM LpPool MaxPool RNN RandomNormalLike RandomUniformLike"
    ),
    23: "RMSNormalization",
    24: "Swish TopK",
    25: "Attention CastLike Flatten Identity Pad Reshape Shape Size Squeeze Transpose Unsqueeze",
    28: "Cast Compress DepthToSpace Einsum ReduceLogSumExp SpaceToDepth",
}
_ACTIVATIONS = {written.operator: written.version for written in WRITTEN.values() if written.operator}
NEWEST: Mapping[str, int] = {
    **_ACTIVATIONS,
    **{name: version for version, names in _BY_VERSION.items() for name in names.split()},
}

# Operators that act alike wherever the batch stands among the axes, as long as they do not act on it.
CARRIED = frozenset(
    (
        *_ACTIVATIONS,
        *(
            "Add",
            "BatchNormalization",
            "Cast",
            "Clip",
            "Compress",
            "Concat",
            "Div",
            "Dropout",
            "Exp",
            "Expand",
            "Gather",
            "GatherND",
            "Gelu",
        ),
        *("AveragePool", "Conv", "ConvTranspose", "GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool"),
        *("InstanceNormalization", "LpPool", "MaxPool", "Pad", "Tile"),
        *("Gemm", "Identity", "LayerNormalization", "Log", "MatMul", "Max", "Mean", "Min", "Mul", "Neg"),
        *("Pow", "RMSNormalization", "Reciprocal", "ReduceL1", "ReduceL2", "ReduceLogSumExp", "ReduceMax"),
        *("ReduceMean", "ReduceMin", "ReduceSum", "ReduceSumSquare", "Slice", "Softmax", "Split", "Sqrt"),
        *("Sub", "Sum", "Swish", "TopK", "Trilu", "Where"),
    )
)
# Operators of which a spelling of a supported one may consist, though they have no bound by themselves.
PARTS = frozenset(
    (
        *("Add", "Cast", "Clip", "Div", "Erf", "Exp", "IsNaN", "Log", "MatMul", "Max", "Mul", "Neg", "Pow"),
        *("Reciprocal", "ReduceMean", "ReduceSum", "ReduceSumSquare", "Relu", "Sign", "Softmax", "Sqrt", "Sub"),
        *("AveragePool", "Where", "Dropout", "Identity", "Abs", "Tanh", "Sigmoid", "Not", "Less", "Greater"),
        *("Bernoulli", "Floor", "GreaterOrEqual", "LessOrEqual", "RandomUniformLike"),
    )
)
# Operators that only change where entries stand.
PLACING = frozenset(("Flatten", "Reshape", "Squeeze", "Transpose", "Unsqueeze"))

# Operators of shape arithmetic: fine on constants, so nothing is said of them where an operand is unknown.
_ARITHMETIC = frozenset(
    ["ConstantOfShape", "Equal", "Floor", "Ceil", "Mod", "Range", "ReduceProd", "Size", "Where"]
)


def check_version(op_type: str, version: int) -> None:
    """Refuse an operator that a later operator set has defined anew; raises Refusal (LIP007).

    The code is none of those that a part of a spelling may have: such a node is part of none.
    """
    known = NEWEST.get(op_type)
    if known is None:
        return
    try:
        changed = defs.get_schema(op_type, version).since_version
    except defs.SchemaError:  # an operator that this set does not define: it is refused by its name
        return
    if changed > known:
        message = f"{op_type} as operator set {changed} defines it is not yet supported: sets to {known} are"
        raise Refusal("LIP007", message, f"export the model with opset_version={changed - 1}")


def refuse_unseen(node: OnnxNode, *, standard: bool) -> None:
    """Refuse an operator that no operand could make acceptable; raises `Refusal`."""
    if node.op_type == "BatchNormalization":
        linear.refuse_training(node)
    if node.op_type not in IMPORTERS and node.op_type not in _ARITHMETIC | PARTS:
        raise unsupported(node.op_type, standard=standard)


def unsupported(op_type: str, *, standard: bool) -> Refusal:
    """Return what is said of an operator without importer; `standard` tells whether ONNX defines it at all."""
    return refusal_of(op_type, list(IMPORTERS), standard=standard)
