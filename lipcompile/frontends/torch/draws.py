"""Random numbers that a module draws in evaluation mode too: emitted modules draw in training alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lipcompile.frontends.torch.tracing import Example, evaluating, traced, untraceable
from lipcompile.frontends.torch.translation import line_of

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Node
    from torch.nn import Module


def refuse_draws_in_evaluation(module: Module, examples: Sequence[Example], program: ExportedProgram) -> None:
    """Raise Untraceable (LIP110) for a draw outside torch's own modules, which know the mode, in evaluation mode.

    program: of the module in the mode that it is in.
    """
    if not any(map(_draws, program.graph.nodes)):
        return
    with evaluating(module):
        calm, _ = traced(module, examples)
    node = next(filter(_draws, calm.graph.nodes), None)
    if node is None:
        return
    name = str(node.target).split(".")[1].rstrip("_")
    message = (
        f"`{name}` draws random numbers in evaluation mode too: the module that is emitted does in training alone"
    )
    help_line = "say F.dropout(x, p, training=self.training), or draw under `if self.training:`"
    raise untraceable("LIP110", message, help_line, line_of(calm, node.name))


def _draws(node: Node) -> bool:
    """Whether an operation draws, as it was called, and no module of torch called it."""
    from torch import Tag
    from torch._ops import OpOverload

    if not isinstance(node.target, OpOverload) or Tag.nondeterministic_seeded not in node.target.tags:
        return False
    callers = [str(kind) for _, kind in node.meta.get("nn_module_stack", {}).values()]
    if callers and callers[-1].startswith("torch.nn."):
        return False
    arguments = node.target._schema.arguments
    given = {one.name: one.default_value for one in arguments if one.has_default_value()}
    given |= dict(zip((one.name for one in arguments), node.args, strict=False)) | node.kwargs
    return bool(given.get("train", True)) and given.get("dropout_p", 1) != 0
