"""What `fix` puts in the place of nodes that are refused: other layers, or nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from lipcompile.core.diagnostics import Refusal
from lipcompile.core.graph import Value
from lipcompile.frontends.mends import Mends, groups_of
from lipcompile.frontends.onnx.context import Context, shape_of
from lipcompile.frontends.onnx.node import OnnxNode
from lipcompile.ops.normalisation.onnx_read import affine, per_channel
from lipcompile.ops.normalisation.rules import Center, GroupNorm
from lipcompile.ops.table import OP_BY_NAME


def mended(context: Context, node: OnnxNode, refusal: Refusal) -> Value | None:
    """Return what takes the place of a refused node, None where nothing does, or nobody asked for it."""
    mends = context.parameters.options.mends
    make = _MENDING.get(refusal.code)
    if mends is None or make is None:
        return None
    try:
        return make(context, node, mends)
    except Refusal:
        return None


def _normalised(context: Context, node: OnnxNode, mends: Mends) -> Value:
    """A norm of one example, or its centring, with the factors and the shift of the batch normalisation."""
    operand = context.tensor(node)
    if operand.shape is None:
        return operand
    example = shape_of(operand)
    if mends.batch_norm == "center":
        made, text = context.add(node, OP_BY_NAME["center"], Center(), [operand]), "center"
    else:
        norm = GroupNorm(groups_of(example), **mends.divisor)
        made = context.add(node, OP_BY_NAME["group_norm"], norm, [operand])
        text = f"group_norm({norm.groups}, {mends.said_divisor})"
    if made.shape is not None:
        mends.note(node.label, f"batch norm -> {text}, its factors and its shift")
    return affine(context, node, made, example[:1], per_channel(example))


def _left_out(context: Context, node: OnnxNode, mends: Mends) -> Value:
    """Hand on the logits."""
    logits = context.tensor(node)
    if logits.shape is not None:
        mends.note(node.label, f"last {node.op_type} -> left out, as the loss has its own")
    return logits


# By the code of the refusal.
_MENDING: Mapping[str, Callable[[Context, OnnxNode, Mends], Value]] = {"LIP101": _normalised, "LIP214": _left_out}
