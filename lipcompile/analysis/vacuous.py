"""Bounds that hold and say nothing: noise in their proportion would drown every gradient."""

from __future__ import annotations

from collections.abc import Iterator
from math import floor, inf, log10

from lipcompile.analysis.fix import helps
from lipcompile.analysis.requirements import proves
from lipcompile.analysis.useful import LARGEST_USEFUL
from lipcompile.analysis.what_if.shares import dominating
from lipcompile.core.derivation import Analysis
from lipcompile.core.diagnostics import Diagnostic, Severity

_RANKED = "a report ranks the changes that make it smaller"


def vacuous(analysis: Analysis) -> Iterator[Diagnostic]:
    """Yield a note if the bound of the whole gradient is known, and useless; it names the dominating parameter."""
    if not proves(analysis.graph):
        return
    total, loss = analysis.total.value, analysis.loss_lipschitz.value
    if total is None:
        if _overflows(analysis):
            message = "vacuous: the bound of the whole gradient is too large for a double"
            yield Diagnostic("LIP310", message, _help(analysis), Severity.NOTE)
        return
    unit = (loss or 0.0) * max(1.0, _input_norm(analysis))
    if 0 < unit * LARGEST_USEFUL < total:
        yield _note(analysis, total / unit)


def _overflows(analysis: Analysis) -> bool:
    """Whether all numbers of the model are known, and only their product is not."""
    given = [definition for definition in analysis.definitions if definition.expression is None]
    return analysis.graph.loss is not None and all(definition.upper is not None for definition in given)


def _input_norm(analysis: Analysis) -> float:
    """X_0, or 0 for tokens."""
    return next((found.upper for found in analysis.definitions if found.name == "X_0" and found.upper), 0.0)


def _help(analysis: Analysis) -> str:
    """Say that `fix` mends it, where it does."""
    total = analysis.total.value
    mended = helps(analysis.graph, inf if total is None else total)
    return f"`lipcompile fix MODEL -o FILE` brings it down; {_RANKED}" if mended else _RANKED


def _note(analysis: Analysis, ratio: float) -> Diagnostic:
    share = dominating(analysis)[0]
    node = next(node for node in analysis.graph.nodes if share.names[0] in node.parameters.values())
    copies = f" and its {len(share.names) - 1} copies have" if len(share.names) > 1 else " has"
    return Diagnostic(
        "LIP310",
        f"vacuous: the bound of the whole gradient is more than 10^{floor(log10(ratio))} times L·max(1, X_0); "
        f"`{share.names[0]}`{copies} {share.share:.0%} of its square",
        _help(analysis),
        Severity.NOTE,
        node=node.name,
        op=node.op.name,
        location=node.location,
    )
