"""The data flow on one screen: source -> front end -> Graph -> passes -> Derivation -> reports, backend."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from lipcompile.analysis.canonical import canonical
from lipcompile.analysis.changes.fix import helps
from lipcompile.analysis.clips import GROUPS, SOURCES, Clipping, Groups, Source, unproved, with_source
from lipcompile.analysis.depth.loops import frozen_inside
from lipcompile.analysis.requirements import examine, proves, requirements
from lipcompile.analysis.sensitivity import analyse
from lipcompile.analysis.usefulness import useless
from lipcompile.core.derivation import Derivation, shown_by
from lipcompile.core.graph import Graph
from lipcompile.diagnostics import Diagnostic, Severity, input_error
from lipcompile.frontends.options import Loaded, ModelOptions, model_options
from lipcompile.ops.registry import load_plugins

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

T = TypeVar("T")


@shown_by
def _table(derivation: Derivation) -> str:
    from lipcompile.reports.html import notebook_table

    return notebook_table(derivation)


def load(model: str, options: ModelOptions) -> Loaded:
    """Read a model; `FILE.lip::name` picks one of several. Raises InputError if it is not a model at all."""
    load_plugins()
    with options.limits.in_force():
        if not _is_file(model):
            return _load_module(model, options)
        path = Path(model.partition("::")[0])
        if not _exists(path):
            raise input_error("LIP001", f"there is no file `{path}`", "check the path")
        if path.suffix == ".onnx":
            from lipcompile.frontends.onnx import model as onnx_model

            return onnx_model.load(path, options)
        if options.input_shape:
            raise input_error("LIP005", "--input-shape: a .lip file says itself what its input is", "leave it out")
        from lipcompile.frontends.lip import model as dsl

        return dsl.load(path, model.partition("::")[2] or None, options)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except ValueError:  # a null byte
        return False


def for_training(model: str, options: ModelOptions) -> ModelOptions:
    """Return the options of a model that is to be trained: a torch module says nothing of its inputs.

    Without a norm of them no theorem gives a number, so bounds are `auto` unless an option asks for a theorem.
    """
    asked = (options.bounds, options.input_norm, options.constraint, options.bias_bound)
    if _is_file(model) or any(option is not None for option in asked):
        return options
    return replace(options, bounds="auto")


def _is_file(model: str) -> bool:
    return Path(model.partition("::")[0]).suffix in (".lip", ".onnx")


def _load_module(model: str, options: ModelOptions) -> Loaded:
    """Read `package.module:factory`; raises InputError (LIP001) if that is not what the text is."""
    from lipcompile.frontends.torch.find import is_reference

    if not is_reference(model):
        message = f"`{model}` is neither a .lip nor an .onnx file, nor package.module:factory of a torch module"
        help_line = "use a path ending in .lip or .onnx, or name a torch module, such as nets:LeNet of nets.py"
        raise input_error("LIP001", message, help_line)
    from lipcompile.frontends.torch import module as torch_module

    return torch_module.load(model, options)


def derive(loaded: Loaded, options: ModelOptions) -> Derivation:
    """Verify the requirements of a loaded model and derive its bounds if they hold."""
    with options.limits.in_force():
        graph = frozen_inside(loaded.graph.freeze(options.freeze)) if loaded.graph else None
        found = list(loaded.diagnostics)
        source = bounds_source(loaded, options)
        if loaded.graph is not None and graph is not None:
            frozen = _clips_of_frozen(loaded.graph, graph)
            graph, notes = canonical(graph)
            graph, choice = with_source(graph, source, clipping(loaded, options, source))
            found += [*notes, *_unmatched(graph, options), *frozen, *choice, *examine(graph)]
        if not (source == "theorem" if graph is None else proves(graph)):  # nothing is scaled into a constraint
            found = [d for d in found if d.code != "LIP305"]
        analysis = analyse(graph) if graph is not None and not _errors(found) else None
        if analysis is not None:
            found += unproved(
                analysis.graph, [name for name, k in analysis.parameters.items() if k.value is not None]
            )
            found += useless(analysis, helps)
        return Derivation(
            loaded.source, requirements(graph, found), tuple(found), None if _errors(found) else analysis
        )


def _errors(found: Sequence[Diagnostic]) -> bool:
    return any(d.severity == Severity.ERROR for d in found)


def bounds_source(loaded: Loaded, options: ModelOptions) -> Source:
    """Return the source of bounds: of the options, else of the model's `train` block, else theorems."""
    planned = loaded.training.settings.get("bounds") if loaded.training else None
    return _one_of("bounds", options.bounds or planned or "theorem", SOURCES)


def clipping(loaded: Loaded, options: ModelOptions, source: Source) -> Clipping:
    """Return how gradients are clipped: as the options say, else the model's `train` block, else by one clip.

    Raises InputError (LIP005) for clips that are asked for where nothing is clipped.
    """
    if source == "theorem" and (options.clip_groups is not None or options.clip_length is not None):
        name = "--clip-length" if options.clip_groups is None else f"--clip-groups {options.clip_groups}"
        message = f"{name}: bounds are by theorem, and nothing is clipped"
        raise input_error("LIP005", message, "add --bounds clip, or --bounds auto")
    planned = loaded.training.settings if loaded.training else {}
    groups = _one_of("clip_groups", options.clip_groups or planned.get("clip_groups", "flat"), GROUPS)
    length = planned.get("clip_length") if options.clip_length is None else options.clip_length
    return Clipping(groups, length if isinstance(length, Fraction) else None)


