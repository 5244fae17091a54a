"""Bounds that hold and are of no use: a verdict of `check`, `compile`, `train` and `report`, unless allowed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lipcompile.analysis.requirements import proves
from lipcompile.analysis.usefulness import LARGEST_EXCESS
from lipcompile.cli.shared.signals import signals
from lipcompile.core.diagnostics import Diagnostic, Severity

if TYPE_CHECKING:
    from lipcompile.core.backend import Backend
    from lipcompile.core.derivation import Derivation

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
    return replace(derivation, diagnostics=(*derivation.diagnostics, Diagnostic("LIP311", message, _MEND)))


def _is_proved(derivation: Derivation) -> bool:
    """Whether a model is accepted, and a theorem bounds one of its gradients."""
    return derivation.ok and derivation.analysis is not None and proves(derivation.analysis.graph)
