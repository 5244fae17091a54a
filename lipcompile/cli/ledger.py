"""`lipcompile ledger`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_args

import click
from lipcompile_privacy.accounting import Accountant, Release
from lipcompile_privacy.errors import BudgetError, LedgerError
from lipcompile_privacy.ledger import LedgerRecord, read_ledger
from rich.console import RenderableType

from lipcompile.cli.shared.arguments import PATH, format_option
from lipcompile.cli.shared.inputs import CHECKPOINT, LEDGER, saved_in
from lipcompile.cli.shared.output import complain, print_found
from lipcompile.diagnostics import InputError, Severity, input_error
from lipcompile.numbers.rounding import upward
from lipcompile.reports.console import BAD, CAUTION, printable, styled, table

SCHEMA = "lipcompile.ledger-report/1"
_ACCOUNTANTS: tuple[Accountant, ...] = get_args(Accountant)


# What one accountant says was spent, `epsilon`, or a `note` that says why it cannot say.
_Spent = Mapping[str, Any]


@click.command(short_help="Print the privacy budget that a training has spent.")
@click.argument("file", type=PATH)
@click.option("--delta", type=float, help="δ to give ε at; by default that of the training.")
@click.option("--accountant", type=click.Choice(_ACCOUNTANTS), help="Accountant to use; both by default.")
@format_option()
def ledger(file: Path, delta: float | None, accountant: Accountant | None, form: str) -> int:
    """Print the budget spent so far by the ledger FILE, or by that in the folder FILE. The ledger is not changed.

    The output lists the charges, and ε by each accountant. The command also reads a running training. δ is a
    tenth of one over the number of examples if the ledger does not know it. The checkpoint of a folder is looked
    up in its ledger. The exit code is 1 if no accountant has an ε for what was charged, 2 if the ledger cannot be
    trusted.

    \b
    Examples:
      lipcompile ledger run/ledger.jsonl --delta 1e-5
      lipcompile ledger run --format json
    """
    from lipcompile.exporting import delta_of

    path = file / LEDGER if file.is_dir() else file
    saved = _saved(file) if file.is_dir() else None  # first: the ledger of a running training is ahead of it
    record = read_record(path)
    if saved is not None and saved.ledger_head not in record.hashes:
        message = f"`{file / CHECKPOINT}`, of {saved.steps} steps, was saved at a line that `{path}` lacks"
        help_line = "lines were lost, or it is the ledger of another run: find the one of these weights"
        raise input_error("LIP405", message, help_line)
    chosen = delta_of(delta, record)
    asked = _ACCOUNTANTS if accountant is None else (accountant,)
    spent: dict[str, _Spent] = {name: _spent(record, chosen, name) for name in asked}
    steps = None if saved is None else saved.steps
    print_found(form, _report(path, record, chosen, spent, steps), _text(path, record, chosen, spent, steps))
    return 0 if any(found["epsilon"] is not None for found in spent.values()) else 1


def _saved(folder: Path) -> Any:
    """Return the checkpoint of a folder; None if there is none, if torch is missing, or if it is damaged."""
    if find_spec("torch") is None:
        return None
    try:
        return saved_in(folder)
    except InputError as error:
        complain([replace(one, severity=Severity.WARNING) for one in error.diagnostics])
        return None


def read_record(path: Path) -> LedgerRecord:
    """Return what the ledger says; raises InputError (LIP405)."""
    if path.exists() and not path.is_file():  # a pipe or a device may have no end
        raise _unreadable(path, "it is no file")
    try:
        return read_ledger(path)
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error)) from None
    except LedgerError as error:
        raise input_error("LIP405", str(error)) from None


def _unreadable(path: Path, reason: str) -> InputError:
    help_line = "give the ledger.jsonl that `train` or the engine wrote, or its folder"
    return input_error("LIP405", f"`{path}` cannot be read as a ledger: {reason}", help_line)


def _spent(record: LedgerRecord, delta: float, accountant: Accountant) -> _Spent:
    try:
        epsilon = record.epsilon(delta, accountant)
    except BudgetError as error:
        return {"epsilon": None, "note": str(error)}
    if not math.isfinite(epsilon):
        return {"epsilon": None, "note": "no finite epsilon: there was too little noise for this delta"}
    return {"epsilon": epsilon, "note": None}


def _report(
    path: Path, record: LedgerRecord, delta: float, spent: Mapping[str, _Spent], saved: int | None
) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "ledger": str(path),
        "chain": {"intact": True, "lines": len(record.hashes), "head": record.hashes[-1]},
        "interrupted": record.interrupted,
        "private": not record.seeded,
        "generators": [{"name": name, "cryptographic": known} for name, known in record.cryptographic.items()],
        "neighbours": record.relation.value,
        "dataset_size": record.dataset_size,
        "delta": delta,
        "steps": record.total_steps,
        "checkpoint": None if saved is None else {"steps": saved},
        "charged": [
            {"release": release.fields(), "charges": record.charges[release], "steps": record.steps[release]}
            for release in record.declared
        ],
        "accountants": spent,
    }


def _text(
    path: Path, record: LedgerRecord, delta: float, spent: Mapping[str, _Spent], saved: int | None
) -> Iterator[RenderableType]:
    yield styled(f"{printable(str(path))}: {len(record.hashes)} lines, no line changed or missing between them")
    yield styled(f"{record.dataset_size} examples, neighbours {record.relation.value}, {record.total_steps} steps")
    if saved is not None:
        yield styled(f"{CHECKPOINT} was saved under this ledger, after {saved} of these steps")
    if record.interrupted:
        yield styled(("the last line is incomplete: the charge that it may hold is counted", CAUTION))
    if record.seeded:
        yield styled(("NOT PRIVATE: a seed was fixed, so the noise is predictable", BAD))
    yield from (styled(*_generator(name, known)) for name, known in record.cryptographic.items())
    charged = table("charges", "steps", "of", right=("charges", "steps"))
    for release in record.declared:
        charged.add_row(str(record.charges[release]), str(record.steps[release]), _described(release))
    ask = table("accountant", "epsilon", "")
    for name, found in spent.items():
        epsilon = found["epsilon"]
        ask.add_row(name, "–" if epsilon is None else upward(epsilon, 4), found["note"] or "")
    whose = {record.delta: " of the training"}.get(delta, "")
    tail = styled(f"at δ = {delta:g}{whose}, rounded up")
    yield from (styled(""), charged, styled(""), ask, styled(""), tail)


def _generator(name: str, is_cryptographic: bool | None) -> Iterator[str | tuple[str, str]]:
    """Yield a line on a generator of noise, in pieces."""
    if is_cryptographic is None:
        yield "noise of a generator that was not recorded"
        return
    yield f"noise of {printable(name)}"
    if not is_cryptographic:
        yield ("; it is not cryptographic: a reader of some of its output may compute the rest", CAUTION)


def _described(release: Release) -> str:
    fields = release.fields().items()
    return ", ".join(f"{name.replace('_', ' ')} {_number(value)}" for name, value in fields)


def _number(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
