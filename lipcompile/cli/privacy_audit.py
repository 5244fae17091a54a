"""`lipcompile audit --privacy`: what guesses about canaries say of the claimed ε."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from lipcompile_privacy.errors import BudgetError, PrivacyError

from lipcompile.cli.shared.output import complain, print_json
from lipcompile.core.diagnostics import Diagnostic, input_error

if TYPE_CHECKING:
    from rich.console import RenderableType

SCHEMA = "lipcompile.privacy-audit/1"

_NEAR = 0.5  # a separation below which an audit would miss a noise of half the size

REPORT = "noise made so protects less than it promises: please report it, with the command"


def audited(attack: Any, module: Any, admissible: Any, settings: Mapping[str, Any]) -> Any:
    """Play the game on an emitted module; returns what the backend found, or None if a step was refused.

    Raises InputError (LIP401, LIP404).
    """
    from lipcompile.cli.shared.progress import CountWatch

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
    if form == "json":
        print_json(_report(model, found, settings))
    else:
        from lipcompile.reports.console import show

        show(sys.stdout, *_text(found, settings))
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


def _report(model: str, found: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    game = found.game
    return {
        "schema": SCHEMA,
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


def _text(found: Any, settings: Mapping[str, Any]) -> Iterator[RenderableType]:
    from lipcompile.reports.console import BAD, GOOD, styled, table
    from lipcompile.reports.formulas import round_up

    game, sure = found.game, f"with {_percent(found.confidence)} confidence"
    rows = table("", "epsilon", "", right=("epsilon",))
    rows.add_row("claimed", round_up(found.claimed, 4), f"at delta = {found.delta:g}, {settings['neighbours']}")
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
