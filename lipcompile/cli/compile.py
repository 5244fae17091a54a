"""`lipcompile compile`."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lipcompile.cli.shared.arguments import model_options, output_option, vacuous_option, verify_option
from lipcompile.cli.shared.output import complain, refuse_source, serious, write_text
from lipcompile.cli.shared.settings import noise_strategy, planned, planned_training
from lipcompile.core.backend import find
from lipcompile.numbers.rounding import upward

if TYPE_CHECKING:
    from lipcompile.core.derivation import Derivation
    from lipcompile.frontends.options import ModelOptions


@click.command("compile", short_help="Emit a training module for MODEL.")
@model_options()
@output_option("FILE.py", "File to write; it is replaced as a whole, or left alone.")
@click.option("--backend", default="torch", show_default=True, help="Framework of the emitted program.")
@click.option(
    "--follow-weights",
    is_flag=True,
    help="Let the bounds follow the norms of the current weights: less noise when these shrink.",
)
@vacuous_option
@verify_option(default=True)
def compile_(
    model: str,
    options: ModelOptions,
    output: Path,
    backend: str,
    follow_weights: bool,
    allow_vacuous: bool,
    verify_import: bool,
) -> int:
    """Check MODEL, and emit a module that trains under the derived bounds.

    The file needs the runtime package lipcompile_torch, and no compiler. An imported model is first compared with
    its original on random inputs; no file is written if the two differ.

    \b
    Example:
      lipcompile compile model.lip -o model.py
    """
    from lipcompile import pipeline
    from lipcompile.analysis.usefulness import judged
    from lipcompile.cli.shared.verdicts import agrees, measured

    emitter = find(backend)
    refuse_source(model, output)
    options = pipeline.for_training(model, options)
    loaded = pipeline.load(model, options)
    derivation = judged(pipeline.derive(loaded, options), allow_vacuous=allow_vacuous)
    if backend == "torch" and find_spec("torch") is not None:  # without which programs are emitted, too
        derivation = measured(derivation, emitter, allow_vacuous=allow_vacuous)
    complain(serious(derivation.diagnostics))
    if not derivation.ok:
        return 1
    plan = planned(loaded)
    text = emitter.emit(derivation, follow_weights, noise_strategy(plan), planned_training(loaded))
    if verify_import and not agrees(loaded, derivation, text if backend == "torch" else None):
        return 1
    write_text(output, text)
    click.echo(_summary(derivation, output), err=True)
    return 0


def _summary(derivation: Derivation, output: Path) -> str:
    assert derivation.analysis is not None
    assert derivation.analysis.total.value is not None
    trained = len(derivation.analysis.parameters)
    bound = upward(derivation.analysis.total.value)
    return f"wrote {output}: {trained} trained parameters, gradient of one example at most {bound}"
