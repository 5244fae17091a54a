"""`lipcompile demo`."""

from __future__ import annotations

import sys
from importlib.resources import as_file, files
from itertools import count
from pathlib import Path

import click

from lipcompile.cli.shared.arguments import path_option
from lipcompile.cli.shared.inputs import MODULE
from lipcompile.cli.shared.output import source_text
from lipcompile.cli.shared.settings import DEFAULTS, merged, planned
from lipcompile.cli.shared.training import TrainingRun, execute, print_result
from lipcompile.core.backend import find
from lipcompile.reports.console import show

FOLDER = "lipcompile-demo"


@click.command(short_help="Train a small network on handwritten digits.")
@path_option("--output", "DIR", f"Folder for the results; ./{FOLDER}, or the next free number, by default.")
def demo(output: Path | None) -> int:
    """Check, compile and privately train a small network on hand-written digits: a minute, ε = 3.

    \b
    Example:
      lipcompile demo
    """
    with as_file(files("lipcompile.data")) as data:
        # The first folder of the demo's name, and a number from the second on, that does not exist.
        names = (Path(FOLDER if number == 1 else f"{FOLDER}-{number}") for number in count(1))
        free = next(name for name in names if not name.exists())
        return _demo(data / "digits.lip", data / "digits.npz", output or free)


def _demo(model: Path, data: Path, output: Path) -> int:
    from lipcompile import pipeline
    from lipcompile.frontends.options import ModelOptions
    from lipcompile.reports.terminal import report

    options = ModelOptions()
    _stage(1, f"check: lipcompile check {model}")
    loaded = pipeline.load(str(model), options)
    derivation = pipeline.derive(loaded, options)
    show(sys.stdout, *report(derivation, source_text))
    plan = planned(loaded)
    names = dict.fromkeys({*DEFAULTS, *plan} - {"dataset", "sampling"})
    run = TrainingRun(derivation, find().emit(derivation), data, merged(names, plan, DEFAULTS), output)
    _stage(2, f"compile: lipcompile compile {model} -o {output / MODULE}")
    _stage(3, f"train: lipcompile train {model} --data {data} --output {output}")
    result = execute(run, find())
    _stage(4, "done")
    print_result(result, run)
    return 0


def _stage(number: int, what: str) -> None:
    click.secho(f"\n[{number}/4] {what}\n", bold=sys.stdout.isatty())
