"""`lipcompile fix`: a model is read with fixes, changed where its bound needs it, written, and read again.

A file is kept if it passes `check`; otherwise there is none.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path

from lipcompile import pipeline
from lipcompile.analysis.canonical import canonical
from lipcompile.analysis.changes.fix import KINDS, Fixed, fixed
from lipcompile.analysis.depth.loops import frozen_inside
from lipcompile.analysis.requirements import proves
from lipcompile.analysis.usefulness import USEFUL, Aim
from lipcompile.core.derivation import Derivation
from lipcompile.core.graph import Graph
from lipcompile.diagnostics import Diagnostic, input_error
from lipcompile.frontends import files
from lipcompile.frontends.options import ModelOptions
from lipcompile.frontends.repairs import Repaired, Repairs

SUFFIXES = (".lip", ".onnx")


@dataclass(frozen=True, slots=True)
class FixOptions:
    """What the user decides: how to fix, changes to make anyway, or not to make, and what to aim at."""

    repairs: Repairs
    also: Collection[str] = ()
    never: Collection[str] = ()
    aim: Aim = USEFUL


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was done. `diagnostics` are of the model that was read; `fixed` is None if an error among them remains.

    check: of the file that was written, None if none was; it was kept exactly if that is `ok`. notes: what the
    file does not say.
    """

    diagnostics: tuple[Diagnostic, ...]
    repaired: tuple[Repaired, ...] = ()
    fixed: Fixed | None = None
    check: Derivation | None = None
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether a file was written that passes."""
        return self.check is not None and self.check.ok

    @property
    def reached(self) -> bool:
        """Whether a file was written, and its bound is at most the target, or useful without one."""
        return self.ok and self.fixed is not None and self.fixed.useful


def fix(model: str, options: ModelOptions, wanted: FixOptions, output: Path) -> Outcome:
    """Write a model that passes `check`, as near to `model` as its bound allows, or say why not.

    Raises:
        InputError: the model cannot be read at all, or the format has no words for it (LIP017).
        OSError: the file cannot be written.
    """
    if output.suffix not in SUFFIXES:
        raise input_error("LIP005", f"-o: `{output}` ends in neither .lip nor .onnx", "name the file so")
    repairs = replace(wanted.repairs, with_eps=options.bounds == "clip", made=[])
    options = replace(options, repairs=repairs)
    loaded = pipeline.load(model, options)
    repaired = tuple(repairs.made)
    if loaded.graph is None:
        return Outcome(loaded.diagnostics, repaired)
    with options.limits.in_force():
        graph, _ = canonical(frozen_inside(loaded.graph.freeze(options.freeze)))
        found = pipeline.derive(loaded, options)
        if not found.ok:
            return Outcome(found.diagnostics, repaired)
        assert found.analysis is not None
        if proves(found.analysis.graph):
            result = fixed(graph, wanted.repairs.floor, wanted.also, wanted.never, aim=wanted.aim)
        elif repaired and not repairs.with_eps:  # as it is clipped, norms may be those of batches
            return fix(model, replace(options, bounds="clip"), wanted, output)
        else:  # no change makes the bound of a clip smaller: only those that were asked for are made
            kinds = [kind for kind in KINDS if kind.name in wanted.also]
            result = fixed(graph, wanted.repairs.floor, wanted.also, wanted.never, kinds)
            total, target = found.analysis.total.value or inf, wanted.aim.target
            result = replace(result, total=total, useful=target is None or total <= target, target=target)
    checked = _written(result.graph, options, output)
    return Outcome(found.diagnostics, repaired, result, checked, _unsaid(result.graph, output))


def _written(graph: Graph, options: ModelOptions, output: Path) -> Derivation:
    """Write a graph beside its place, check that file, and move it into its place if it passes."""
    with files.beside(output) as temporary:
        _write(graph, temporary)
        found = pipeline.check(str(temporary), _rereading(options, output))
        if found.ok:
            temporary.replace(output)
    return replace(found, source=replace(found.source, name=graph.name, path=str(output)))


def _write(graph: Graph, path: Path) -> None:
    if path.suffix == ".lip":
        from lipcompile.frontends.lip.printer import print_model

        path.write_text(print_model(graph, "Written by lipcompile fix."), encoding="utf-8")
        return
    from lipcompile.emitters.onnx.emit import save, to_onnx

    save(to_onnx(graph, training=True), path)


def _rereading(options: ModelOptions, output: Path) -> ModelOptions:
    """Return the options to read a written file with: .lip says all, ONNX not what is done to weights."""
    if output.suffix == ".lip":
        return ModelOptions(
            limits=options.limits,
            bounds=options.bounds,
            clip_groups=options.clip_groups,
            clip_length=options.clip_length,
        )
    return replace(options, repairs=None, input_norm=None, loss=None, bindings={}, input_shape={})


def _unsaid(graph: Graph, output: Path) -> tuple[str, ...]:
    """Return what the format does not say of a graph."""
    parameters = graph.parameters.values()
    found = []
    if output.suffix == ".lip" and any(p.initial is not None for p in parameters):
        found.append("a .lip file holds the architecture, not the numbers: -o FILE.onnx keeps imported weights")
    if output.suffix == ".onnx":
        if any(node.op.name == "clip_gradient" for node in graph.nodes):
            found.append("ONNX cannot say clip_gradient: it is left out, and the bound is that without it")
        if any(p.initial is None for p in parameters):
            found.append("weights without values start at random ones, from a fixed seed")
    return tuple(found)
