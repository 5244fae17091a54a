"""`lipcompile budget`."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import click

from lipcompile.cli.arguments import model_options
from lipcompile.cli.output import complain, print_json

if TYPE_CHECKING:
    from lipcompile.frontends.options import Loaded, ModelOptions

SCHEMA = "lipcompile.budget/1"
ACCOUNTANTS = ("rdp", "pld")
Unknown = Literal["epsilon", "noise_multiplier", "steps"]
COLUMNS: tuple[Unknown, ...] = get_args(Unknown)


@dataclass(frozen=True, slots=True)
class Question:
    """A budget with one number missing: `unknown` is None there."""

    neighbours: str
    sampling_rate: float
    delta: float
    epsilon: float | None
    noise_multiplier: float | None
    steps: int | None
    unknown: Unknown


@dataclass(frozen=True, slots=True)
class Answer:
    """One accountant's completion of a question; `note` says why it has none."""

    epsilon: float | None
    noise_multiplier: float | None
    steps: int | None
    note: str | None = None


@click.command(short_help="Relate ε, noise and steps.")
@model_options(required=False)
@click.option("--epsilon", type=float, help="ε of the whole training.")
@click.option("--delta", type=float, help="δ of the whole training.")
@click.option("--noise-multiplier", type=float, help="σ: noise over the per-example bound of the gradient.")
@click.option("--sampling-rate", type=float, help="Probability that an example enters a batch.")
@click.option("--batch-size", type=click.IntRange(1), help="Expected batch size; with --dataset-size.")
@click.option("--dataset-size", type=click.IntRange(1), help="Number of examples.")
@click.option("--steps", type=click.IntRange(1), help="Number of training steps.")
@click.option("--epochs", type=click.IntRange(1), help="Number of passes over the data, in place of --steps.")
@click.option("--neighbours", type=click.Choice(["add_remove", "replace_one"]), help="What one person changes.")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", help="What to print.")
def budget(model: str | None, options: ModelOptions, form: str, **given: Any) -> int:
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
    question = _question(given, planned(loaded))
    answers = {name: _answer(find().accounting, name, question) for name in ACCOUNTANTS}
    _refuse_if_none(answers)
    if form == "json":
        print_json(_report(question, answers))
    else:
        _print(question, answers)
    return 0


def _question(given: Mapping[str, Any], plan: Mapping[str, Any]) -> Question:
    from lipcompile.cli.settings import demand, merged, setting_error

    settings = merged(given, {"dataset_size": plan.get("dataset"), **plan}, {"neighbours": "add_remove"})
    demand(settings, ("delta",))
    rate = _rate(given, settings)
    asked = _asked(given, plan, _steps(given, rate), _steps(settings, rate))
    unknown = [name for name in COLUMNS if asked[name] is None]
    if not unknown:
        raise setting_error("--epsilon, --noise-multiplier and --steps are all given: leave one out")
    if len(unknown) > 1:
        listed = " and ".join(unknown)
        raise setting_error(f"{listed} are unknown: two of epsilon, noise_multiplier and steps are needed")
    return Question(settings["neighbours"], rate, settings["delta"], unknown=unknown[0], **asked)


def _asked(
    given: Mapping[str, Any], plan: Mapping[str, Any], steps: int | None, planned_steps: int | None
) -> dict[Unknown, Any]:
    """Return what is given; the plan fills in what is open until one number is left to be computed."""
    noise = given["noise_multiplier"]
    asked: dict[Unknown, Any] = {"epsilon": given["epsilon"], "noise_multiplier": noise, "steps": steps}
    fill: dict[Unknown, Any] = {"steps": planned_steps, "epsilon": plan.get("epsilon")}
    fill["noise_multiplier"] = plan.get("noise_multiplier")
    for name, value in fill.items():
        if asked[name] is None and list(asked.values()).count(None) > 1:
            asked[name] = value
    return asked


def _rate(given: Mapping[str, Any], settings: Mapping[str, Any]) -> float:
    from lipcompile.cli.settings import setting_error

    if given["sampling_rate"] is not None:
        if given["batch_size"] is not None:
            raise setting_error("--sampling-rate and --batch-size say the same twice: leave one out")
        return float(given["sampling_rate"])
    if settings["batch_size"] is None or settings["dataset_size"] is None:
        raise setting_error("--sampling-rate, or --batch-size and --dataset-size, are needed")
    return float(settings["batch_size"] / settings["dataset_size"])


def _steps(settings: Mapping[str, Any], rate: float) -> int | None:
    """Return the number of steps; an epoch is round(1/q) steps, and at least one, as in training."""
    if settings["steps"] is not None or settings["epochs"] is None:
        return None if settings["steps"] is None else int(settings["steps"])
    return int(settings["epochs"]) * max(1, round(1 / rate)) if rate > 0 else None


def _answer(accounting: Any, accountant: str, asked: Question) -> Answer:
    relation = accounting.NeighbouringRelation(asked.neighbours)

    def mechanism() -> Any:
        return accounting.Mechanism(asked.sampling_rate, asked.noise_multiplier)

    solve: dict[Unknown, Callable[[], Any]] = {
        "epsilon": lambda: accounting.epsilon([(mechanism(), asked.steps)], asked.delta, relation, accountant),
        "noise_multiplier": lambda: accounting.calibrate_noise_multiplier(
            asked.epsilon, asked.delta, asked.sampling_rate, asked.steps, relation, accountant
        ),
        "steps": lambda: accounting.calibrate_steps(asked.epsilon, asked.delta, mechanism(), relation, accountant),
    }

    known = {name: getattr(asked, name) for name in solve}
    try:
        found = solve[asked.unknown]()
    except accounting.BudgetError as error:
        return Answer(**known, note=str(error))
    if not math.isfinite(found):
        return Answer(**known, note="no finite epsilon: there is too little noise for this delta")
    return Answer(**{**known, asked.unknown: found})


def _refuse_if_none(answers: Mapping[str, Answer]) -> None:
    from lipcompile.diagnostics import Diagnostic, InputError

    notes = [answer.note for answer in answers.values() if answer.note]
    if len(notes) == len(answers):
        raise InputError(tuple(Diagnostic("LIP401", note) for note in dict.fromkeys(notes)))


def _report(asked: Question, answers: Mapping[str, Answer]) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "neighbours": asked.neighbours,
        "sampling_rate": asked.sampling_rate,
        "delta": asked.delta,
        "solved_for": asked.unknown,
        "accountants": {name: asdict(answer) for name, answer in answers.items()},
    }


def _print(asked: Question, answers: Mapping[str, Answer]) -> None:
    from lipcompile.reports.console import show, styled, table

    rows = table("accountant", "epsilon", "noise multiplier", "steps", "", right=("steps",))
    for name, answer in answers.items():
        numbers = [_number(getattr(answer, column), column == asked.unknown) for column in COLUMNS]
        rows.add_row(name, *numbers, answer.note or "")
    head = f"δ = {asked.delta:g}, sampling rate {asked.sampling_rate:.6g}, neighbours {asked.neighbours}"
    tail = f"{asked.unknown.replace('_', ' ')} is computed" + ("" if asked.unknown == "steps" else ", rounded up")
    show(sys.stdout, styled(head), styled(""), rows, styled(""), styled(tail))


def _number(value: float | None, computed: bool) -> str:
    from lipcompile.reports.formulas import round_up

    if value is None:
        return "–"
    return round_up(value, 4) if computed and isinstance(value, float) else f"{value:.15g}"
