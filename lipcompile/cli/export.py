"""`lipcompile export`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from lipcompile_privacy.accounting import Accountant
from lipcompile_privacy.ledger import LedgerRecord

from lipcompile.cli.shared.arguments import module_argument, output_option, path_option, weights_option
from lipcompile.cli.shared.inputs import LEDGER, Trained, with_weights
from lipcompile.cli.shared.output import complain
from lipcompile.core.backend import find
from lipcompile.diagnostics import Diagnostic, input_error
from lipcompile.numbers.rounding import upward

if TYPE_CHECKING:
    from lipcompile.exporting import Export

_OTHER = "the checkpoint was saved with another ledger, or lines are missing at the end of this one"
_OF_THE_COMPILER = "this is a bug of lipcompile, or of onnxruntime: please report it, with the module"


@click.command(short_help="Write a trained MODULE as an ONNX file for deployment.")
@module_argument
@weights_option
@path_option("--ledger", "FILE", "Ledger of the training; the default is ledger.jsonl in the folder.")
@click.option(
    "--delta", type=float, help="δ to state ε at; by default that of the training, see `lipcompile ledger`."
)
@click.option(
    "--accountant",
    type=click.Choice(["pld", "rdp"]),
    help="Accountant to use; by default the one with the smaller ε.",
)
@output_option("FILE.onnx", "File to write; it is kept only if onnxruntime gives the outputs of MODULE.")
def export(
    module: Path,
    weights: Path | None,
    ledger: Path | None,
    delta: float | None,
    accountant: Accountant | None,
    output: Path,
) -> int:
    """Write MODULE, with trained weights, as a file that runs in onnxruntime.

    MODULE is the Python file that `compile` or `train` wrote, or the folder of `train`; it is run. The file
    clips its input as the module does. Its metadata hold the certificate of the model, its Lipschitz constants,
    and the (ε, δ) that the ledger says was spent. It is compared with the module, on inputs inside of the declared
    ball and outside, and there is none if the two differ by more than rounding: then the exit code is 1.

    \b
    Examples:
      lipcompile export run -o model.onnx
      lipcompile export run/model.py --weights run/checkpoint.pt --delta 1e-5 --ledger run/ledger.jsonl -o m.onnx
    """
    from lipcompile.exporting import export_onnx

    _check_output(output)
    subject = with_weights(module, weights, find())
    ledger = module / LEDGER if ledger is None and module.is_dir() else ledger
    record = None if ledger is None else _record(ledger, subject)
    try:
        found = export_onnx(subject.module, output, ledger=record, delta=delta, accountant=accountant)
    except (ValueError, RuntimeError) as error:
        raise input_error("LIP521", f"`{subject.source}` cannot be exported: {error}") from None
    return _told(found, output, tied=subject.ledger_head is not None)


def _check_output(output: Path) -> None:
    if output.suffix != ".onnx":
        raise input_error("LIP005", f"-o: `{output}` does not end in .onnx", "name the file so")
    if not output.parent.is_dir():
        help_line = f"make it: mkdir -p {output.parent}"
        raise input_error("LIP005", f"there is no folder `{output.parent}` to write in", help_line)


def _record(ledger: Path, subject: Trained) -> LedgerRecord:
    """Return what a ledger says, if it is that of the weights; raises InputError (LIP405)."""
    from lipcompile.cli.ledger import read_record

    record = read_record(ledger)
    if subject.ledger_head is not None and subject.ledger_head not in record.hashes:
        raise input_error("LIP405", f"`{ledger}` is not the ledger of `{subject.weights}`: {_OTHER}")
    return record


def _told(found: Export, output: Path, *, tied: bool) -> int:
    if not found.ok:
        complain([refutation(found.agreement)])
        return 1
    for line in _summary(found, tied=tied):
        click.echo(line)
    measured = f"up to {_measured(found.agreement)} on {found.agreement.examples} inputs"
    click.echo(f"wrote {output}: onnxruntime gives the outputs of the module, {measured}", err=True)
    return 0


def refutation(agreement: Any) -> Diagnostic:
    """Return what is said of a file that computes something else than its module."""
    message = f"onnxruntime computes something else than the module: they differ by up to {_measured(agreement)}"
    return Diagnostic("LIP522", message, _OF_THE_COMPILER)


def _measured(agreement: Any) -> str:
    return f"{agreement.difference:.1e} of outputs up to {agreement.output:.2g}"


def _summary(found: Export, *, tied: bool) -> list[str]:
    from lipcompile.reports.formulas import of_any_weights

    lines = ["weights certified to lie in their sets"] if found.certified else []
    if found.lipschitz is not None:
        lines.append(
            f"Lipschitz constant of the output {upward(found.lipschitz.of_weights)}; "
            f"{of_any_weights(found.lipschitz.declared)}"
        )
    if found.spent is not None:
        spent = found.spent
        lines.append(
            f"ε = {upward(spent.epsilon, 4)} at δ = {spent.delta:g}, neighbours {spent.relation}, "
            f"by {spent.accountant}"
        )
        if not tied:
            lines.append("note: a state dict knows of no ledger: that this one is its own is not checked")
    return [*lines, *(f"note: {note}" for note in found.notes)]
