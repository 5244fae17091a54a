"""ε against steps or noise: curves of reports, by every accountant, and the plot of budget, by every analysis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lipcompile.cli.shared.privacy import ACCOUNTANTS, Answer, Question, answer, ask, refuse_if_none
from lipcompile.cli.shared.progress import CountWatch
from lipcompile.diagnostics import InputError, input_error
from lipcompile.reports.document import Curve, Privacy

# A line has about so many points. Over steps they lie closer together where it is steep: ε grows about as √steps.
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
    settled = _at_what_was_found(question, answers)
    if settled.steps == 0:
        raise input_error("LIP401", f"not one step is possible within epsilon = {question.epsilon:g}")
    return settled


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


_LABELS = {
    "pld": "PLD",
    "rdp": "RDP",
    "advanced": "advanced composition",
    "analytic": "Gaussian, no amplification",
}
_LINES = {"pld": "-", "rdp": "--", "advanced": "-.", "analytic": ":"}
_AXES = {"steps": "steps", "noise": "noise multiplier σ"}
_WIDEST = 1e3  # times the least ε drawn: beyond, other analyses would press the accountants' lines together

Line = tuple[str, list[tuple[float, float]]]


def draw(asked: Question, answers: Mapping[str, Answer], against: str, file: Path) -> None:
    """Draw the plot to a file whose name ends in .svg or .png; raises InputError (LIP401), OSError."""
    settled = _at_what_was_found(asked, answers)
    lines = _lines(settled, against)
    if not any(name in ACCOUNTANTS for name, _ in lines):
        raise input_error("LIP401", "no accountant has an ε to draw")
    metadata = {"Date": None} if file.suffix == ".svg" else {}
    _figure(lines, settled, against).savefig(file, dpi=150, metadata=metadata)


def _at_what_was_found(asked: Question, answers: Mapping[str, Answer]) -> Question:
    """Return the question for ε at the numbers that were found, those of PLD if it has an answer."""
    best = next(answers[name] for name in ("pld", "rdp") if answers[name].note is None)
    return replace(
        asked, epsilon=None, noise_multiplier=best.noise_multiplier, steps=best.steps, unknown="epsilon"
    )


def _across(asked: Question, against: str) -> list[tuple[float, Question]]:
    """Return what lies across and the question there, about the numbers in question."""
    assert asked.noise_multiplier is not None
    assert asked.steps is not None
    if against == "noise":
        around = [asked.noise_multiplier * 4 ** (i / _POINTS - 0.5) for i in range(_POINTS + 1)]
        return [(sigma, replace(asked, noise_multiplier=sigma)) for sigma in around]
    return [(count, replace(asked, steps=count)) for count in _places(asked.steps)]


def _lines(asked: Question, against: str) -> list[Line]:
    places = _across(asked, against)
    lines: list[Line] = []
    with CountWatch("drawing") as watch:
        for index, name in enumerate(_LABELS):
            found = [(place, answer(name, question).epsilon) for place, question in places]
            lines.append((name, [(place, value) for place, value in found if value]))
            watch(name, (index + 1) * len(places), len(_LABELS) * len(places))
    return _visible(lines)


def _visible(lines: Sequence[Line]) -> list[Line]:
    least = min((value for _, points in lines for _, value in points), default=0.0)
    cut = [(name, [(x, y) for x, y in points if y <= _WIDEST * least]) for name, points in lines]
    return [(name, points) for name, points in cut if points]


def _figure(lines: Sequence[Line], asked: Question, against: str) -> Any:
    import matplotlib as mpl
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    with mpl.rc_context({"svg.hashsalt": "lipcompile", "font.size": 10}):
        figure = Figure(figsize=(6.4, 4.0), layout="constrained")
        axes = figure.add_subplot()
        for name, points in lines:
            xs, ys = zip(*points, strict=True)
            axes.plot(xs, ys, _LINES[name], label=_LABELS[name], marker="." if name in ACCOUNTANTS else "")
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.set_xlabel(_AXES[against])
        axes.set_ylabel(f"ε at δ = {asked.delta:g}")
        axes.set_title(_title(asked, against), fontsize=10)
        axes.grid(alpha=0.3)
        axes.legend()
    return figure


def _title(asked: Question, against: str) -> str:
    fixed = f"σ = {asked.noise_multiplier:.4g}" if against == "steps" else f"{asked.steps} steps"
    return (
        f"{asked.drawing.sampling} sampling, rate {asked.drawing.sampling_rate:.4g}, {fixed}, {asked.neighbours}"
    )
