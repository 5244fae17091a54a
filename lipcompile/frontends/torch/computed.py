"""Weights that a module computes from its parameters: the import trains the result, and says so (LIP122)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

import numpy as np
from onnx import ModelProto, NodeProto
from torch.nn import Module, Parameter

from lipcompile.core.graph import Graph
from lipcompile.diagnostics import Diagnostic, Severity
from lipcompile.frontends.options import Loaded

# Their results have the entries of their operands; the import tells where one of them is there several times.
_MOVES = frozenset(
    (
        *(
            "Identity",
            "Cast",
            "CastLike",
            "Unsqueeze",
            "Squeeze",
            "Concat",
            "Gather",
            "Slice",
            "Reshape",
            "Transpose",
        ),
        *("Flatten", "Split", "Expand", "Tile", "GatherND", "GatherElements", "Shape", "Size"),
    )
)
_HELP = "write the computed weight into the module, if that is meant"


def computed_weights(module: Module, model: ModelProto, loaded: Loaded) -> Iterator[Diagnostic]:
    """Yield a warning for each weight that is made of parameters, as by weight normalisation or by a mask.

    model: of the module, with initializers of the names of its parameters; loaded: the import of it. It computes
    with a parameter whose entries it trains, such as queries that a layer maps. Of a part of the module that the
    import has told of, nothing more is said.
    """
    parametrised = {f"{prefix}{weight}": how for prefix, weight, how in _parametrised(module)}
    for name, how in parametrised.items():
        yield Diagnostic(
            "LIP122",
            f"`{name}` is trained as it is, and not by its parametrisation {how}",
            "remove the parametrisation, which keeps the weight, if that is meant",
            Severity.WARNING,
            node=name.rpartition(".")[0] or None,
        )
    origins = {f"{name}_" for name in parametrised}  # of hooks: weight_g and weight_v of weight
    trained = {
        name for name, parameter in module.named_parameters(remove_duplicate=False) if parameter.requires_grad
    }
    told = {(found.node or "").rpartition(".")[0] for found in loaded.diagnostics if _standardises(found)}
    for name, op in _operators(model, trained).items():
        own = "parametrizations." not in name and not name.startswith(tuple(origins))
        own = own and name.rpartition(".")[0] not in told
        if own and not _is_kept(module.get_parameter(name), loaded.graph):
            message = f"the weight that {op} computes from `{name}` is trained itself, without that computation"
            yield Diagnostic("LIP122", message, _HELP, Severity.WARNING, node=name)


def _standardises(found: Diagnostic) -> bool:
    """Whether the import has told that a weight is standardised; it also tells of copies."""
    return found.code == "LIP122" and found.op == "BatchNormalization"


def _is_kept(parameter: Parameter, graph: Graph | None) -> bool:
    """Whether an import has a parameter of these entries, whatever their order."""
    held = () if graph is None else graph.parameters.values()
    alike = [one.initial for one in held if one.initial is not None and one.initial.size == parameter.numel()]
    own = np.sort(parameter.detach().cpu().double().numpy(), axis=None)
    return any(np.array_equal(own, np.sort(np.asarray(one, np.float64), axis=None)) for one in alike)


def _parametrised(module: Module) -> Iterator[tuple[str, str, str]]:
    """Yield the prefix and the name of each weight that torch's own parametrisations make, and their kind."""
    for name, part in module.named_modules():
        made = {weight: chain[0] for weight, chain in getattr(part, "parametrizations", {}).items()}
        hooks = part._forward_pre_hooks.values()
        made |= {hook.name: hook for hook in hooks if type(hook).__name__ in ("WeightNorm", "SpectralNorm")}
        for weight, how in made.items():
            yield f"{name}{'.' * bool(name)}", weight, type(how).__name__.lstrip("_")


def _operators(model: ModelProto, trained: set[str]) -> Mapping[str, str]:
    """Return the parameters that something is computed from without an example, and the first operator that does.

    Parameters of one entry are left out: they become constants.
    """
    stored = {tensor.name for tensor in model.graph.initializer}
    made_of = {name: frozenset[str]() for name in stored}
    made_of |= {
        tensor.name: frozenset([tensor.name])
        for tensor in model.graph.initializer
        if tensor.name in trained and prod(tensor.dims) != 1
    }
    found: dict[str, str] = {}
    for node in model.graph.node:
        operands = [name for name in node.input if name]
        if not all(name in made_of for name in operands):
            continue
        of = frozenset[str]().union(*(made_of[name] for name in operands))
        if node.op_type not in _MOVES:
            found |= dict.fromkeys(sorted(of - found.keys()), node.op_type)
        made_of |= dict.fromkeys(node.output, _left(node, of))
    return found


def _left(node: NodeProto, of: frozenset[str]) -> frozenset[str]:
    """Return what a result counts as made of: no sizes, and what is told already need not be told again."""
    return of if node.op_type in _MOVES - {"Shape", "Size"} else frozenset()
