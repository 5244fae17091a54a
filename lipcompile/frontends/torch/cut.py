"""What holds gradients back or changes them on their way: an import has the functions, and their own gradients."""

from __future__ import annotations

import sys
from collections.abc import Container, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch.autograd import function
from torch.export import ExportedProgram
from torch.fx import Node
from torch.nn import Module

from lipcompile.diagnostics import Diagnostic, Location, Severity
from lipcompile.frontends.onnx.node import traced_line

_HELP = (
    "expect other gradients than those of your module: call requires_grad_(False) on parameters that are not to "
    "be trained, or train it by PrivacyEngine.make_private_by_clipping, which has your gradients"
)
# Of weights that these compute from others, the import may train the result: LIP122 tells.
_OF_PARAMETRISATIONS = "parametrizations."
_BEFORE_A_HOOK = "_orig"
# Private to torch. Up to 2.13 `apply` is written in Python and asks this of every function that it calls; later
# versions do not ask, and their functions are not told of.
_ASKED = "_is_setup_context_defined"


@contextmanager
def noted() -> Iterator[list[str]]:
    """Collect the gradients that the code of a module defines itself meanwhile: of functions, by hooks."""
    found: list[str] = []
    defines: Any = getattr(function, _ASKED, None)
    register: Any = torch.Tensor.register_hook

    def asked(method: Any) -> bool:
        # Not `apply` itself is replaced, since code may hold it from before.
        kind = sys._getframe(1).f_locals.get("cls")
        if kind is not None and not _is_torchs(kind):
            found.append(f"the function {kind.__name__}, which has its own backward pass")
        return bool(defines(method))

    def hooked(tensor: torch.Tensor, hook: Any) -> Any:
        if not _is_torchs(hook):
            found.append("a hook on a tensor")
        return register(tensor, hook)

    with patch.object(function, _ASKED, asked, create=True), patch.object(torch.Tensor, "register_hook", hooked):
        yield found


def _is_torchs(what: Any) -> bool:
    return str(getattr(what, "__module__", "")).partition(".")[0] == "torch"


def changed_gradients(
    module: Module, program: ExportedProgram, seen: list[str], computed: Container[str]
) -> Iterator[Diagnostic]:
    """Yield a warning if a trained parameter has other gradients in the module than in its import.

    Args:
        module: the module.
        program: its trace.
        seen: what `noted` collected during the trace.
        computed: names of parameters of which the import trains what is computed from them.
    """
    cut = _cut(module, program, computed)
    names = dict.fromkeys([*(name for name, _ in cut), *seen, *_hooks(module)])
    if names:
        message = f"{', '.join(names)}: the emitted module has the gradients of what is computed, without that"
        at = next((place for _, place in cut if place is not None), None)
        yield Diagnostic("LIP127", message, _HELP, Severity.WARNING, location=at)


def _hooks(module: Module) -> Iterator[str]:
    """Yield the hooks of modules and parameters that a backward pass calls."""
    for name, part in module.named_modules():
        if part._backward_hooks or part._backward_pre_hooks:
            yield f"a backward hook on `{name or 'the module'}`"
    for name, parameter in module.named_parameters():
        if parameter.requires_grad and parameter._backward_hooks:
            yield f"a hook on the gradient of `{name}`"


def _cut(module: Module, program: ExportedProgram, computed: Container[str]) -> list[tuple[str, Location | None]]:
    """Return where numbers that depend on trained parameters are cut off, and the output depends on them still."""
    parameters = program.graph_signature.inputs_to_parameters
    trained = {
        name
        for name, target in parameters.items()
        if module.get_parameter(target).requires_grad
        and not (target in computed and (_OF_PARAMETRISATIONS in target or target.endswith(_BEFORE_A_HOOK)))
    }
    nodes = list(program.graph.nodes)
    above: set[Node] = set()
    for node in nodes:
        is_real = getattr(node.meta.get("val"), "is_floating_point", lambda: True)()
        if node.name in trained or (is_real and not above.isdisjoint(node.all_input_nodes)):
            above.add(node)
    below: set[Node] = set()
    for node in reversed(nodes):
        if node.op == "output" or node in below:
            below.update((node, *node.all_input_nodes))
    between = (node for node in nodes if node in below and not above.isdisjoint(node.all_input_nodes))
    return [(what, traced_line(str(node.meta.get("stack_trace")))) for node in between if (what := _cutting(node))]


def _cutting(node: Node) -> str:
    """Return how an operation cuts its results off, empty if it does not."""
    target = str(node.target)
    if target.startswith("aten.detach"):
        return "`detach`"
    if "wrap_with_set_grad_enabled" in target and node.args[:1] == (False,):
        return "`torch.no_grad`"
    return ""
