"""Importers of softmax and of its logarithm."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from math import prod

import numpy as np

from lipcompile.core.graph import Value
from lipcompile.diagnostics import Refusal
from lipcompile.frontends.onnx.constants import plus_entries, scaled
from lipcompile.frontends.onnx.context import MIXES, Context, Importer
from lipcompile.frontends.onnx.node import OnnxNode
from lipcompile.ops.shape.onnx_read import reshape_to
from lipcompile.ops.table import OP_BY_NAME

# Losses that are one with a log-softmax before them; `analysis.canonical` joins them.
_OF_LOG_PROBABILITIES = ("nll", "cross_entropy", "token_cross_entropy", "pixel_cross_entropy")

# Losses of any outputs, such as probabilities.
_OF_OUTPUTS = ("own", "squared_error", "mean_squared_error", "absolute_error", "huber", "smooth_l1")


def softmax(context: Context, node: OnnxNode) -> Value:
    """Softmax inside a network; at the output it belongs to a loss of logits."""
    if _is_last(context, node):
        raise _ends_in(node, "remove it, as `lipcompile fix` does: the loss contains it")
    return _along_axis(context, node, "softmax")


def log_softmax(context: Context, node: OnnxNode) -> Value:
    """Log-softmax inside a network, or before a loss that takes it in."""
    if _is_last(context, node) and context.loss not in _OF_LOG_PROBABILITIES:
        raise _ends_in(
            node, "declare the loss that takes its output, --loss nll, or remove it, as `lipcompile fix` does"
        )
    return _along_axis(context, node, "log_softmax")


def _is_last(context: Context, node: OnnxNode) -> bool:
    """Whether a node makes the output, for no loss that is known to take other numbers than logits."""
    return context.loss not in _OF_OUTPUTS and any(output in context.outputs for output in node.outputs)


def _ends_in(node: OnnxNode, help_line: str) -> Refusal:
    message = f"the model ends in {node.op_type}: the loss is a function of the logits before it"
    return Refusal("LIP214", message, help_line)


def _along_axis(context: Context, node: OnnxNode, op: str) -> Value:
    """Add an op of one axis, of one entry a constant; before operator set 13, all axes from that on were one."""
    operand, example = context.tensor(node), context.shape(node)
    axis = context.axis(node, node.integer("axis", -1 if context.version >= 13 else 1), len(example) + 1)
    attributes = OP_BY_NAME[op].attributes(axis=axis)
    if context.version < 13 and context.layout.place > axis:
        raise Refusal("LIP108", f"{node.op_type} runs over the batch axis: it mixes examples", MIXES)
    if context.version >= 13 and example[axis] == 1:
        zeros = scaled(context, node, operand, Fraction(0), "_zero")
        return plus_entries(context, node, zeros, np.full(example, op == "softmax", np.float32), "_one")
    if context.version >= 13 or axis == len(example) - 1:
        return context.add(node, OP_BY_NAME[op], attributes, [operand])
    flat = reshape_to(context, node, operand, (*example[:axis], prod(example[axis:])), "_joined")
    made = context.add(node, OP_BY_NAME[op], attributes, [flat])
    return reshape_to(context, node, made, example, "_split")


IMPORTERS: Mapping[str, Importer] = {"LogSoftmax": log_softmax, "Softmax": softmax}
