"""`lipcompile verify`: the verdict of `lipcompile_verify`, which shares no code with the compiler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lipcompile.cli.shared.arguments import PATH, format_option, path_option
from lipcompile.cli.shared.inputs import MODULE
from lipcompile.cli.shared.output import complain, print_json
from lipcompile.diagnostics import Diagnostic, Severity, input_error
from lipcompile.numbers.rounding import finite, upward

if TYPE_CHECKING:
    from lipcompile_verify import Problem, Verdict

SCHEMA, CERTIFICATE = "lipcompile.verify/1", "lipcompile.certificate/1"
_HELP = "compile the model again; if that changes nothing, the compiler is wrong: please report it"


@dataclass(frozen=True, slots=True)
class Finding:
    """What came out: of the certificate, and of each file that should be its model."""

    source: Path
    document: Mapping[str, Any]
    verdict: Verdict
    foreign: Mapping[Path, Sequence[Problem]]

    @property
    def ok(self) -> bool:
        """Whether the certificate verifies, and every file is its model."""
        return self.verdict.ok and not any(self.foreign.values())


@click.command(short_help="Check a CERTIFICATE with a second program, independent of the compiler.")
@click.argument("certificate", type=PATH)
@path_option("--module", "FILE.py", "Also check that this is the certificate's module.")
@path_option("--model", "FILE.onnx", "Also check that this is the certificate's model.")
@format_option("Format of the output on stdout.")
def verify(certificate: Path, module: Path | None, model: Path | None, form: str) -> int:
    """Derive every bound of CERTIFICATE anew, from its graph alone, and compare.

    CERTIFICATE is a file of `check --certificate`, or one that carries a certificate: an emitted module, which is
    read and not run, the folder of `train` with one, or an .onnx file. Such a file is checked to be the model of
    its certificate, too. The exit code is 0 if all holds, 1 if a step fails, 2 if there is no certificate.

    \b
    Examples:
      lipcompile verify model.json
      lipcompile verify model.json --module model.py
      lipcompile verify run
    """
    certificate = certificate / MODULE if certificate.is_dir() else certificate
    own = certificate if certificate.suffix in (".py", ".onnx") else None
    found = examine(certificate, [path for path in (own, module, model) if path is not None])
    complain(diagnostics(found))
    if form == "json":
        print_json(_report(found))
    else:
        click.echo("\n".join(_lines(found)))
    return 0 if found.ok else 1


def examine(source: Path, files: Sequence[Path]) -> Finding:
    """Check a certificate, and files against it; raises InputError (LIP001, LIP502) if there is none to check."""
    from lipcompile_verify import verify as verdict_on
    from lipcompile_verify.document import MalformedError
    from lipcompile_verify.files import check_model, check_module, read_certificate

    for path in (source, *files):
        if not path.is_file():
            raise input_error("LIP001", f"there is no file `{path}`", "check the path")
    try:
        document = read_certificate(source)
        if document.get("schema") != CERTIFICATE:
            raise _no_certificate(source, f"its schema is not {CERTIFICATE}")
        verdict = verdict_on(document)
        # What a file is compared with has to be understood first.
        compared = files if verdict.ok else ()
        checks = {path: check_model if path.suffix == ".onnx" else check_module for path in compared}
        return Finding(source, document, verdict, {path: check(path, document) for path, check in checks.items()})
    except MalformedError as error:
        raise _no_certificate(source, str(error)) from None


def _no_certificate(path: Path, reason: str) -> Exception:
    return input_error(
        "LIP502", f"`{path}` has no certificate: {reason}", "write one: check MODEL --certificate FILE"
    )


def diagnostics(found: Finding) -> list[Diagnostic]:
    """Return what is wrong, and what is looser than it need be."""
    own = found.document.get("user_ops")
    if own and not found.verdict.ok:
        message = f"these ops are not checked, because users registered their rules: {', '.join(map(str, own))}"
        return [Diagnostic("LIP501", f"the certificate does not verify: {message}", _OWN)]
    failed = [
        Diagnostic("LIP501", f"the certificate does not verify: {problem}", _HELP)
        for problem in found.verdict.problems
    ]
    foreign = [
        Diagnostic("LIP503", f"`{path}` is not the model of the certificate: {problem.reason}", _OTHER)
        for path, problems in found.foreign.items()
        for problem in problems
    ]
    loose = [Diagnostic("LIP504", claim, severity=Severity.NOTE) for claim in found.verdict.loose]
    return [*failed, *foreign, *loose]


_OWN = "leave these ops out, or prove their rules and attack them: lipcompile audit MODEL"
_OTHER = "take the file and the certificate of one compilation, both as they were written"


def _report(found: Finding) -> dict[str, Any]:
    verdict = found.verdict
    return {
        "schema": SCHEMA,
        "certificate": str(found.source),
        "ok": found.ok,
        "graph_sha256": found.document.get("graph_sha256"),
        "problems": [asdict(problem) for problem in verdict.problems],
        "files": [
            {"file": str(path), "ok": not problems, "problems": [asdict(problem) for problem in problems]}
            for path, problems in found.foreign.items()
        ],
        "loose": list(verdict.loose),
        "gradient": {name: finite(bound) for name, bound in verdict.gradient.items()},
        "totals": {name: finite(bound) for name, bound in verdict.totals.items()},
        "counts": dict(verdict.counts),
    }


def _lines(found: Finding) -> list[str]:
    """Return the verdict for people: bounds as the verifier derived them, rounded up."""
    verdict = found.verdict
    said = "verified" if verdict.ok else "does not verify"
    counted = ", ".join(f"{count} {what}" for what, count in verdict.counts.items())
    lines = [f"{found.source}: {said}" + (f" ({counted})" if counted else "")]
    lines += [
        f"{path}: {'not its model' if problems else 'its model'}" for path, problems in found.foreign.items()
    ]
    bounds = {f"gradient of {name}": bound for name, bound in verdict.gradient.items()} | {
        f"{_TOTALS.get(name, name)}": bound for name, bound in verdict.totals.items()
    }
    width = max(map(len, bounds), default=0)
    shown = {
        name: _UNBOUNDED if finite(bound) is None else f"<= {upward(bound)}" for name, bound in bounds.items()
    }
    return [*lines, *(f"  {name.ljust(width)}  {bound}" for name, bound in shown.items())]


_UNBOUNDED = "no finite bound, as where nothing constrains a weight"


_TOTALS = {"gradient": "gradient of one example", "lipschitz": "Lipschitz constant of the output"}
