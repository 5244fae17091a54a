"""`lipcompile check`."""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lipcompile.cli.shared.arguments import (
    Command,
    file_option,
    model_options,
    public_option,
    vacuous_option,
    verify_option,
)
from lipcompile.cli.shared.output import complain, print_json, refuse_source, source_text, write_text
from lipcompile.cli.shared.settings import planned_training
from lipcompile.core.backend import find
from lipcompile.diagnostics import Diagnostic, InputError, input_error
from lipcompile.reports.console import show

if TYPE_CHECKING:
    from lipcompile.core.derivation import Derivation
    from lipcompile.frontends.options import ModelOptions
    from lipcompile.reports.sarif import Checked

ACCEPTED, REJECTED, UNUSABLE = 0, 1, 2

Derived = Callable[[str], "Derivation"]


def _machine_readable(command: Command) -> Command:
    """Let what keeps the command from its models, such as a wrong option, be told in the format asked for."""

    @functools.wraps(command)
    def answered(**given: Any) -> int:
        try:
            return command(**given)
        except InputError as error:
            if given["form"] == "json":
                from lipcompile.reports.json_report import unreadable

                print_json(unreadable(error.diagnostics))
            if given["form"] == "sarif":
                _print_sarif([_checked(given["models"][0], error.diagnostics, readable=False)], UNUSABLE)
            raise

    return answered


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


@click.command(short_help="Verify MODEL and derive its gradient bounds.")
@_uncollected()
@_machine_readable
@model_options(several=True)
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "sarif"]),
    default="text",
    help="Format of the output on stdout; sarif is for code scanning.",
)
@file_option(
    "--certificate",
    metavar="FILE.json",
    text="Also write the derivation as a certificate, for `lipcompile verify`.",
)
@click.option("-v", "--verbose", is_flag=True, help="Also print every layer's bounds, and long formulas.")
@click.option(
    "--signal", is_flag=True, help="Also measure gradients of random examples, and show noise against signal."
)
@public_option
@vacuous_option
@verify_option(default=False)
def check(
    models: tuple[str, ...],
    options: ModelOptions,
    form: str,
    certificate: Path | None,
    verbose: bool,
    signal: bool,
    public_data: Path | None,
    allow_vacuous: bool,
    verify_import: bool,
) -> int:
    """Verify that MODEL can be trained privately, and derive its gradient bounds.

    MODEL is a .lip file (FILE.lip::name picks one of several models), an .onnx file, or package.module:factory, a
    torch module with --input-shape. The exit code is 0 if all requirements hold, 1 if the model is rejected, 2 if
    it cannot be read; of several models, that of the worst.

    \b
    Examples:
      lipcompile check model.lip
      lipcompile check model.onnx --input-norm 1.0 --loss cross_entropy --format json
      lipcompile check model.lip model.onnx --format sarif
      lipcompile check model.lip --certificate model.json
      lipcompile check model.lip --signal
      lipcompile check model.lip --signal --public-data public.npz
    """
    if certificate is not None and len(models) > 1:
        message = f"--certificate is of one model, not {len(models)}"
        raise input_error("LIP005", message, "run the command once for each")
    wanted = CheckOptions(options, verify_import, certificate, allow_vacuous, signal, public_data)
    derived = partial(_derived, wanted=wanted)
    if form == "json":
        return _json(models, derived)
    if form == "sarif":
        return _sarif(models, derived)
    return _text(models, derived, wanted, verbose=verbose)


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """What is wanted of every model."""

    options: ModelOptions
    verify: bool
    certificate: Path | None
    allow_vacuous: bool
    signal: bool
    public: Path | None


