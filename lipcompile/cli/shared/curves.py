"""ε against steps, by every accountant, at one noise multiplier."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from lipcompile.cli.shared.privacy import ACCOUNTANTS, Answer, Question, answer, ask, refuse_if_none
from lipcompile.cli.shared.progress import CountWatch
from lipcompile.core.diagnostics import InputError, input_error
from lipcompile.reports.document import Curve, Privacy

# A curve has about so many points. They lie closer together where it is steep: ε grows about as √steps.
_POINTS = 12


def asked(given: Mapping[str, Any], plan: Mapping[str, Any]) -> Question | None:
    """Return what curves are asked for; None if no option is given, and the plan alone does not say enough."""
    try:
        return ask(given, plan)
    except InputError:
        if any(value is not None for value in given.values()):
            raise
        return None


def privacy(question: Question) -> Privacy:
    """Return the curves up to the steps asked for, at the noise asked for or calibrated to the ε asked for.

    Calibration is PLD's, or RDP's where PLD has no answer. Raises InputError (LIP401) without any point.
    """
    settled = _settled(question)
    assert settled.noise_multiplier is not None
    assert settled.steps is not None
    curves = _curves(settled, _places(settled.steps))
    if not any(curve.points for curve in curves):
        raise input_error("LIP401", curves[-1].note or "no accountant has an answer")
    return Privacy(
        noise_multiplier=settled.noise_multiplier,
        sampling_rate=settled.drawing.sampling_rate,
        steps=settled.steps,
        delta=settled.delta,
        neighbours=settled.neighbours,
        curves=tuple(curves),
        target=question.epsilon,
    )


def _settled(question: Question) -> Question:
    """Return the question for ε; raises InputError (LIP401) if the noise or the steps cannot be computed."""
    if question.unknown == "epsilon":
        return question
    answers: dict[str, Answer] = {name: answer(name, question) for name in ACCOUNTANTS}
    refuse_if_none(answers)
    best = next(found for found in (answers["pld"], answers["rdp"]) if found.note is None)
    if best.steps == 0:
        raise input_error("LIP401", f"not one step is possible within epsilon = {question.epsilon:g}")
    noise, steps = best.noise_multiplier, best.steps
    return replace(question, epsilon=None, noise_multiplier=noise, steps=steps, unknown="epsilon")


def _places(steps: int) -> tuple[int, ...]:
    return tuple(sorted({max(1, round(steps * (i / _POINTS) ** 2)) for i in range(1, _POINTS + 1)}))


def _curves(question: Question, places: Sequence[int]) -> list[Curve]:
    planned = len(places) * len(ACCOUNTANTS)
    with CountWatch("accounting") as watch:

        def curve(index: int, accountant: str) -> Curve:
            points: list[tuple[int, float]] = []
            for steps in places:
                found = answer(accountant, replace(question, steps=steps))
                if found.epsilon is None:
                    return Curve(accountant, tuple(points), found.note)
                points.append((steps, found.epsilon))
                watch(accountant, index * len(places) + len(points), planned)
            return Curve(accountant, tuple(points))

        return [curve(index, accountant) for index, accountant in enumerate(ACCOUNTANTS)]