def _one_of(option: str, said: object, known: Sequence[T]) -> T:
    for value in known:
        if value == said:
            return value
    raise input_error("LIP005", f"{option}: `{said}` is none of {', '.join(map(str, known))}")


def check(model: str | Path, options: ModelOptions | None = None) -> Derivation:
    """Verify that a model can be trained privately, and derive its gradient bounds, as `lipcompile check` does.

    Args:
        model: a .lip file (`FILE.lip::name` picks one of several models), an .onnx file, or
            `package.module:factory`, which needs `input_shape` among the options.
        options: what overrides the file, such as `ModelOptions(input_norm=Fraction(1), loss="cross_entropy")`.

    Returns:
        The derivation, of a rejected model too: `ok` says which it is, `diagnostics` say why and where. Of an
        accepted model, `analysis` has the bounds: `analysis.parameters` by name, `analysis.total` of the whole
        gradient of one example. A bound is a formula, and a number that is certified from above.

    Raises:
        InputError: the model cannot be read: it is missing, it does not parse, or an option is wrong.

    Examples:
        >>> import lipcompile
        >>> derivation = lipcompile.check("model.lip")
        >>> derivation.ok
        True
        >>> bound = derivation.analysis.parameters["dense.weight"]
        >>> print(bound.expression, round(bound.value, 4))
        sqrt(2)*X_0/2 0.7071
    """
    chosen = options or ModelOptions()
    return derive(load(str(model), chosen), chosen)


def from_module(
    module: Module,
    example: Tensor | Sequence[Tensor] | Mapping[str, Tensor] | Sequence[int],
    *,
    input_norm: float | Fraction | None = None,
    loss: str | None = None,
    constraint: str | None = None,
    bias_bound: float | Fraction | None = None,
    freeze: Sequence[str] = (),
    bounds: Source | None = None,
    clip_groups: Groups | None = None,
    clip_length: float | Fraction | Literal["automatic"] | None = None,
) -> Derivation:
    """Check a torch module: what `lipcompile check package.module:factory` does.

    The module is traced as it is, in training mode or not, and left as it was. Nothing of `example` counts but its
    shape and kind of numbers.

    Args:
        module: yours.
        example: a batch of examples [B, …], one for each argument of `forward`, by position or by name; or the
            shape of one example.
        input_norm: bound of the norm of one example, clipped to; read as the decimal that Python prints.
        loss, constraint, bias_bound, freeze, bounds, clip_groups, clip_length: as on the command line:
            "cross_entropy:temperature=10", "keep", "auto", "layers".

    Returns:
        The derivation, as of `check`.

    Raises:
        InputError: it is no module, or does not take such examples.

    Examples:
        >>> import lipcompile
        >>> from torch import nn
        >>> derivation = lipcompile.from_module(nn.Linear(4, 2), [4], loss="cross_entropy", bounds="clip")
        >>> derivation.ok, derivation.analysis.total.value
        (True, 1.0)
    """
    options = model_options(
        input_norm=input_norm,
        loss=loss,
        constraint=constraint,
        bias_bound=bias_bound,
        freeze=freeze,
        bounds=bounds,
        clip_groups=clip_groups,
        clip_length=clip_length,
    )
    return of_module(module, example, options)


def of_module(module: Module, example: Any, options: ModelOptions) -> Derivation:
    """Check a torch module, traced on an example; see `from_module`."""
    return derive(load_module(module, example, options), options)


def load_module(module: Module, example: Any, options: ModelOptions) -> Loaded:
    """Read a torch module in memory, traced on an example; see `from_module`."""
    from lipcompile.frontends.torch import module as torch_module

    load_plugins()
    with options.limits.in_force():
        return torch_module.from_example(module, example, options)


def _unmatched(graph: Graph, options: ModelOptions) -> list[Diagnostic]:
    """Report options that match no parameter: a layer believed frozen would be trained."""
    found = [
        Diagnostic(
            "LIP306", f"--freeze `{glob}` matches no parameter", f"there are: {', '.join(graph.parameters)}"
        )
        for glob in options.freeze
        if not any(fnmatchcase(name, glob) for name in graph.parameters)
    ]
    # In a repetition of open count, the role stands behind the name of its layer.
    roles = {role.rpartition(".")[2] for node in graph.nodes for role in node.parameters}
    if options.bias_bound is not None and "bias" not in roles:
        found.append(
            Diagnostic("LIP306", "--bias-bound: no layer of the model has a bias", "leave the option out")
        )
    return found


def _clips_of_frozen(said: Graph, graph: Graph) -> Iterator[Diagnostic]:
    """Warn of layers that --freeze leaves without a gradient to clip, and the clip without a constraint."""
    kept = {group.name for group in graph.clips}
    for group in said.clips:
        if group.name not in kept:
            message = f"`{group.name}` is frozen: it has no gradient to clip, and nothing constrains its weights"
            yield Diagnostic("LIP318", message, "leave `clip=` out, or freeze less", Severity.WARNING)
