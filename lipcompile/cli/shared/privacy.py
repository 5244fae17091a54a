"""Options of privacy, what they ask (of ε, noise and steps, one is unknown), and what accountants answer."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import click
from lipcompile_privacy import accounting
from lipcompile_privacy.accounting import Accountant, Drawing
from lipcompile_privacy.errors import BudgetError

from lipcompile.cli.shared.arguments import NEIGHBOURS, NEIGHBOURS_HELP, Command
from lipcompile.cli.shared.settings import demand, epoch_steps, merged, resolved_sampling, setting_error
from lipcompile.diagnostics import Diagnostic, InputError

ACCOUNTANTS: tuple[Accountant, ...] = get_args(Accountant)
Unknown = Literal["epsilon", "noise_multiplier", "steps"]
COLUMNS: tuple[Unknown, ...] = get_args(Unknown)

# What answers for each of `COLUMNS`.
_BY_ACCOUNTANTS: tuple[Callable[..., Any], ...] = (
    accounting.epsilon,
    accounting.calibrate_noise_multiplier,
    accounting.calibrate_steps,
)
_BY_COMPARISONS: tuple[Callable[..., Any], ...] = (
    accounting.comparison_epsilon,
    accounting.comparison_noise,
    accounting.comparison_steps,
)
# By the names that commands have for them.
_OPTIONS: dict[str, tuple[Any, str]] = {
    "epsilon": (float, "ε of the whole training."),
    "delta": (float, "δ of the whole training."),
    "noise_multiplier": (float, "σ: deviation of the noise over the per-example bound of the gradient."),
    "sampling_rate": (float, "Probability that an example enters a batch."),
    "batch_size": (click.IntRange(1), "Expected batch size; with --dataset-size."),
    "dataset_size": (click.IntRange(1), "Number of examples."),
    "steps": (click.IntRange(1), "Number of training steps."),
    "epochs": (click.IntRange(1), "Number of passes over the data, instead of --steps."),
    "neighbours": (NEIGHBOURS, NEIGHBOURS_HELP),
    "sampling": (click.Choice(["poisson", "fixed_size", "shuffle", "balls_in_bins"]), "Sampling of batches."),
}


@dataclass(frozen=True, slots=True)
class Question:
    """A budget with one number missing: `unknown` is None there.

    drawing: how batches are drawn and what is charged for it.
    """

    neighbours: str
    drawing: Drawing
    delta: float
    epsilon: float | None
    noise_multiplier: float | None
    steps: int | None
    unknown: Unknown

    @property
    def batch_size(self) -> int | None:
        """The size of a batch, or the expected one, if it is known."""
        return self.drawing.sizes[0] if self.drawing.sizes else None

    @property
    def charges(self) -> int | None:
        """How many releases the steps are."""
        return None if self.steps is None else self.drawing.charges(self.steps)


@dataclass(frozen=True, slots=True)
class Answer:
    """One analysis's completion of a question; `note` says why it has none. The batch size is that asked for."""

    epsilon: float | None
    noise_multiplier: float | None
    steps: int | None
    note: str | None = None
    batch_size: int | None = None


def privacy_options(command: Command) -> Command:
    """Give a command the options of privacy, collected in the keyword `given`: None where one is not given."""

    @functools.wraps(command)
    def collected(**values: Any) -> int:
        return command(given={name: values.pop(name) for name in _OPTIONS}, **values)

    for name, (kind, text) in reversed(_OPTIONS.items()):
        collected = click.option(f"--{name.replace('_', '-')}", name, type=kind, help=text)(collected)
    return collected


def ask(given: Mapping[str, Any], plan: Mapping[str, Any]) -> Question:
    """Return what is asked; the plan supplies what is not given.

    Raises InputError (LIP404).
    """
    settings = merged(given, {"dataset_size": plan.get("dataset"), **plan}, {"neighbours": "add_remove"})
    known = given["sampling_rate"] is not None or None not in (settings["batch_size"], settings["dataset_size"])
    demand(settings, ("delta",), () if known else ("--sampling-rate (or --batch-size with --dataset-size)",))
    rate, sizes = _sampled(given, settings)
    asked = _asked(given, plan, _steps(given, rate, sizes), _steps(settings, rate, sizes))
    unknown = [name for name in COLUMNS if asked[name] is None]
    if not unknown:
        raise setting_error(
            "--epsilon, --noise-multiplier and --steps are all given: leave one out, or for the largest batch "
            "--batch-size and --sampling-rate"
        )
    if len(unknown) > 1:
        listed = " and ".join(unknown)
        raise setting_error(f"{listed} are unknown: two of epsilon, noise_multiplier and steps are needed")
    correlation, neighbours = plan.get("correlation"), settings["neighbours"]
    sampling = resolved_sampling(settings["sampling"], correlation)
    try:
        drawing = _drawing(sampling, correlation, rate, sizes)
        drawing.check(accounting.NeighbouringRelation(neighbours))
    except BudgetError as error:
        raise setting_error(str(error)) from error
    if unknown[0] == "steps" and drawing.round_steps is None:
        raise setting_error(
            "with `noise blt` the whole run is one mechanism, however many steps it has: give them"
        )
    return Question(neighbours, drawing, settings["delta"], unknown=unknown[0], **asked)


