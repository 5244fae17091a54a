"""`lipcompile audit`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from lipcompile_privacy.errors import BudgetError, PrivacyError
from rich.console import RenderableType

from lipcompile.cli.shared.arguments import format_option, model_options, neighbours_option, noise_option
from lipcompile.cli.shared.inputs import admissible
from lipcompile.cli.shared.output import complain, print_found, serious
from lipcompile.cli.shared.progress import AuditWatch, CountWatch
from lipcompile.core.backend import Backend, find, instantiate
from lipcompile.diagnostics import Diagnostic, input_error
from lipcompile.numbers.rounding import finite, upward
from lipcompile.reports.console import BAD, GOOD, printable, styled, table

if TYPE_CHECKING:
    from lipcompile.core.derivation import Derivation
    from lipcompile.frontends.options import ModelOptions

SCHEMA = "lipcompile.audit/1"


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


@click.command(short_help="Attack the gradient bounds of MODEL, or its privacy.")
@model_options()
@click.option("--privacy", is_flag=True, help="Attack the privacy that the engine claims, with canaries.")
@click.option("--restarts", type=click.IntRange(1), help="Ascents of the whole gradient; 4 by default.")
@click.option(
    "--steps",
    type=click.IntRange(1),
    help="Steps of an ascent, at most; 60 by default. With --privacy, steps of a training; 2 by default.",
)
@click.option("--epsilon", type=float, help="Claimed ε that the noise is calibrated to; 4 by default.")
@click.option("--delta", type=float, help="Claimed δ; 1e-5 by default.")
@click.option("--canaries", type=click.IntRange(1), help="Number of canaries; 1000 by default.")
@click.option("--runs", type=click.IntRange(1), help="Trainings that share the canaries; by default one each.")
@click.option("--batch-size", type=click.IntRange(1), help="Expected batch size; by default the whole data set.")
@click.option("--dataset-size", type=click.IntRange(1), help="Examples of a training; by default its canaries.")
@noise_option
@neighbours_option
@click.option("--confidence", type=float, help="Confidence of the lower bound of ε; 0.95 by default.")
@click.option("--seed", type=int, help="Seed of all random numbers; 0 by default, and with --privacy a fresh one.")
@format_option()
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

    _check_options(privacy, {"restarts": restarts, **given})
    derivation = pipeline.check(model, pipeline.for_training(model, options))
    complain(serious(derivation.diagnostics))
    if not derivation.ok:
        return 1
    if privacy:
        chosen = {name: PRIVACY[name] if value is None else value for name, value in given.items()}
        return _privacy(model, derivation, find(), {**chosen, "steps": steps or 2, "seed": seed}, form)
    effort = {"restarts": restarts or 4, "steps": steps or 60, "seed": seed or 0}
    found = _attacked(derivation, find(), effort)
    print_found(form, _report(model, found, effort["seed"]), _text(found))
    return 0 if found.sound else 1


def _check_options(privacy: bool, given: Mapping[str, Any]) -> None:
    """Refuse options that the kind of audit does not have; raises InputError (LIP005)."""
    for name, value in given.items():
        if value is not None and (name in PRIVACY) != privacy:
            flag = f"--{name.replace('_', '-')}"
            where = "with --privacy alone" if name in PRIVACY else "of an audit of bounds, not of --privacy"
            raise input_error("LIP005", f"{flag} is an option {where}")


def _privacy(model: str, derivation: Derivation, backend: Backend, settings: Mapping[str, Any], form: str) -> int:
    text = backend.emit(derivation)
    assert derivation.analysis is not None
    choices = admissible(backend.audit, derivation.analysis.graph)
    module = instantiate(Path("audited.py"), text, derivation.source.network)
    found = audited(backend.privacy_audit, module, choices, settings)
    if found is None:
        return 1
    print_audit(model, found, settings, form)
    return 0 if found.sound else 1


def _attacked(derivation: Derivation, backend: Backend, effort: Mapping[str, int]) -> Any:
    """Emit the module, run it in float64 and let the backend attack it. Raises InputError if a number is open."""
    text = backend.emit(derivation)
    assert derivation.analysis is not None
    attack = backend.audit
    module = instantiate(Path("audited.py"), text, derivation.source.network).double()
    with AuditWatch() as watch:
        return attack.audit(
            module, admissible(attack, derivation.analysis.graph), attack.AuditConfig(**effort), watch
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
        "ratio": finite(found.ratio),
        "exceeded": found.exceeded,
    }


def _text(found: Any) -> Iterator[RenderableType]:
    rows = table("parameter", "claimed", "attained", "ratio", right=("claimed", "attained", "ratio"))
    named = [*found.parameters.items(), ("whole gradient", found.total)]
    for name, one in named:
        cell = (f"{one.ratio:.4f}", BAD if one.exceeded else "")
        rows.add_row(printable(name), upward(one.claimed), f"{one.attained:.7g}", styled(cell))
    yield rows
    yield styled("")
    refuted = [name for name, one in named if one.exceeded]
    if refuted:
        yield styled((f"exceeded: {', '.join(map(printable, refuted))}", BAD))
        yield styled(
            "This bound is wrong, and its noise is too small. This is a bug in lipcompile. Please report it."
        )
        return
    yield styled(("no bound was exceeded", GOOD))
    yield from (styled(line) for line in _tightness(found))


def _tightness(found: Any) -> Iterator[str]:
    trained = {name: one for name, one in found.parameters.items() if one.claimed > 0}
    if not trained:
        return
    name = min(trained, key=lambda name: trained[name].ratio)
    yield (
        f"The attack reached {found.total.ratio:.0%} of the bound of the whole gradient. The least tight bound is "
        f"that of {printable(name)}: {trained[name].ratio:.0%}. A bound that no gradient reaches costs noise."
    )


PRIVACY_SCHEMA = "lipcompile.privacy-audit/1"

_NEAR = 0.5  # a separation below which an audit would miss a noise of half the size

REPORT = "noise made so protects less than it promises: please report it, with the command"


def audited(attack: Any, module: Any, admissible: Any, settings: Mapping[str, Any]) -> Any:
    """Play the game on an emitted module; returns what the backend found, or None if a step was refused.

    Raises InputError (LIP401, LIP404).
    """
    try:
        config = attack.PrivacyAuditConfig(**settings)
        with CountWatch("auditing") as watch:
            return attack.audit_privacy(module, admissible, config, watch)
    except BudgetError as error:
        raise input_error("LIP401", str(error)) from None
    except ValueError as error:
        raise input_error("LIP404", str(error)) from None
    except PrivacyError as error:
        complain([Diagnostic("LIP406", f"the engine refused a step of the audit: {error}", REPORT)])
        return None


def print_audit(model: str, found: Any, settings: Mapping[str, Any], form: str) -> None:
    """Write what was found to stdout, and to stderr that a claim is refuted."""
    print_found(form, _privacy_report(model, found, settings), _privacy_text(found, settings))
    if not found.sound:
        complain([refutation(found.claimed, _bound(found), found.delta, found.confidence)])


def refutation(claimed: float, bound: float, delta: float, confidence: float) -> Diagnostic:
    """Return what is said of a lower bound above the claim."""
    message = (
        f"epsilon is at least {bound:.4g} at delta = {delta:g}, with {_percent(confidence)} confidence, "
        f"where {claimed:.4g} is claimed"
    )
    return Diagnostic(
        "LIP406", message, f"repeat it with --confidence 0.999 and more canaries; if it stays so, {REPORT}"
    )


def _bound(found: Any) -> float:
    return float(max(found.lower, found.lower_of_any))


def _privacy_report(model: str, found: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    game = found.game
    return {
        "schema": PRIVACY_SCHEMA,
        "model": model,
        "seed": settings["seed"],
        "ok": found.sound,
        "claimed": {"epsilon": found.claimed, "delta": found.delta, "neighbours": settings["neighbours"]},
        "mechanism": {
            "noise_multiplier": found.noise_multiplier,
            "sampling_rate": found.sampling_rate,
            "steps": settings["steps"],
        },
        "lower_bound": {"epsilon": found.lower, "of_any_mechanism": found.lower_of_any},
        "confidence": found.confidence,
        "share": found.share,
        "p_value": found.p_value,
        "game": {"canaries": game.canaries, "runs": game.runs, "guesses": game.guessed, "right": game.right},
        "separation": found.separation,
    }


def _privacy_text(found: Any, settings: Mapping[str, Any]) -> Iterator[RenderableType]:
    game, sure = found.game, f"with {_percent(found.confidence)} confidence"
    rows = table("", "epsilon", "", right=("epsilon",))
    rows.add_row("claimed", upward(found.claimed, 4), f"at delta = {found.delta:g}, {settings['neighbours']}")
    share = f"{found.lower / found.claimed:.0%} of the claim, {sure}" if found.claimed else sure
    rows.add_row("at least", f"{found.lower:.4g}", share)
    rows.add_row("at least", f"{found.lower_of_any:.4g}", f"{sure}, of any mechanism, Gaussian or not")
    yield rows
    yield styled("")
    yield styled(
        f"{game.right} of {game.guessed} guesses were right, about {game.canaries} canaries in {game.runs} runs. "
        f"If the claim holds, so many have a probability of at most {found.p_value:.2g}."
    )
    yield styled(f"The canaries' gradients are {found.separation:.0%} as far apart as the bounds allow.")
    if found.separation < _NEAR:
        yield styled("This audit shows little: bounds or clips that no gradient reaches mean needless noise.")
    yield styled(("the claim was not refuted", GOOD) if found.sound else ("the claim is refuted", BAD))


def _percent(confidence: float) -> str:
    return f"{100 * confidence:.10g} %"
