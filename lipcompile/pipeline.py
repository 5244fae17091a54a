"""The data flow on one screen: source -> front end -> Graph -> passes -> Derivation -> reports, backend."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path

from lipcompile.derivation import Derivation
from lipcompile.diagnostics import Diagnostic, Severity, input_error
from lipcompile.frontends.options import Loaded, ModelOptions
from lipcompile.graph import Graph
from lipcompile.ops.registry import load_plugins
from lipcompile.passes.canonical import canonical
from lipcompile.passes.loops import frozen_inside
from lipcompile.passes.requirements import examine, requirements
from lipcompile.passes.sensitivity import analyse
from lipcompile.passes.vacuous import vacuous


def load(model: str, options: ModelOptions) -> Loaded:
    """Read a model; `FILE.lip::name` picks one of several. Raises InputError if it is not a model at all."""
    load_plugins()
    with options.limits.in_force():
        return _load(model, options)


def _load(model: str, options: ModelOptions) -> Loaded:
    path = Path(model.partition("::")[0])
    if path.suffix not in (".lip", ".onnx"):
        raise input_error("LIP001", f"`{model}` is neither a .lip nor an .onnx file", "give a path that ends so")
    if not _exists(path):
        raise input_error("LIP001", f"there is no file `{path}`", "check the path")
    if path.suffix == ".onnx":
        from lipcompile.frontends import onnx_model

        return onnx_model.load(path, options)
    from lipcompile.frontends import dsl

    return dsl.load(path, model.partition("::")[2] or None, options)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except ValueError:  # a null byte
        return False


def derive(loaded: Loaded, options: ModelOptions) -> Derivation:
    """Verify the requirements of a loaded model and derive its bounds if they hold."""
    with options.limits.in_force():
        return _derive(loaded, options)


def _derive(loaded: Loaded, options: ModelOptions) -> Derivation:
    graph = frozen_inside(loaded.graph.freeze(options.freeze)) if loaded.graph else None
    found = list(loaded.diagnostics)
    if graph is not None:
        graph, notes = canonical(graph)
        found += [*notes, *_unmatched(graph, options), *examine(graph)]
    verdict = requirements(graph, found)
    accepted = graph is not None and not any(d.severity == Severity.ERROR for d in found)
    analysis = analyse(graph) if graph is not None and accepted else None
    found += vacuous(analysis) if analysis is not None else ()
    return Derivation(loaded.source, verdict, tuple(found), analysis)


def check(model: str, options: ModelOptions | None = None) -> Derivation:
    """Load and derive: what `lipcompile check` does."""
    chosen = options or ModelOptions()
    return derive(load(model, chosen), chosen)


def _unmatched(graph: Graph, options: ModelOptions) -> list[Diagnostic]:
    """Report options that match no parameter: a layer believed frozen would be trained."""
    found = [
        Diagnostic(
            "LIP306", f"--freeze `{glob}` matches no parameter", f"there are: {', '.join(graph.parameters)}"
        )
        for glob in options.freeze
        if not any(fnmatchcase(name, glob) for name in graph.parameters)
    ]
    if options.bias_bound is not None and not _has_biases(graph):
        found.append(
            Diagnostic("LIP306", "--bias-bound: no layer of the model has a bias", "leave the option out")
        )
    return found


def _has_biases(graph: Graph) -> bool:
    """Whether a layer has a bias; in a repetition of open count, the role stands behind the name of its layer."""
    roles = (role for node in graph.nodes for role in node.parameters)
    return any(role.rpartition(".")[2] == "bias" for role in roles)
