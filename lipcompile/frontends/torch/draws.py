"""Random numbers that a module draws in evaluation mode too: emitted modules draw in training alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tag
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.fx import Node
from torch.nn import Module
from torch.utils._python_dispatch import TorchDispatchMode

from lipcompile.diagnostics import Diagnostic, Severity
from lipcompile.frontends.torch.rerun.complex_pairs import arguments
from lipcompile.frontends.torch.tracing import Example, evaluating, traced
from lipcompile.frontends.torch.translation import line_of
from lipcompile.frontends.torch.untraceable import untraceable

# Operators of normal numbers, whose mean stands for them in evaluation mode.
_NORMAL = ("randn", "randn_like", "normal", "normal_", "normal_functional")
_UNIFORM, _ONES = ("rand", "rand_like", "uniform_"), ("bernoulli", "bernoulli_")


def draws_in_evaluation(
    module: Module, examples: Sequence[Example], program: ExportedProgram
) -> Iterator[Diagnostic]:
    """Yield a warning (LIP128) of noise outside torch's own modules, which know the mode, in evaluation mode.

    program: of the module in the mode that it is in. Raises Untraceable (LIP110) for draws other than noise.
    """
    if not any(map(_draws, _read(program))):
        return
    with evaluating(module):
        calm, _ = traced(module, examples)
    found = {_name(node): node for node in _read(calm) if _draws(node)}
    for name, node in found.items():
        if name not in _NORMAL:
            message = (
                f"`{name}` draws random numbers in evaluation mode too: the emitted module does in training alone"
            )
            help_line = "say F.dropout(x, p, training=self.training), or draw under `if self.training:`"
            raise untraceable("LIP110", message, help_line, line_of(calm, node.name))
    for name, node in found.items():
        message = f"`{name}` draws noise in evaluation mode too: the emitted module takes its mean there"
        help_line = "draw under `if self.training:`; load_trained() puts what was trained into your own module"
        yield Diagnostic("LIP128", message, help_line, Severity.WARNING, location=line_of(calm, node.name))


def _read(program: ExportedProgram) -> list[Node]:
    """Return the operations that the outputs depend on, in order: a trace keeps draws that nothing reads."""
    (output,) = program.graph.find_nodes(op="output")
    waiting, seen = [output], set[Node]()
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            waiting += node.all_input_nodes
    return [node for node in program.graph.nodes if node in seen]


def _name(node: Node) -> str:
    return str(node.target).split(".")[1]


def _draws(node: Node) -> bool:
    """Whether an operation draws, and no module of torch called it."""
    callers = [str(kind) for _, kind in node.meta.get("nn_module_stack", {}).values()]
    return draws(node) and not (callers and callers[-1].startswith("torch.nn."))


def draws(node: Node) -> bool:
    """Whether an operation draws random numbers, as it was called."""
    if not isinstance(node.target, OpOverload) or Tag.nondeterministic_seeded not in node.target.tags:
        return False
    given = arguments(node.target, node.args, node.kwargs)
    return bool(given.get("train", True)) and 0 not in (given.get("p"), given.get("dropout_p"))


class _Means(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, *, of_all: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._of_all = of_all

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        drawn, name = func(*args, **(kwargs or {})), func.overloadpacket.__name__
        given = arguments(func, args, kwargs or {})
        if self._of_all and given.get("generator") is not None:  # of somebody's own: it is seen to move on
            return drawn
        if name in _NORMAL:
            drawn.copy_(torch.as_tensor(given.get("mean", 0.0)))
        elif self._of_all and name in _ONES:
            drawn.fill_(1)
        elif self._of_all and name in _UNIFORM:
            drawn.fill_((given.get("from", 0.0) + given.get("to", 1.0)) / 2)
        elif self._of_all and name == "native_dropout":
            drawn[0].copy_(given["input"])
            drawn[1].fill_(1)
        return drawn


def means(*, of_all: bool = False) -> AbstractContextManager[object]:
    """Let torch give the mean of normal numbers, as emitted modules do in evaluation mode, and draw none.

    of_all: also that of uniform numbers, and drop nothing, so that a module draws the same for all examples.
    """
    mode: AbstractContextManager[object] = _Means(of_all=of_all)
    return mode