def batch_question(given: Mapping[str, Any], plan: Mapping[str, Any]) -> Callable[[int], Question] | None:
    """Return the question for ε at every batch size, if the batch size is what is asked for.

    It is if ε, the noise and the steps or epochs are given as options, and neither a batch size nor a rate. Raises
    InputError (LIP404).
    """
    known = all(given[name] is not None for name in ("epsilon", "noise_multiplier"))
    counted = given["steps"] is not None or given["epochs"] is not None
    if not (known and counted) or given["batch_size"] is not None or given["sampling_rate"] is not None:
        return None
    demand(merged(given, {"dataset_size": plan.get("dataset"), **plan}, {}), ("dataset_size",))
    plan = {name: value for name, value in plan.items() if name not in ("epsilon", "noise_multiplier")}
    return lambda size: ask({**given, "epsilon": None, "batch_size": size}, plan)


def answer(analysis: str, asked: Question) -> Answer:
    """Let one analysis complete a question: an accountant, or one of `accounting.COMPARISONS`."""
    known: dict[str, Any] = {name: getattr(asked, name) for name in COLUMNS}
    try:
        found = _solution(analysis, asked)
    except BudgetError as error:
        return Answer(**known, note=str(error), batch_size=asked.batch_size)
    if not math.isfinite(found):
        note = "no finite epsilon: there is too little noise for this delta"
        return Answer(**known, note=note, batch_size=asked.batch_size)
    return Answer(**{**known, asked.unknown: found}, batch_size=asked.batch_size)


def answer_batch(accountant: Accountant, asked: Callable[[int], Question], epsilon: float, most: int) -> Answer:
    """Let one accountant find the largest batch, of `most` examples at most, that ε allows."""
    sample = asked(most)
    relation = accounting.NeighbouringRelation(sample.neighbours)

    def run(size: int) -> Any:
        question: Any = asked(size)
        return question.drawing.release(question.noise_multiplier), question.charges

    size, note = 0, None
    try:
        size = accounting.calibrate_batch_size(epsilon, sample.delta, run, most, relation, accountant)
    except BudgetError as error:
        note = str(error)
    if size == 0:
        return Answer(epsilon, sample.noise_multiplier, sample.steps, note or "not even a batch of 1 is possible")
    return Answer(epsilon, sample.noise_multiplier, asked(size).steps, batch_size=size)


def _solution(analysis: str, asked: Any) -> float:
    """Return the number of a `Question` that is unknown; raises BudgetError."""
    relation, release = accounting.NeighbouringRelation(asked.neighbours), asked.drawing.release
    if analysis in accounting.COMPARISONS:
        epsilon, noise, steps = (functools.partial(function, analysis) for function in _BY_COMPARISONS)
    else:
        epsilon, noise, steps = (functools.partial(function, accountant=analysis) for function in _BY_ACCOUNTANTS)
    if asked.unknown == "epsilon":
        return float(epsilon([(release(asked.noise_multiplier), asked.charges)], asked.delta, relation))
    if asked.unknown == "noise_multiplier":
        return float(noise(asked.epsilon, asked.delta, release, asked.charges, relation))
    return int(asked.drawing.steps(steps(asked.epsilon, asked.delta, release(asked.noise_multiplier), relation)))


def refuse_if_none(answers: Mapping[str, Answer]) -> None:
    """Raise InputError (LIP401) with the reasons if no accountant has an answer."""
    notes = [answer.note for answer in answers.values() if answer.note]
    if len(notes) == len(answers):
        raise InputError(tuple(Diagnostic("LIP401", note) for note in dict.fromkeys(notes)))


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


def _drawing(
    sampling: Any, correlation: Mapping[str, Any] | None, rate: float, sizes: tuple[int, int] | None
) -> Drawing:
    """Return how batches are drawn; of correlated noise, as it needs."""
    if correlation is None:
        return Drawing(sampling or "poisson", rate, sizes)
    if correlation["kind"] == "blt":
        return Drawing("fixed_order", rate, sizes)
    return Drawing("cyclic_poisson", rate, sizes, int(correlation["bands"]))


def _sampled(given: Mapping[str, Any], settings: Mapping[str, Any]) -> tuple[float, tuple[int, int] | None]:
    """Return the sampling rate, and the sizes of a batch and of the data set, unless a rate is given."""
    if given["sampling_rate"] is None:
        sizes = int(settings["batch_size"]), int(settings["dataset_size"])
        return sizes[0] / sizes[1], sizes
    if given["batch_size"] is not None:
        raise setting_error("--sampling-rate and --batch-size say the same twice: leave one out")
    return float(given["sampling_rate"]), None


def _steps(settings: Mapping[str, Any], rate: float, sizes: tuple[int, int] | None) -> int | None:
    """Return the number of steps, if it or that of epochs is said."""
    if settings["steps"] is not None or settings["epochs"] is None:
        return None if settings["steps"] is None else int(settings["steps"])
    if not rate > 0:
        return None
    batch, dataset = sizes or (rate, 1)
    return int(settings["epochs"]) * epoch_steps(dataset, batch)
