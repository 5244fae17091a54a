"""`lipcompile audit`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lipcompile.cli.shared.arguments import model_options
from lipcompile.cli.shared.output import complain, print_json, serious
from lipcompile.core.diagnostics import input_error

if TYPE_CHECKING:
    from rich.console import RenderableType

    from lipcompile.core.backend import Backend
    from lipcompile.core.derivation import Derivation
    from lipcompile.core.graph import Graph
    from lipcompile.frontends.options import ModelOptions

SCHEMA = "lipcompile.audit/1"

# What the records of the losses call their targets, in the words of the backend.
_TARGETS = {
    "a class index": "class",
    "a class index a token": "class",
    "-1 or 1": "sign",
    "a number from 0 to 1": "probability",
    "a vector": "vector",
}


# Of --privacy alone: names as the backend's configuration has them, and what is taken if they are not given.
PRIVACY = {
    "epsilon": 4.0,
    "delta": 1e-5,
    "canaries": 1000,
    "runs": None,
    "batch_size": None,
    "dataset_size": None,
    "noise": "global",
    "neighbours": "add_remove",
    "confidence": 0.95,
}


@click.command(short_help="Attack the bounds or the privacy of MODEL: is what they claim attained, or exceeded?")
@model_options()
@click.option("--privacy", is_flag=True, help="Attack what the engine claims of privacy, by canaries.")
@click.option("--restarts", type=click.IntRange(1), help="Ascents of the whole gradient; 4 by default.")
@click.option(
    "--steps",
    type=click.IntRange(1),
    help="Most steps of an ascent, 60 by default; with --privacy, of a training, 2.",
)
@click.option("--epsilon", type=float, help="Claimed ε that the noise is calibrated to; 4 by default.")
@click.option("--delta", type=float, help="Claimed δ; 1e-5 by default.")
@click.option("--canaries", type=click.IntRange(1), help="Coins to guess; 1000 by default.")
@click.option("--runs", type=click.IntRange(1), help="Trainings that share the canaries; by default one each.")
@click.option("--batch-size", type=click.IntRange(1), help="Expected batch size; by default the whole data set.")
@click.option("--dataset-size", type=click.IntRange(1), help="Examples of a training; by default its canaries.")
@click.option("--noise", type=click.Choice(["global", "per_layer", "optimal"]), help="How noise is shared.")
@click.option("--neighbours", type=click.Choice(["add_remove", "replace_one"]), help="What one person changes.")
@click.option("--confidence", type=float, help="Of the lower bound of ε; 0.95 by default.")
@click.option("--seed", type=int, help="Of everything random: 0 by default; with --privacy, fresh every time.")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", help="What to print.")
def audit(
    model: str,
    options: ModelOptions,
    privacy: bool,
    restarts: int | None,
    steps: int | None,
    seed: int | None,
    form: str,
    **given: Any,
) -> int:
    """Attack the gradient bounds of MODEL by ascent over its input, its target and its weights.

    The attack runs in float64, on weights certified to lie in their constraint sets, and measures true gradients
    of one example. A ratio above 1 refutes a bound: the compiler is wrong, and the exit code is 1. A ratio near 1
    means that no smaller bound is possible. A low ratio means more noise than needed, or that the attack was too
    weak: give it more steps.

    With --privacy, train MODEL on canaries that attain its bounds, guess from the noisy gradients which ones were
    there, and derive a lower bound of ε. If it is above the claim, the exit code is 1. At 95 % confidence that
    happens to a sound engine in at most one of twenty audits.

    \b
    Examples:
      lipcompile audit model.lip --restarts 2
      lipcompile audit model.lip --privacy --canaries 200 --seed 0
    """
    from lipcompile import pipeline
    from lipcompile.core.backend import find

    _check_options(privacy, {"restarts": restarts, **given})
    derivation = pipeline.check(model, options)
    complain(serious(derivation.diagnostics))
    if not derivation.ok:
        return 1
    if privacy:
        chosen = {name: PRIVACY[name] if value is None else value for name, value in given.items()}
        return _privacy(model, derivation, find(), {**chosen, "steps": steps or 2, "seed": seed}, form)
    effort = {"restarts": restarts or 4, "steps": steps or 60, "seed": seed or 0}
    found = _attacked(derivation, find(), effort)
    if form == "json":
        print_json(_report(model, found, effort["seed"]))
    else:
        from lipcompile.reports.console import show

        show(sys.stdout, *_text(found))
    return 0 if found.sound else 1


def _check_options(privacy: bool, given: Mapping[str, Any]) -> None:
    """Refuse options that the kind of audit does not have; raises InputError (LIP005)."""
    for name, value in given.items():
        if value is not None and (name in PRIVACY) != privacy:
            flag = f"--{name.replace('_', '-')}"
            where = "with --privacy alone" if name in PRIVACY else "of an audit of bounds, not of --privacy"
            raise input_error("LIP005", f"{flag} is an option {where}")


def _privacy(model: str, derivation: Derivation, backend: Backend, settings: Mapping[str, Any], form: str) -> int:
    from lipcompile.cli.privacy_audit import audited, print_audit
    from lipcompile.core.backend import instantiate

    text = backend.emit(derivation)
    assert derivation.analysis is not None
    choices = admissible(backend.audit, derivation.analysis.graph)
    found = audited(backend.privacy_audit, instantiate(Path("audited.py"), text), choices, settings)
    if found is None:
        return 1
    print_audit(model, found, settings, form)
    return 0 if found.sound else 1


def _attacked(derivation: Derivation, backend: Backend, effort: Mapping[str, int]) -> Any:
    """Emit the module, run it in float64 and let the backend attack it. Raises InputError if a number is open."""
    from lipcompile.cli.shared.progress import AuditWatch
    from lipcompile.core.backend import instantiate

    text = backend.emit(derivation)
    assert derivation.analysis is not None
    attack = backend.audit
    module = instantiate(Path("audited.py"), text).double()
    with AuditWatch() as watch:
        return attack.audit(
            module, admissible(attack, derivation.analysis.graph), attack.AuditConfig(**effort), watch
        )


def admissible(attack: Any, graph: Graph) -> Any:
    """Say what the adversary may choose as target and as tokens."""
    import math

    from lipcompile.cli.shared.data import tokens_of

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
