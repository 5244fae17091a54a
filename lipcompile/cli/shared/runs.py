"""A folder of `train`, read for a report: the model that it trained, and what its ledger charges."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lipcompile.cli.shared.inputs import LEDGER, MODULE, saved_in
from lipcompile.diagnostics import input_error

if TYPE_CHECKING:
    from lipcompile.cli.shared.privacy import Question
    from lipcompile.frontends.options import Loaded


def load(folder: Path) -> Loaded:
    """Return the model of a run, by the certificate in its module, which is read and not run.

    Raises InputError (LIP001, LIP520): it is no folder of `train` with a network, or its certificate is damaged.
    """
    from lipcompile_verify.document import MalformedError
    from lipcompile_verify.files import read_certificate

    from lipcompile.certificates.read import graph_of
    from lipcompile.core.derivation import Source
    from lipcompile.frontends.options import Loaded

    path = folder / MODULE
    if not path.is_file():
        help_line = "give the folder that `lipcompile train --output DIR` wrote, or a model"
        if (folder / "model.npz").is_file():
            help_line = f"the model of a table has the page {folder / 'report.html'}"
        raise input_error("LIP001", f"the folder `{folder}` has no {MODULE}", help_line)
    try:
        document = read_certificate(path)
        source = document["source"]
        return Loaded(
            Source(source["name"], str(path), source["format"], source["sha256"]), graph_of(document), ()
        )
    except OSError as error:
        raise input_error("LIP001", f"`{path}` cannot be read: {error.strerror or error}") from None
    except (MalformedError, LookupError, TypeError) as error:
        raise input_error("LIP520", f"`{path}` has no certificate: {error}", "emit the module again") from None


def spent(folder: Path, given: Mapping[str, Any]) -> Question | None:
    """Return the question for the ε of all that a run's ledger charges; None, said on stderr, if there is none.

    given: options of privacy, none of them given but for `delta`. Raises InputError (LIP401, LIP405, LIP513).
    """
    question, reason = _asked(folder, given)
    if question is None:
        click.echo(f"note: the report has no curve of ε: {reason}; see lipcompile ledger {folder}", err=True)
    return question


def _asked(folder: Path, given: Mapping[str, Any]) -> tuple[Question | None, str]:
    """Return the question, or None and why there is none."""
    from lipcompile.cli.ledger import read_record
    from lipcompile.cli.shared.privacy import ask
    from lipcompile.exporting import delta_of

    saved = saved_in(folder)  # before the ledger, which is ahead of it in a running training
    record = read_record(folder / LEDGER)
    settings = {} if saved is None else saved.notes.get("settings", {})
    if record.seeded:
        return None, "a seed was fixed, so the noise is predictable"
    if not settings or not record.charges:
        return None, "no checkpoint of `train` is there" if record.charges else "no step was taken"
    plan = {name: settings[name] for name in ("batch_size", "sampling", "correlation", "neighbours")} | {
        "delta": delta_of(given["delta"], record),
        "dataset": record.dataset_size,
        "steps": record.total_steps,
        "noise_multiplier": saved.notes["noise_multiplier"],
    }
    question = ask(given, plan)
    charged = [(question.drawing.release(plan["noise_multiplier"]), question.charges)]
    return (question, "") if charged == record.runs else (None, "rounds were broken off, or charged in other ways")
