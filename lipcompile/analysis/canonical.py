"""The canonical pass: what is spelt in two steps, and bounded better in one, becomes one.

Formal guarantee: the loss of every example, as a function of the parameters, stays the same. The output of the
module may change to the input of the merged loss: logits instead of their log-softmax.
"""

from __future__ import annotations

from dataclasses import replace

from lipcompile.core.graph import Graph, LossUse, Node
from lipcompile.core.record import class_axis
from lipcompile.diagnostics import Diagnostic, Severity
from lipcompile.ops.loss.rules import CrossEntropy
from lipcompile.ops.rules import feature_axis
from lipcompile.ops.table import LOSS_BY_NAME

# Losses of logits that do not change if a number is added to all logits of one softmax.
_SHIFT_INVARIANT = ("cross_entropy", "token_cross_entropy", "pixel_cross_entropy")


def canonical(graph: Graph) -> tuple[Graph, tuple[Diagnostic, ...]]:
    """Return the graph in canonical form, and notes of what changed."""
    last = next((node for node in graph.nodes if node.name == graph.output), None)
    loss = None if last is None else _fused(graph.loss, last)
    if last is None or loss is None:
        return graph, ()
    nodes = tuple(node for node in graph.nodes if node is not last)
    note = last.diagnostic(
        "LIP215",
        f"`{last.name}` is merged into the loss, {loss.loss.name} of logits: the module returns the logits",
        "apply log_softmax to the output to get log-probabilities",
        Severity.NOTE,
    )
    return replace(graph, nodes=nodes, output=last.inputs[0], loss=loss), (note,)


def _fused(use: LossUse | None, last: Node) -> LossUse | None:
    """Return the loss of the logits that equals `use` of their log-softmax; None where there is none.

    With y = x - ln Σe^x: -y_c is the cross entropy of x, and the cross entropy of τy is that of τx, since
    softmax(τx - c) = softmax(τx). The two apart would have √K·S times the constant of the loss (softmax.md).
    """
    if use is None or last.op.name != "log_softmax":
        return None
    rank = len(last.shape)
    if feature_axis(last.attributes.axis, last.shape) != class_axis(use.loss) % rank:  # not over the classes
        return None
    if use.loss.name == "nll":
        return replace(use, loss=LOSS_BY_NAME["cross_entropy"], attributes=CrossEntropy())
    return use if use.loss.name in _SHIFT_INVARIANT else None
