"""`lipcompile audit`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lipcompile.cli.arguments import model_options
from lipcompile.cli.output import complain, print_json, serious

if TYPE_CHECKING:
    from rich.console import RenderableType

    from lipcompile.backend import Backend
    from lipcompile.derivation import Derivation
    from lipcompile.frontends.options import ModelOptions
    from lipcompile.graph import Graph

SCHEMA = "lipcompile.audit/1"

# What the records of the losses call their targets, in the words of the backend.
_TARGETS = {
    "a class index": "class",
    "a class index a token": "class",
    "-1 or 1": "sign",
    "a number from 0 to 1": "probability",
    "a vector within the target norm": "vector",
    "a vector": "vector",
}


@click.command(short_help="Attack the bounds of MODEL: is what they claim attained, or exceeded?")
@model_options()
@click.option(
    "--restarts", type=click.IntRange(1), default=4, show_default=True, help="Ascents of the whole gradient."
)
@click.option("--steps", type=click.IntRange(1), default=60, show_default=True, help="Most steps of an ascent.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of everything random.")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", help="What to print.")
def audit(model: str, options: ModelOptions, restarts: int, steps: int, seed: int, form: str) -> int:
    """Attack the gradient bounds of MODEL by ascent over its input, its target and its weights.

    The attack runs in float64, on weights certified to lie in their constraint sets, and measures true gradients
    of one example. A ratio above 1 refutes a bound: the compiler is wrong, and the exit code is 1. A ratio near 1
    means that no smaller bound is possible. A low ratio means more noise than needed, or that the attack was too
    weak: give it more steps.

    \b
    Example:
      lipcompile audit model.lip --restarts 2
    """
    from lipcompile import pipeline
    from lipcompile.backend import find

    derivation = pipeline.check(model, options)
    complain(serious(derivation.diagnostics))
    if not derivation.ok:
        return 1
    found = _attacked(derivation, find(), {"restarts": restarts, "steps": steps, "seed": seed})
    if form == "json":
        print_json(_report(model, found, seed))
    else:
        from lipcompile.reports.console import show

        show(sys.stdout, *_text(found))
    return 0 if found.sound else 1


def _attacked(derivation: Derivation, backend: Backend, effort: Mapping[str, int]) -> Any:
    """Emit the module, run it in float64 and let the backend attack it. Raises InputError if a number is open."""
    from lipcompile.cli.programs import instantiate
    from lipcompile.cli.progress import AuditWatch

    text = backend.emit(derivation)
    assert derivation.analysis is not None
    attack = backend.audit
    module = instantiate(Path("audited.py"), text).double()
    with AuditWatch() as watch:
        return attack.audit(
            module, _admissible(attack, derivation.analysis.graph), attack.AuditConfig(**effort), watch
        )


def _admissible(attack: Any, graph: Graph) -> Any:
    """Say what the adversary may choose as target and as tokens."""
    import math

    from lipcompile.cli.training import tokens_of

    assert graph.loss is not None
    norm = getattr(graph.loss.attributes, "target_norm", None)
    return attack.Admissible(
        target=_TARGETS[graph.loss.loss.target],
        target_norm=math.inf if norm is None else float(norm),
        vocabulary=tokens_of(graph),
    )


def _report(model: str, found: Any, seed: int) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "model": model,
        "seed": seed,
        "ok": found.sound,
        "parameters": [{"name": name, **_numbers(one)} for name, one in found.parameters.items()],
        "total": _numbers(found.total),
    }


def _numbers(found: Any) -> dict[str, Any]:
    return {
        "claimed": found.claimed,
        "attained": found.attained,
        "ratio": found.ratio if found.ratio < float("inf") else None,
        "exceeded": found.exceeded,
    }


def _text(found: Any) -> Iterator[RenderableType]:
    from lipcompile.reports.console import BAD, GOOD, printable, styled, table
    from lipcompile.reports.formulas import round_up

    rows = table("parameter", "claimed", "attained", "ratio", right=("claimed", "attained", "ratio"))
    named = [*found.parameters.items(), ("whole gradient", found.total)]
    for name, one in named:
        cell = (f"{one.ratio:.4f}", BAD if one.exceeded else "")
        rows.add_row(printable(name), round_up(one.claimed), f"{one.attained:.7g}", styled(cell))
    yield rows
    yield styled("")
    refuted = [name for name, one in named if one.exceeded]
    if refuted:
        yield styled((f"exceeded: {', '.join(map(printable, refuted))}", BAD))
        yield styled(
            "Such a bound is wrong, and noise made by it protects nobody: a bug in lipcompile. Please report it."
        )
        return
    yield styled(("no bound was exceeded", GOOD))
    yield from (styled(line) for line in _tightness(found))


def _tightness(found: Any) -> Iterator[str]:
    from lipcompile.reports.console import printable

    trained = {name: one for name, one in found.parameters.items() if one.claimed > 0}
    if not trained:
        return
    name = min(trained, key=lambda name: trained[name].ratio)
    yield (
        f"The bound of {printable(name)} is attained to {trained[name].ratio:.0%}, the least; that of the whole "
        f"gradient to {found.total.ratio:.0%}. A bound that cannot be attained means more noise than needed."
    )
