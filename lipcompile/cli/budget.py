"""`lipcompile budget`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from lipcompile.cli.arguments import model_options
from lipcompile.cli.output import complain, print_json
from lipcompile.cli.privacy import (
    ACCOUNTANTS,
    COLUMNS,
    Answer,
    Question,
    answer,
    ask,
    privacy_options,
    refuse_if_none,
)

if TYPE_CHECKING:
    from lipcompile.frontends.options import Loaded, ModelOptions

SCHEMA = "lipcompile.budget/1"


@click.command(short_help="Relate ε, noise and steps.")
@model_options(required=False)
@privacy_options
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", help="What to print.")
def budget(model: str | None, options: ModelOptions, form: str, given: Mapping[str, Any]) -> int:
    """Relate ε, noise and steps at δ, by the RDP and the PLD accountant side by side.

    Two of ε, noise multiplier and steps give the third. The `train` block of MODEL supplies what is not given.

    \b
    Examples:
      lipcompile budget --epsilon 3 --delta 1e-5 --batch-size 512 --dataset-size 60000 --epochs 20
      lipcompile budget --noise-multiplier 1.1 --delta 1e-5 --sampling-rate 0.01 --steps 1000
    """
    from lipcompile import pipeline
    from lipcompile.backend import find
    from lipcompile.cli.settings import planned

    loaded: Loaded | None = pipeline.load(model, options) if model else None
    if loaded and loaded.graph is None:
        complain(loaded.diagnostics)
        return 1
    question = ask(given, planned(loaded))
    answers = {name: answer(find().accounting, name, question) for name in ACCOUNTANTS}
    refuse_if_none(answers)
    if form == "json":
        print_json(_report(question, answers))
    else:
        _print(question, answers)
    return 0


def _report(asked: Question, answers: Mapping[str, Answer]) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "neighbours": asked.neighbours,
        "sampling": asked.sampling,
        "sampling_rate": asked.sampling_rate,
        "steps_per_mechanism": asked.round_steps,
        "delta": asked.delta,
        "solved_for": asked.unknown,
        "accountants": {name: asdict(answer) for name, answer in answers.items()},
    }


def _print(asked: Question, answers: Mapping[str, Answer]) -> None:
    from lipcompile.reports.console import show, styled, table

    rows = table("accountant", "epsilon", "noise multiplier", "steps", "", right=("steps",))
    for name, found in answers.items():
        numbers = [_number(getattr(found, column), column == asked.unknown) for column in COLUMNS]
        rows.add_row(name, *numbers, found.note or "")
    head = f"δ = {asked.delta:g}, {asked.sampling} sampling of rate {asked.sampling_rate:.6g}, neighbours "
    head += asked.neighbours
    if asked.round_steps != 1:
        covered = f"{asked.round_steps} steps" if asked.round_steps else "all steps"
        one = "allocation" if asked.sampling == "balls_in_bins" else f"of rate {asked.charged_rate:.6g}"
        head += f"; {covered} count as one {one}"
    tail = f"{asked.unknown.replace('_', ' ')} is computed" + ("" if asked.unknown == "steps" else ", rounded up")
    show(sys.stdout, styled(head), styled(""), rows, styled(""), styled(tail))


def _number(value: float | None, computed: bool) -> str:
    from lipcompile.reports.formulas import round_up

    if value is None:
        return "–"
    return round_up(value, 4) if computed and isinstance(value, float) else f"{value:.15g}"
