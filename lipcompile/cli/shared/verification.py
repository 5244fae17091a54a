"""Imports are checked, not believed: the emitted module is held against what it was imported from."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lipcompile.core.diagnostics import Diagnostic, InputError, Location, Severity

if TYPE_CHECKING:
    from lipcompile.core.backend import Backend
    from lipcompile.core.derivation import Derivation
    from lipcompile.frontends.options import Loaded
    from lipcompile.frontends.original import Original

_OF_THE_COMPILER = "this is a bug of lipcompile: please report it; --no-verify-import skips the check"


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
        derivation,
        diagnostics=(*derivation.diagnostics, found),
        analysis=None if failed else derivation.analysis,
    )


def _found(loaded: Loaded, derivation: Derivation, backend: Backend, text: str | None) -> Diagnostic:
    from lipcompile.frontends.original import OriginalError

    assert loaded.original is not None
    try:
        original = loaded.original()
        return _compared(original, derivation, backend, text or backend.emit(_complete(derivation)))
    except OriginalError as error:
        return _note(f"the import could not be checked: {error}")
    except InputError as error:
        return _note(f"the import could not be checked: {error}")


def _compared(original: Original, derivation: Derivation, backend: Backend, text: str) -> Diagnostic:
    from lipcompile.cli.shared.data import tokens_of
    from lipcompile.core.programs import program

    assert derivation.analysis is not None
    deployment = backend.deployment
    try:
        found = deployment.agreement_with_original(
            program(Path("emitted.py"), text).Model,
            original,
            batch=original.batch,
            precision=original.precision,
            vocabulary=tokens_of(derivation.analysis.graph),
            log_probabilities=any(one.code == "LIP215" for one in derivation.diagnostics),
        )
    except deployment.ShapeError as error:
        return _error(f"the import is wrong: {error}")
    return _told(found, original.runner)


def _told(found: Any, runner: str) -> Diagnostic:
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
    from math import isqrt, prod

    return Fraction(isqrt(prod(shape)) + 1)
