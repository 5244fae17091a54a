"""`lipcompile compile`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from lipcompile.cli.arguments import model_options
from lipcompile.cli.output import complain, refuse_source, serious, write_text

if TYPE_CHECKING:
    from lipcompile.derivation import Derivation
    from lipcompile.frontends.options import ModelOptions


@click.command("compile", short_help="Emit a training module for MODEL.")
@model_options()
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    metavar="FILE.py",
    help="File to write; it is replaced as a whole, or left alone.",
)
@click.option("--backend", default="torch", show_default=True, help="What to emit a program for.")
@click.option(
    "--follow-weights",
    is_flag=True,
    help="Let the bounds follow the norms of the current weights: less noise when these shrink.",
)
def compile_(model: str, options: ModelOptions, output: Path, backend: str, follow_weights: bool) -> int:
    """Check MODEL, and emit a module that trains under the derived bounds.

    The file needs the runtime package lipcompile_torch, and no compiler.

    \b
    Example:
      lipcompile compile model.lip -o model.py
    """
    from lipcompile import pipeline
    from lipcompile.backend import find

    emitter = find(backend)
    refuse_source(model, output)
    derivation = pipeline.check(model, options)
    complain(serious(derivation.diagnostics))
    if not derivation.ok:
        return 1
    write_text(output, emitter.emit(derivation, follow_weights))
    click.echo(_summary(derivation, output), err=True)
    return 0


def _summary(derivation: Derivation, output: Path) -> str:
    from lipcompile.reports.formulas import round_up

    assert derivation.analysis is not None
    assert derivation.analysis.total.value is not None
    trained = len(derivation.analysis.parameters)
    bound = round_up(derivation.analysis.total.value)
    return f"wrote {output}: {trained} trained parameters, gradient of one example at most {bound}"
