"""Batch normalisations that normalised by their batch in the module, and by fixed statistics in the file.

torch.onnx.export(dynamo=True) writes batch normalisation as if the module were evaluated, and only says in the
metadata of the node that it was not. A file means what it computes, but who exported it may have meant otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from lipcompile.core.diagnostics import Diagnostic, Location, Severity
from lipcompile.frontends.onnx.node import OnnxNode

_CALL = "pkg.torch.onnx.fx_node"
# What torch calls, with its arguments: …, training, momentum, eps).
_IN_TRAINING = re.compile(
    r"target=torch\.ops\.aten\.\w*batch_norm\w*\.\w+\]\(args = \([^()]*, True, [\d.e+-]+, [\d.e+-]+\)"
)
_MEND = "export the module after .eval(), to say so; in training mode it couples the examples of a batch (LIP101)"


def evaluated(nodes: Iterable[OnnxNode], at: Location | None) -> Iterator[Diagnostic]:
    """Yield a warning if batch normalisations were in training mode, and are not in the file."""
    names = [node.call.rpartition(".")[0] or node.label for node in nodes if _was_in_training(node)]
    if not names:
        return
    others = f" and {len(names) - 1} more were" if len(names) > 1 else " was"
    message = f"the file normalises by running statistics, though `{names[0]}`{others} in training mode"
    yield Diagnostic("LIP114", message, _MEND, Severity.WARNING, names[0], "BatchNormalization", at)


def _was_in_training(node: OnnxNode) -> bool:
    call = next((entry.value for entry in node.proto.metadata_props if entry.key == _CALL), "")
    return not node.attributes.get("training_mode") and _IN_TRAINING.search(call) is not None
