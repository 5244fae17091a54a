"""`lipcompile report`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lipcompile.cli.shared.arguments import model_options, output_option, public_option, vacuous_option
from lipcompile.cli.shared.output import complain, refuse_source, serious, write_text
from lipcompile.cli.shared.privacy import privacy_options
from lipcompile.cli.shared.progress import CountWatch
from lipcompile.cli.shared.settings import has_plan, planned
from lipcompile.core.backend import find
from lipcompile.diagnostics import input_error
from lipcompile.reports.console import show

if TYPE_CHECKING:
    from lipcompile.cli.shared.privacy import Question
    from lipcompile.core.derivation import Analysis, Derivation
    from lipcompile.frontends.options import ModelOptions
    from lipcompile.reports.document import Document, Privacy
    from lipcompile.reports.rows import Measured

# The modules of `lipcompile.reports` that write a document, by the suffix of the file.
_RENDERINGS = {".html": "html", ".md": "markdown", ".tex": "latex", ".json": "json_report"}


@click.command(short_help="Write the full derivation of MODEL as a page.")
@model_options()
@output_option("FILE.{html,md,tex,json}", "File to write; its suffix selects the format.", required=False)
@click.option("--layer", metavar="NAME", help="Print the closed forms of a layer, a parameter or a block.")
@public_option
@vacuous_option
@privacy_options
def report(
    model: str,
    options: ModelOptions,
    output: Path | None,
    layer: str | None,
    public_data: Path | None,
    allow_vacuous: bool,
    given: Mapping[str, Any],
) -> int:
    """Write a report of MODEL: formulas, bounds, depth, possible changes, and ε over the steps.

    The report of a rejected model has its diagnostics. If the bound is far above the gradients of random examples
    at the initial weights, the report warns and shows these gradients beside the noise. Changes are ranked by
    signal over noise. The curves of ε need two of ε, noise multiplier and steps; the `train` block of MODEL
    supplies what is not given. MODEL may be a folder that `train` wrote: the curve is that of its ledger, and
    gradients are not measured.

    \b
    Examples:
      lipcompile report model.lip -o report.html
      lipcompile report model.lip --layer dense.weight
      lipcompile report run -o report.html
    """
    from lipcompile import pipeline
    from lipcompile.analysis.usefulness import judged
    from lipcompile.cli.shared import runs
    from lipcompile.cli.shared.curves import asked
    from lipcompile.cli.shared.signals import measurable

    run = Path(model) if Path(model).is_dir() else None
    _check(model, output, layer)
    if run is not None:
        _refuse_options(run, options, {**given, "delta": None, "public_data": public_data})
    elif output is not None and not has_plan(model):
        asked(given, {})  # what is missing is said before minutes are spent on the model
    loaded = pipeline.load(model, options) if run is None else runs.load(run)
    derivation = judged(pipeline.derive(loaded, options), allow_vacuous=allow_vacuous)
    if output is None:
        complain(serious(derivation.diagnostics))
    if layer is not None and derivation.analysis is not None:
        _print_closed_forms(derivation.analysis, layer)
    if output is not None:
        question = asked(given, planned(loaded)) if run is None else runs.spent(run, given)
        measure = run is None and measurable()  # the weights that a run began with are in no certificate
        found = _document(derivation, question, public_data, measure=measure, allow_vacuous=allow_vacuous)
        derivation = found.derivation
        complain(serious(derivation.diagnostics))
        write_text(output, import_module(f"lipcompile.reports.{_RENDERINGS[output.suffix.lower()]}").render(found))
        click.echo(f"wrote {output}", err=True)
    return 0 if derivation.ok else 1


def _check(model: str, output: Path | None, layer: str | None) -> None:
    """Refuse what cannot be written before anything is computed."""
    if output is None:
        if layer is None:
            raise click.UsageError("-o FILE or --layer NAME is needed")
        return
    if output.suffix.lower() not in _RENDERINGS:
        raise click.UsageError(f"-o: `{output}` ends with none of {', '.join(_RENDERINGS)}")
    refuse_source(model, output)


def _refuse_options(run: Path, options: ModelOptions, others: Mapping[str, Any]) -> None:
    from lipcompile.frontends.options import ModelOptions

    said = replace(options, limits=ModelOptions().limits) != ModelOptions()
    if said or any(value is not None for value in others.values()):
        message = f"`{run}` is a folder of `train`, whose model and training are what they were"
        raise click.UsageError(f"{message}: of their options, only --delta is possible")


def _print_closed_forms(analysis: Analysis, name: str) -> None:
    from lipcompile.ops.schema import suggest
    from lipcompile.reports.closed_forms import closed_forms, subjects

    known = subjects(analysis)
    if name not in known:
        help_line = suggest(name, list(known)) or "`lipcompile check -v` lists them"
        raise input_error("LIP005", f"--layer: there is no layer, parameter or block `{name}`", help_line)
    show(sys.stdout, *closed_forms(name, known[name]))


def _document(
    derivation: Derivation, question: Question | None, public: Path | None, *, measure: bool, allow_vacuous: bool
) -> Document:
    from lipcompile.analysis.changes import changes
    from lipcompile.analysis.depth.regimes import curves
    from lipcompile.cli.shared.curves import privacy
    from lipcompile.cli.shared.signals import gains
    from lipcompile.cli.shared.verdicts import exceeded
    from lipcompile.reports.document import document

    if derivation.analysis is None:
        return document(derivation)
    graph, depth = derivation.analysis.graph, derivation.analysis.depth
    analysis = replace(derivation.analysis, depth=curves(graph, depth))
    with CountWatch("changes") as watch:
        suggestions = changes(graph, watch, gains(graph, derivation.source.network) if measure else None)
    epsilon = None if question is None else privacy(question)
    batch = None if question is None else question.batch_size
    signal = _signal(derivation, epsilon, batch, public) if measure else None
    derivation = exceeded(derivation, signal and signal.signals, allow_vacuous=allow_vacuous)
    return document(
        replace(derivation, analysis=analysis), suggestions=suggestions, privacy=epsilon, signal=signal
    )


def _signal(
    derivation: Derivation, epsilon: Privacy | None, batch: int | None, public: Path | None
) -> Measured | None:
    """Measure gradients beside the noise of the training asked for, else of multiplier 1 and batches of 512."""
    from lipcompile.cli.shared.signals import signals
    from lipcompile.reports.rows import Measured

    noise = (1.0 if epsilon is None else epsilon.noise_multiplier, batch or 512)
    found = signals(derivation, find(), *noise, public)
    return None if found is None else Measured(found, *noise)
