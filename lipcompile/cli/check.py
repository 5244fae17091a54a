"""`lipcompile check`."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
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
    with _uncollected():
        return _check(model, options, form, verbose=verbose)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Formulas hold one another without cycles: searched again and again, they take a fifth of the time more."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _check(model: str, options: ModelOptions, form: str, *, verbose: bool) -> int:
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
