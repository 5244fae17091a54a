"""Verdicts beside the requirements: a bound that is of no use, and an import that computes something else."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import partial
from math import isqrt, prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lipcompile.analysis.requirements import proves
from lipcompile.analysis.tokens import places, vocabulary
from lipcompile.analysis.usefulness import ADVICE, LARGEST_EXCESS
from lipcompile.cli.shared.output import complain, serious
from lipcompile.cli.shared.signals import signals
from lipcompile.core.backend import Backend, find, program
from lipcompile.core.record import class_axis
from lipcompile.diagnostics import Diagnostic, InputError, Location, Severity
from lipcompile.frontends.options import OriginalError

if TYPE_CHECKING:
    from lipcompile.core.derivation import Derivation
    from lipcompile.frontends.options import Loaded, Original


def measured(
    derivation: Derivation, backend: Backend, *, allow_vacuous: bool, public: Path | None = None
) -> Derivation:
    """Return the derivation, rejected if its bound is far above the gradients of random or public examples at the
    initial weights (LIP311), and nobody allows that. Not measured are a model that leaves a number open, and one
    whose gradients are all clipped.
    """
    if allow_vacuous or not _is_proved(derivation):
        return derivation
    return exceeded(derivation, signals(derivation, backend, public=public), allow_vacuous=allow_vacuous)


def exceeded(derivation: Derivation, found: Any, *, allow_vacuous: bool) -> Derivation:
    """Return the derivation, rejected as by `measured` for what was measured of it; None if nothing was."""
    if allow_vacuous or found is None or not _is_proved(derivation) or found.total.excess <= LARGEST_EXCESS:
        return derivation
    from lipcompile.reports.formulas import about

    bound, times = f"{found.total.bound:.4g}", about(found.total.excess)
    message = (
        f"the bound of the whole gradient, {bound}, is {times} times a typical gradient at the initial weights: "
        "noise in its proportion drowns the signal at any usual budget"
    )
    return replace(derivation, diagnostics=(*derivation.diagnostics, Diagnostic("LIP311", message, ADVICE)))


def _is_proved(derivation: Derivation) -> bool:
    """Whether a model is accepted, and a theorem bounds one of its gradients."""
    return derivation.ok and derivation.analysis is not None and proves(derivation.analysis.graph)


_OF_THE_COMPILER = (
    "if the model computes the same each time it runs, this is a bug of lipcompile: please report it; "
    "--no-verify-import or verify_import=False skips the check"
)


UNCHECKED = "the import could not be checked"

_OF_BATCHES = "the module computes something else of a batch than of its examples alone: let it keep them apart"

_OF_DRAWS = (
    "in evaluation mode the emitted module computes with the mean of what it draws in training: let `forward` do "
    "the same, as F.dropout does, and divide what is kept by the probability of that"
)


def verified(loaded: Loaded, derivation: Derivation, backend: Backend, text: str | None = None) -> Derivation:
    """Return the derivation with what the check found: an error (LIP320) if the import is wrong, or a note.

    `text` is the emitted module, if there is one already. A model that was not imported is left as it is.
    """
    if loaded.original is None or derivation.analysis is None:
        return derivation
    found = _found(loaded, derivation, backend, text)
    if loaded.source.format == "onnx":
        found = replace(found, location=Location(loaded.source.path))
    failed = found.severity == Severity.ERROR
    return replace(
        derivation, diagnostics=(*derivation.diagnostics, found), analysis=None if failed else derivation.analysis
    )


def agrees(loaded: Loaded, derivation: Derivation, text: str | None = None) -> bool:
    """Compare an import, as a module of torch, with its original, and print what came out."""
    found = verified(loaded, derivation, find(), text)
    new = found.diagnostics[len(derivation.diagnostics) :]
    for note in (one for one in new if one.severity == "note"):
        click.echo(note.message, err=True)
    complain(serious(new))
    return found.ok


def _found(loaded: Loaded, derivation: Derivation, backend: Backend, text: str | None) -> Diagnostic:
    assert loaded.original is not None
    try:
        original = loaded.original()
        return _compared(original, derivation, backend, text or backend.emit(_complete(derivation)))
    except (OriginalError, InputError) as error:
        return _note(f"{UNCHECKED}: {error}")


def _compared(original: Original, derivation: Derivation, backend: Backend, text: str) -> Diagnostic:
    try:
        found = agreement(
            program(Path("emitted.py"), text, derivation.source.network).Model, original, derivation, backend
        )
    except backend.deployment.ShapeError as error:
        return _error(f"the import is wrong: {error}")
    told = _told(found, original.runner)
    if derivation.source.network is not None and told.code == "LIP320":
        return replace(told, help=_OF_BATCHES)
    draws = derivation.analysis is not None and any(node.draws for node in derivation.analysis.graph.nodes)
    return replace(told, help=_OF_DRAWS) if draws and told.code == "LIP320" else told


def agreement(made: type[Any], original: Original, derivation: Derivation, backend: Backend) -> Any:
    """Return how far a class of modules is from the original on random inputs; raises the backend's ShapeError.

    An original that fails on random tokens, such as a mask with other numbers than 0 and 1, or computes no finite
    numbers of any, is given these two.
    Raises OriginalError where it fails on them, too.
    """
    assert derivation.analysis is not None
    graph = derivation.analysis.graph
    tokens = vocabulary(graph)
    compared = partial(
        backend.deployment.agreement_with_original,
        made,
        original,
        batch=original.batch,
        precision=original.precision,
        places=() if graph.input.tokens or graph.input.norm is not None else places(graph),
        log_softmax=_log_softmax(derivation),
    )
    try:
        found = compared(vocabulary=tokens)
        if found.examples or tokens is None:
            return found
    except OriginalError:
        if tokens is None:
            raise
    fewest = min(tokens, 2) if isinstance(tokens, int) else tuple(min(each, 2) for each in tokens)
    return compared(vocabulary=fewest)


def _log_softmax(derivation: Derivation) -> int | None:
    """Return the axis of the log-softmax that was merged into the loss, None if there was none."""
    assert derivation.analysis is not None
    use = derivation.analysis.graph.loss
    merged = any(one.code == "LIP215" for one in derivation.diagnostics)
    return class_axis(use.loss) if merged and use is not None else None


def _told(found: Any, runner: str) -> Diagnostic:
    if not found.examples:
        return _note(f"{UNCHECKED}: {runner} computes no finite numbers on random inputs")
    measured = f"{found.difference:.1e} ({found.relative:.1e} of an example's largest output)"
    if found.agrees:
        return _note(
            f"the import computes what {runner} computes, up to {measured} on {found.examples} random inputs"
        )
    return _error(
        f"the import is wrong: on {found.examples} random inputs it differs from what {runner} computes by up to "
        f"{measured}; rounding would explain {found.tolerance:.0e} of it"
    )


def _note(message: str) -> Diagnostic:
    return Diagnostic("LIP321", message, severity=Severity.NOTE)


def _error(message: str) -> Diagnostic:
    return Diagnostic("LIP320", message, _OF_THE_COMPILER)


def _complete(derivation: Derivation) -> Derivation:
    """Give a model a norm and a loss if it has none: an emitted module needs both, its outputs neither."""
    from lipcompile.analysis.sensitivity import analyse
    from lipcompile.frontends.options import parse_loss

    assert derivation.analysis is not None
    graph = derivation.analysis.graph
    source = graph.input
    if graph.loss is not None and (source.tokens or isinstance(source.norm, Fraction)):
        return derivation
    norm = source.norm if source.tokens or isinstance(source.norm, Fraction) else _norm(source.shape)
    graph = replace(graph, loss=graph.loss or parse_loss("absolute_error"), input=replace(source, norm=norm))
    return replace(derivation, analysis=analyse(graph))


def _norm(shape: tuple[int, ...]) -> Fraction:
    """Return the norm of an example whose entries are about 1."""
    return Fraction(isqrt(prod(shape)) + 1)
