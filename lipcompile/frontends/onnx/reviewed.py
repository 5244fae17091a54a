"""Which definition of each operator the importers follow: the newest operator set that changed it, and was read.

A later set may add an attribute or an operand, as SpaceToDepth got its `mode`; an importer that does not know it
would take the node for what it was. Most changes add types of tensors, and mean nothing here: but one must look.
"""

from __future__ import annotations

from collections.abc import Mapping

from lipcompile.core.diagnostics import Refusal

_BY_VERSION: Mapping[int, str] = {
    1: "Not",
    9: "Shrink",
    10: "Upsample",
    13: (
        "Abs Clip Concat Erf Exp Expand Gather Gemm Greater LRN Less Log LogSoftmax MatMul Max Mean Min "
        "Neg Reciprocal ReduceSum Sigmoid Sign Slice Softmax Sqrt Sum Tanh Tile"
    ),
    14: "Add Div Mul Relu Sub Trilu",
    15: "BatchNormalization Pow",
    16: "LeakyRelu PRelu Where",
    17: "LayerNormalization",
    18: "ReduceL1 ReduceL2 ReduceMean ReduceSumSquare Split",
    19: "Resize",
    20: "Gelu IsNaN ReduceMax ReduceMin",
    21: "GroupNormalization",
    22: (
        "AveragePool Conv ConvTranspose Dropout Elu GRU GlobalAveragePool GlobalLpPool GlobalMaxPool "
        "HardSigmoid HardSwish InstanceNormalization LSTM LpPool MaxPool Mish RNN Selu Softplus Softsign"
    ),
    23: "RMSNormalization",
    24: "Swish TopK",
    25: "Attention CastLike Flatten Identity Pad Reshape Shape Size Squeeze Transpose Unsqueeze",
    28: "Cast Celu Compress DepthToSpace Einsum ReduceLogSumExp SpaceToDepth",
}
NEWEST: Mapping[str, int] = {name: version for version, names in _BY_VERSION.items() for name in names.split()}


def check(op_type: str, version: int) -> None:
    """Refuse an operator that a later operator set has defined anew; raises Refusal (LIP007).

    The code is none of those that a part of a spelling may have: such a node is part of none.
    """
    from onnx import defs

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
