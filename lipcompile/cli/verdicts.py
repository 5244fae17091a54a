"""Bounds that hold and are of no use: a verdict of `check`, `compile` and `train`, unless one allows them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lipcompile.derivation import Derivation, Source
from lipcompile.diagnostics import Diagnostic, InputError, Severity
from lipcompile.passes.requirements import proves, requirements
from lipcompile.passes.sensitivity import analyse
from lipcompile.passes.useful import LARGEST_EXCESS, Aim

if TYPE_CHECKING:
    from rich.console import RenderableType

    from lipcompile.backend import Backend
    from lipcompile.graph import Graph

_MEND = "--bounds auto clips gradients where theorems do not serve; --allow-vacuous goes on all the same"


def judged(derivation: Derivation, *, allow_vacuous: bool) -> Derivation:
    """Return the derivation, rejected if its bound is known to be of no use (LIP310) and nobody allows that."""
    if allow_vacuous:
        return derivation
    diagnostics = tuple(
        replace(found, severity=Severity.ERROR, help=f"{_MEND}; {found.help}") if found.code == "LIP310" else found
        for found in derivation.diagnostics
    )
    return replace(derivation, diagnostics=diagnostics)


def signals(derivation: Derivation, backend: Backend) -> Any:
    """Measure gradients of random examples at the initial weights; raises InputError if a number is open."""
    from lipcompile.cli.audit import admissible
    from lipcompile.programs import instantiate

    text = backend.emit(derivation)
    with backend.signal.repeatable():  # a verdict must not change from call to call
        module = instantiate(Path("measured.py"), text)
    assert derivation.analysis is not None
    return backend.signal.measure(module, admissible(backend.audit, derivation.analysis.graph))


def signal(graph: Graph, backend: Backend) -> Any:
    """Measure the whole gradient of a changed model; None if it leaves a number open."""
    source = Source(graph.name, graph.name, "lip", "")
    try:
        return signals(Derivation(source, requirements(graph, ()), (), analyse(graph)), backend).total
    except InputError:
        return None


def aim(target: float | None = None) -> Aim:
    """Return what `fix` aims at: a total, else what `judged` and `measured` let pass, where torch is installed."""
    from lipcompile.backend import find

    if target is not None or find_spec("torch") is None:
        return Aim(target)

    def excess(graph: Graph) -> float | None:
        found = signal(graph, find())
        return None if found is None else float(found.excess)

    return Aim(measure=excess)


def measured(derivation: Derivation, backend: Backend, *, allow_vacuous: bool) -> Derivation:
    """Return the derivation, rejected if its bound is far above the gradients of random examples at the initial
    weights (LIP311), and nobody allows that. Not measured are a model that leaves a number open, and one whose
    gradients are all clipped.
    """
    if allow_vacuous or not derivation.ok or derivation.analysis is None or not proves(derivation.analysis.graph):
        return derivation
    try:
        total = signals(derivation, backend).total
    except InputError:
        return derivation
    if total.excess <= LARGEST_EXCESS:
        return derivation
    message = (
        f"the bound of the whole gradient, {total.bound:.4g}, is {total.excess:.2g} times a typical gradient at "
        "the initial weights: noise in its proportion drowns the signal at any usual budget"
    )
    found = Diagnostic("LIP311", message, _MEND)
    return replace(derivation, diagnostics=(*derivation.diagnostics, found))


def shown(found: Any) -> Iterator[RenderableType]:
    """Yield a table of noise against signal."""
    from lipcompile.reports.console import printable, styled, table

    columns = ("bound", "typical gradient", "bound / typical", "mean gradient", "noise", "noise / mean")
    rows = table("parameter", *columns, right=columns)
    for name, one in (*found.parameters.items(), ("whole gradient", found.total)):
        relative = one.noise / one.mean if one.mean else float("inf")
        numbers = (one.bound, one.typical, one.excess, one.mean, one.noise, relative)
        rows.add_row(printable(name), *(f"{number:.4g}" for number in numbers))
    yield rows
    yield styled(
        "Gradients of random examples at the initial weights; norms of the noise of multiplier 1 on the mean of "
        "a batch of 512."
    )
