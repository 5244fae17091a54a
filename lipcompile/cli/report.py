"""`lipcompile report`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lipcompile.cli.arguments import model_options, output_option
from lipcompile.cli.output import complain, refuse_source, serious, write_text
from lipcompile.cli.privacy import privacy_options

if TYPE_CHECKING:
    from lipcompile.derivation import Analysis, Derivation
    from lipcompile.frontends.options import Loaded, ModelOptions
    from lipcompile.reports.document import Document

# The modules of `lipcompile.reports` that write a document, by the suffix of the file.
_RENDERINGS = {".html": "html", ".md": "markdown", ".tex": "latex", ".json": "json_report"}


@click.command(short_help="Write the full derivation of MODEL, for people.")
@model_options()
@output_option("FILE.{html,md,tex,json}", "File to write; its suffix says in which form.", required=False)
@click.option("--layer", metavar="NAME", help="Print the closed forms of a layer, a parameter or a block.")
@privacy_options
def report(
    model: str, options: ModelOptions, output: Path | None, layer: str | None, given: Mapping[str, Any]
) -> int:
    """Write all that is derived of MODEL: formulas, bounds, depth, what to change, ε against steps.

    A model that is rejected has its diagnostics in the report. The curves of ε need two of ε, noise multiplier and
    steps; the `train` block of MODEL supplies what is not given.

    \b
    Examples:
      lipcompile report model.lip -o report.html
      lipcompile report model.lip --layer dense.weight
    """
    from lipcompile import pipeline

    _check(model, output, layer)
    loaded = pipeline.load(model, options)
    derivation = pipeline.derive(loaded, options)
    complain(serious(derivation.diagnostics))
    if layer is not None and derivation.analysis is not None:
        _print_closed_forms(derivation.analysis, layer)
    if output is not None:
        write_text(output, _rendered(_document(derivation, loaded, given), output))
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


def _print_closed_forms(analysis: Analysis, name: str) -> None:
    from lipcompile.diagnostics import input_error
    from lipcompile.ops.schema import suggest
    from lipcompile.reports.closed_forms import closed_forms, subjects
    from lipcompile.reports.console import show

    known = subjects(analysis)
    if name not in known:
        mend = suggest(name, list(known)) or "`lipcompile check -v` lists them"
        raise input_error("LIP005", f"--layer: there is no layer, parameter or block `{name}`", mend)
    show(sys.stdout, *closed_forms(name, known[name]))


def _document(derivation: Derivation, loaded: Loaded, given: Mapping[str, Any]) -> Document:
    from lipcompile.backend import find
    from lipcompile.cli.curves import asked, privacy
    from lipcompile.cli.progress import CountWatch
    from lipcompile.cli.settings import planned
    from lipcompile.passes.depth import curves
    from lipcompile.passes.what_if import changes
    from lipcompile.reports.document import document

    accounting = find().accounting
    question = asked(accounting, given, planned(loaded))
    if derivation.analysis is None:
        return document(derivation)
    graph, depth = derivation.analysis.graph, derivation.analysis.depth
    analysis = replace(derivation.analysis, depth=curves(graph, depth))
    with CountWatch("changes") as watch:
        suggestions = changes(graph, watch)
    epsilon = None if question is None else privacy(accounting, question)
    return document(replace(derivation, analysis=analysis), suggestions=suggestions, privacy=epsilon)


def _rendered(document: Document, output: Path) -> str:
    text: str = import_module(f"lipcompile.reports.{_RENDERINGS[output.suffix.lower()]}").render(document)
    return text
