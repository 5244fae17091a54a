"""`lipcompile show`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from lipcompile.cli.shared.arguments import model_options, output_option
from lipcompile.cli.shared.output import complain, refuse_source, serious

if TYPE_CHECKING:
    from lipcompile.frontends.options import ModelOptions


@click.command(short_help="Draw MODEL with its bounds, for a slide.")
@model_options()
@output_option("FILE.{svg,png}", "Picture to write; NAME.svg of the model by default.", required=False)
def show(model: str, options: ModelOptions, output: Path | None) -> int:
    """Draw the graph of MODEL, with the norm and the cotangent along its edges and the bound of each layer.

    Where a depth is open, curves show the bound over it. The picture is as wide and as high as a slide; of a large
    model it shows the first and the last layers. A model that is rejected has no picture.

    \b
    Examples:
      lipcompile show model.lip
      lipcompile show model.lip -o model.png
    """
    from lipcompile import pipeline
    from lipcompile.reports.picture import SUFFIXES, save

    if output is not None and output.suffix.lower() not in SUFFIXES:
        raise click.UsageError(f"-o: `{output}` ends with none of {', '.join(SUFFIXES)}")
    derivation = pipeline.check(model, options)
    complain(serious(derivation.diagnostics))
    if derivation.analysis is None:
        return 1
    path = output or Path(f"{derivation.source.name}.svg")
    refuse_source(model, path)
    save(derivation.analysis, path)
    click.echo(f"wrote {path}", err=True)
    return 0