def _derived(model: str, wanted: CheckOptions) -> Derivation:
    """Check one model; raises InputError, also for a file that the system does not let us read."""
    from lipcompile import pipeline
    from lipcompile.analysis.usefulness import judged
    from lipcompile.cli.shared.verdicts import measured, verified

    certificate = wanted.certificate
    try:
        loaded = pipeline.load(model, wanted.options)
        derivation = pipeline.derive(loaded, wanted.options)
        if wanted.verify:
            derivation = verified(loaded, derivation, find())
        derivation = judged(derivation, allow_vacuous=wanted.allow_vacuous)
        if wanted.signal or derivation.source.format == "torch":  # which has loaded the framework
            allowed = wanted.allow_vacuous
            derivation = measured(derivation, find(), allow_vacuous=allowed, public=wanted.public)
    except OSError as error:
        raise input_error("LIP001", f"`{model}` cannot be read: {error.strerror}", "check the path") from None
    if certificate is not None and derivation.ok:
        from lipcompile import certificates

        refuse_source(loaded.source.path, certificate)
        document = certificates.certificate(derivation, planned_training(loaded))  # raises if a number is open
        write_text(certificate, certificates.encode(document).decode())
    return derivation


def _code(derivation: Derivation) -> int:
    return ACCEPTED if derivation.ok else REJECTED


def _json(models: tuple[str, ...], derived: Derived) -> int:
    from lipcompile.reports.json_report import report

    if len(models) > 1:
        message = f"--format json reports one model, not {len(models)}"
        raise input_error("LIP005", message, "run the command once for each, or use --format sarif")
    derivation = derived(models[0])
    print_json(report(derivation))
    return _code(derivation)


def _text(models: tuple[str, ...], derived: Derived, wanted: CheckOptions, *, verbose: bool) -> int:
    """Print a report for each model, an empty line between two; what cannot be read does not stop the others."""
    from lipcompile.reports.terminal import report

    worst = ACCEPTED
    for index, model in enumerate(models):
        try:
            derivation = derived(model)
        except InputError as error:
            complain(error.diagnostics)
            worst = UNUSABLE
            continue
        if index:
            sys.stdout.write("\n")
        show(sys.stdout, *report(derivation, source_text, verbose=verbose))
        if wanted.signal and derivation.analysis is not None:
            _show_signals(derivation, wanted.public)
        _tell_training(model, wanted.options)
        worst = max(worst, _code(derivation))
    return worst


def _tell_training(model: str, options: ModelOptions) -> None:
    """Say on stderr if commands that train use other bounds than those that were checked."""
    from lipcompile.pipeline import for_training

    if for_training(model, options) != options:
        click.echo(
            "note: these are bounds by theorem; compile, train and audit of this module have --bounds auto, which "
            "clips where no theorem gives a number: check it with --bounds auto",
            err=True,
        )


def _show_signals(derivation: Derivation, public: Path | None) -> None:
    from lipcompile.cli.shared.signals import shown, signals

    found = signals(derivation, find(), public=public)
    if found is not None:
        sys.stdout.write("\n")
        show(sys.stdout, *shown(found, public))


def _sarif(models: tuple[str, ...], derived: Derived) -> int:
    """Print one log of all models; what cannot be read is a result in it, and told on stderr."""
    found, worst = [], ACCEPTED
    for model in models:
        try:
            derivation = derived(model)
        except InputError as error:
            complain(error.diagnostics)
            found.append(_checked(model, error.diagnostics, readable=False))
            worst = UNUSABLE
            continue
        found.append(_checked(model, derivation.diagnostics))
        worst = max(worst, _code(derivation))
    _print_sarif(found, worst)
    return worst


def _checked(model: str, diagnostics: tuple[Diagnostic, ...], *, readable: bool = True) -> Checked:
    from lipcompile.reports.sarif import Checked

    return Checked(_file(model), diagnostics, readable)


def _file(model: str) -> str:
    """Return the file of a model; that of `package.module:factory` is the file of the module, if it is here."""
    path, home = model.partition("::")[0], model.partition(":")[0]
    module = Path(*home.split(".")).with_suffix(".py")
    return str(module) if home != path and module.is_file() else path


def _print_sarif(checked: list[Checked], code: int) -> None:
    from lipcompile.reports.sarif import log

    print_json(log(checked, code, source_text))
