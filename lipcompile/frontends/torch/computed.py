"""Weights that a module computes from its parameters: the import trains the result, and says so (LIP122)."""

from __future__ import annotations

from collections.abc import Iterator

from torch.nn import Module

from lipcompile.diagnostics import Diagnostic, Severity
from lipcompile.frontends.options import Loaded

_HELP = "write the computed weight into the module, if that is meant"


def computed_weights(module: Module, loaded: Loaded) -> Iterator[Diagnostic]:
    """Yield a warning for each weight that is made of parameters, as by weight normalisation or by a mask.

    loaded: the import of the module, whose stored tensors have the names of its parameters. Of a part of the
    module that the import has told of, nothing more is said.
    """
    told = set[str]()
    for prefix, weight, how in _parametrised(module):
        made_of = (f"{prefix}parametrizations.{weight}.", f"{prefix}{weight}_")  # of hooks: weight_g and weight_v
        found = {name for name in loaded.computed if name.startswith(made_of)}
        if found:
            yield Diagnostic(
                "LIP122",
                f"`{prefix}{weight}` is trained as it is, and not by its parametrisation {how}",
                "remove the parametrisation, which keeps the weight, if that is meant",
                Severity.WARNING,
                node=prefix.rpartition(".")[0] or None,
            )
        elif how == "SpectralNorm" and module.get_submodule(prefix[:-1]).training:
            yield Diagnostic(
                "LIP126",
                f"torch estimates the spectral norm of `{prefix}{weight}` anew in each pass of training: the "
                "emitted module keeps the singular vectors that are stored now",
                "remove the parametrisation, which keeps the weight, or import again after some epochs",
                Severity.WARNING,
                node=prefix[:-1] or None,
            )
        told |= found
    parts = {(found.node or "").rpartition(".")[0] for found in loaded.diagnostics if standardises(found)}
    for name, op in loaded.computed.items():
        if name not in told and name.rpartition(".")[0] not in parts:
            message = f"the weight that {op} computes from `{name}` is trained itself, without that computation"
            yield Diagnostic("LIP122", message, _HELP, Severity.WARNING, node=name)


def standardises(found: Diagnostic) -> bool:
    """Whether the import has told that a weight is standardised; it also tells of copies."""
    return found.code == "LIP122" and found.op == "BatchNormalization"


def _parametrised(module: Module) -> Iterator[tuple[str, str, str]]:
    """Yield the prefix and the name of each weight that torch's own parametrisations make, and their kind."""
    for name, part in module.named_modules():
        made = {weight: chain[0] for weight, chain in getattr(part, "parametrizations", {}).items()}
        hooks = part._forward_pre_hooks.values()
        made |= {hook.name: hook for hook in hooks if type(hook).__name__ in ("WeightNorm", "SpectralNorm")}
        for weight, how in made.items():
            yield f"{name}{'.' * bool(name)}", weight, type(how).__name__.lstrip("_")
