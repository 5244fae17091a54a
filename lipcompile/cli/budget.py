"""`lipcompile budget`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from lipcompile_privacy.accounting import COMPARISONS, Accountant
from rich.console import RenderableType

from lipcompile.cli.shared.arguments import file_option, format_option, model_options
from lipcompile.cli.shared.output import complain, print_found
from lipcompile.cli.shared.privacy import (
    ACCOUNTANTS,
    Answer,
    Question,
    answer,
    answer_batch,
    ask,
    batch_question,
    privacy_options,
    refuse_if_none,
)
from lipcompile.cli.shared.progress import spinner
from lipcompile.cli.shared.settings import planned
from lipcompile.numbers.rounding import upward
from lipcompile.reports.console import styled, table

if TYPE_CHECKING:
    from lipcompile.frontends.options import Loaded, ModelOptions

SCHEMA = "lipcompile.budget/1"
_COLUMNS = ("epsilon", "noise_multiplier", "steps", "batch_size")


@dataclass(frozen=True, slots=True)
class Found:
    """What was asked, what is `unknown` of it, and the answers by analysis."""

    question: Question
    unknown: str
    accountants: Mapping[str, Answer]
    comparisons: Mapping[str, Answer]


@click.command(short_help="Relate ε, noise, steps and batch size.")
@model_options(required=False)
@privacy_options
@click.option(
    "--sensitivity",
    type=float,
    metavar="K",
    help="Per-example bound of the gradient; the output then has the deviation σK.",
)
@file_option("--plot", metavar="FILE", text="Picture of ε to write, .svg or .png.")
@click.option(
    "--against",
    type=click.Choice(["steps", "noise"]),
    default="steps",
    help="Horizontal axis of the plot; steps by default.",
)
@format_option()
def budget(
    model: str | None,
    options: ModelOptions,
    form: str,
    sensitivity: float | None,
    plot: Path | None,
    against: str,
    given: Mapping[str, Any],
) -> int:
    """Relate ε, noise, steps and batch size at δ, by the RDP and the PLD accountant and others side by side.

    Two of ε, noise multiplier and steps give the third; all three, without a batch size, give the largest batch.
    The `train` block of MODEL supplies what is not given.

    \b
    Examples:
      lipcompile budget --epsilon 3 --delta 1e-5 --batch-size 512 --dataset-size 60000 --epochs 20
      lipcompile budget --noise-multiplier 1.1 --delta 1e-5 --sampling-rate 0.01 --steps 1000 --plot spent.svg
      lipcompile budget --epsilon 2 --noise-multiplier 1 --epochs 10 --delta 1e-5 --dataset-size 60000
      lipcompile budget --epsilon 0.5 --delta 1e-6 --sampling-rate 1 --steps 1 --sensitivity 100
    """
    from lipcompile import pipeline

    loaded: Loaded | None = pipeline.load(model, options) if model else None
    if loaded and loaded.graph is None:
        complain(loaded.diagnostics)
        return 1
    _check(sensitivity, plot)
    found = _found(given, planned(loaded))
    refuse_if_none(found.accountants)
    if plot is not None:
        from lipcompile.cli.shared.curves import draw

        draw(found.question, found.accountants, against, plot)
    print_found(form, _report(found, sensitivity), _text(found, sensitivity))
    return 0


def _check(sensitivity: float | None, plot: Path | None) -> None:
    if sensitivity is not None and not 0 < sensitivity < float("inf"):
        raise click.UsageError(f"--sensitivity: {sensitivity} is not a positive number")
    if plot is not None and plot.suffix not in (".svg", ".png"):
        raise click.UsageError(f"--plot: the name of {plot} ends neither in .svg nor in .png")


def _found(given: Mapping[str, Any], plan: Mapping[str, Any]) -> Found:
    """Raises InputError."""
    if (at := batch_question(given, plan)) is not None:
        return _found_batch(at, given["epsilon"], given["dataset_size"] or plan["dataset"])
    question = ask(given, plan)
    accountants = _watched(lambda name: answer(name, question))
    comparisons: dict[str, Answer] = {name: answer(name, question) for name in COMPARISONS}
    return Found(question, question.unknown, accountants, comparisons)


def _found_batch(at: Callable[[int], Question], epsilon: float, most: int) -> Found:
    accountants = _watched(lambda name: answer_batch(name, at, epsilon, most))
    sizes = [found.batch_size for found in reversed(accountants.values()) if found.batch_size]
    return Found(at(sizes[0] if sizes else most), "batch_size", accountants, {})


def _watched(work: Callable[[Accountant], Answer]) -> dict[str, Answer]:
    """Return the answer of every accountant; the search of PLD takes seconds, which a terminal shows."""
    answers: dict[str, Answer] = {}
    for name in ACCOUNTANTS:
        with spinner(f"{name} accountant"):
            answers[name] = work(name)
    return answers


def _report(found: Found, sensitivity: float | None) -> dict[str, Any]:
    asked = found.question
    return {
        "schema": SCHEMA,
        "neighbours": asked.neighbours,
        "sampling": asked.drawing.sampling,
        "sampling_rate": asked.drawing.sampling_rate,
        "steps_per_mechanism": asked.drawing.round_steps,
        "delta": asked.delta,
        "solved_for": found.unknown,
        "sensitivity": sensitivity,
        "accountants": {name: asdict(one) for name, one in found.accountants.items()},
        "comparisons": {name: asdict(one) for name, one in found.comparisons.items()},
    }


def _text(found: Found, sensitivity: float | None) -> Iterator[RenderableType]:
    yield from (styled(_head(found.question)), styled(""))
    yield from (_table("accountant", found.accountants, found.unknown, sensitivity), styled(""))
    if found.comparisons:
        yield styled("for comparison, every charge a plain Gaussian (`advanced` amplifies by sampling):")
        yield from (_table("analysis", found.comparisons, found.unknown, sensitivity), styled(""))
    rounding = ", rounded up" if found.unknown in ("epsilon", "noise_multiplier") else ""
    yield styled(f"{found.unknown.replace('_', ' ')} is computed{rounding}")


def _head(asked: Question) -> str:
    drawing = asked.drawing
    head = f"δ = {asked.delta:g}, {drawing.sampling} sampling of rate {drawing.sampling_rate:.6g}, neighbours "
    head += asked.neighbours
    if drawing.round_steps != 1:
        covered = f"{drawing.round_steps} steps" if drawing.round_steps else "all steps"
        one = "allocation" if drawing.sampling == "balls_in_bins" else f"of rate {drawing.charged_rate:.6g}"
        head += f"; {covered} count as one {one}"
    return head


def _table(kind: str, answers: Mapping[str, Answer], unknown: str, sensitivity: float | None) -> Any:
    columns = [name for name in _COLUMNS if any(getattr(one, name) is not None for one in answers.values())]
    titles = [name.replace("_", " ") for name in columns] + ([] if sensitivity is None else ["deviation"])
    rows = table(kind, *titles, "", right=("steps", "batch size"))
    for name, one in answers.items():
        numbers = [_number(getattr(one, column), column == unknown) for column in columns]
        if sensitivity is not None:
            noise = one.noise_multiplier
            numbers.append(_number(None if noise is None else noise * sensitivity, unknown == "noise_multiplier"))
        rows.add_row(name, *numbers, one.note or "")
    return rows


def _number(value: float | None, computed: bool) -> str:
    if value is None:
        return "–"
    return upward(value, 5) if computed and isinstance(value, float) else f"{value:.15g}"
