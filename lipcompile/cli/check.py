"""`lipcompile check`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from lipcompile.cli.arguments import model_options
from lipcompile.cli.output import print_json, source_text

if TYPE_CHECKING:
    from lipcompile.frontends.options import ModelOptions


@click.command(short_help="Verify MODEL and derive its gradient bounds.")
@model_options()
@click.option(
    "--format", "form", type=click.Choice(["text", "json"]), default="text", help="What to print on stdout."
)
@click.option("-v", "--verbose", is_flag=True, help="Also print every layer's bounds, and long formulas.")
def check(model: str, options: ModelOptions, form: str, verbose: bool) -> int:
    """Verify that MODEL can be trained without clipping, and derive its gradient bounds.

    MODEL is a .lip file (FILE.lip::name picks one of several models) or an .onnx file. The exit code is 0 if all
    requirements hold, 1 if the model is rejected, 2 if it cannot be read.

    \b
    Examples:
      lipcompile check model.lip
      lipcompile check model.onnx --input-norm 1.0 --loss cross_entropy --format json
    """
    from lipcompile import pipeline

    derivation = pipeline.check(model, options)
    if form == "json":
        from lipcompile.reports.json_report import report as json_report

        print_json(json_report(derivation))
    else:
        from lipcompile.reports.console import show
        from lipcompile.reports.terminal import report

        show(sys.stdout, *report(derivation, source_text, verbose=verbose))
    return 0 if derivation.ok else 1
