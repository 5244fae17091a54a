"""Training on a table: which schema it has, what is held out, and what came out."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from lipcompile_privacy.errors import BudgetError, DataError

from lipcompile.cli.shared.inputs import LEDGER
from lipcompile.cli.shared.output import complain, write_text
from lipcompile.cli.shared.progress import CountWatch, accuracy
from lipcompile.cli.shared.training import plain_warnings, refuse_used, warn_of_delta
from lipcompile.core.backend import find
from lipcompile.diagnostics import Diagnostic, Severity, input_error
from lipcompile.numbers.rounding import upward
from lipcompile.tables.schema import Ignore, Number, Schema
from lipcompile.tables.schema_file import CLASSES_READ, KINDS_READ, NAMES_READ, placed, text

if TYPE_CHECKING:
    from lipcompile.learn.fitting import Fitted
    from lipcompile.tables.encode import Encoded

SCHEMA = "schema.toml"
MODEL = "model.npz"
PAGE = "report.html"
_ENDING = ".schema.toml"
_TARGET_LINE = ', `target = "…"` above [columns], and remove the line of that column'
# Options of `train` that a table takes beside those of `TableRun`.
_TAKEN = ("epsilon", "delta", "seed", "search")


@dataclass(frozen=True, slots=True)
class TableRun:
    """What to train on and where to.

    Args:
        data: the file.
        target: the column to be learned; None: the schema says it.
        schema: its file; None: the one beside `data`, or what is read from the rows.
        tokenizer: of columns of free text, where no schema is; None: they are ignored.
        test: another file to test on; None: a fifth of `data` is held out.
        output: folder; None: nothing is kept.
    """

    data: Path
    target: str | None
    schema: Path | None
    tokenizer: str | None
    test: Path | None
    output: Path | None


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """Rows to train on, privately, and rows to test on, whose score is published exactly.

    Args:
        schema: what both are; with classes, if it is one of a classification.
        train: encoded, with targets.
        test: as `train`.
        source: the name of the table.
        unpaid: what was read from the rows, sentences.
    """

    schema: Schema
    train: Encoded
    test: Encoded
    source: str = "the table"
    unpaid: Sequence[str] = ()


def fit(parts: Parts, output: Path | None, **options: Any) -> tuple[str, Fitted, dict[str, Path]]:
    """Train privately and test, with these options of `fit_table`; write to a folder, if there is one.

    Returns what is told of the rows to test on (the share that is right, or R², and what no model has there), what
    was fitted, and the files that were written, by what they are. Raises InputError (LIP401, LIP403).
    """
    from lipcompile.cli.shared.table_report import Course, page_of, without_model
    from lipcompile.learn.table_model import fit_table
    from lipcompile.reports.html.table_page import render_table

    course = Course()

    def stepped(done: int, planned: int, weights: Any) -> None:
        watch("", done, planned)
        course.stepped(done, planned, weights)

    try:
        with plain_warnings(), CountWatch("training") as watch:
            model = fit_table(
                parts.train,
                parts.schema,
                ledger=None if output is None else output / LEDGER,
                watch=stepped,
                **options,
            )
    except (BudgetError, DataError) as error:
        raise input_error("LIP401" if isinstance(error, BudgetError) else "LIP403", str(error)) from None
    assert parts.test.y is not None
    files, outputs = {}, model.fitted.outputs(parts.test.x)
    score = model.score(outputs, parts.test.y)
    told = accuracy(score) if parts.schema.task == "classification" else f"test R² {score:.3f}"
    without = without_model(model, outputs, parts.test.y)
    if output is not None:
        model.save(output / MODEL)
        page = page_of(model, parts.test, outputs, without, course, parts.source, len(parts.train.x), parts.unpaid)
        write_text(output / PAGE, render_table(page))
        files = {"model": output / MODEL, "ledger": output / LEDGER, "page": output / PAGE}
    return f"{told} ({without})", model.fitted, files


def train_on_table(run: TableRun, given: Mapping[str, Any]) -> int:
    """Train on a table with the options of the command line, and write what came out to stdout."""
    if run.output is not None:
        refuse_used(run.output, "choose another --output")
    options = _options(given)
    schema, origins = _schema(run)
    parts = _parts(run, schema)
    if parts.schema != schema:
        origins.append(_read(CLASSES_READ, "write `classes` into a schema"))
    for name, share in parts.train.outside().items():
        click.echo(
            f"note: {share:.1%} of the values of `{name}` are outside of its public range and are clipped to it "
            "(this figure is not private); correct the range in the schema, or leave it out",
            err=True,
        )
    warn_of_delta(options["delta"] or 0.0, len(parts.train.x))
    told, fitted, files = fit(replace(parts, source=run.data.name, unpaid=origins), run.output, **options)
    if run.output is not None:
        files["schema"] = _kept(parts.schema, origins, run.data.name, run.output)
    promise = "" if fitted.private else " -- NOT PRIVATE: a seed was fixed, so the noise is predictable"
    click.echo(f"{told} on the held-out rows; these figures are exact, so they are not private")
    click.echo(f"ε = {upward(fitted.epsilon, 4)} at δ = {fitted.budget.delta:g}{promise}")
    if fitted.searched is not None:
        click.echo(f"the search kept: {fitted.searched}")
    for name, path in files.items():
        click.echo(f"{name:<11} {path}")
    return 0


def _options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return how to train; raises UsageError for options of networks, InputError (LIP401, LIP404) for a budget."""
    from lipcompile_privacy.accounting.releases import check_target

    for name, value in given.items():
        if name not in _TAKEN and value not in (None, (), False):
            options = {one.name: one.opts[0] for one in click.get_current_context().command.params}
            raise click.UsageError(f"{options[name]} is for networks, and this is a table")
    if given["epsilon"] is None:
        raise input_error(
            "LIP404", "--epsilon is needed", "such as --epsilon 1: ε is your promise to the people in the table"
        )
    try:
        check_target(given["epsilon"], 1e-5 if given["delta"] is None else given["delta"])
    except BudgetError as error:
        raise input_error("LIP401", str(error)) from None
    return {name: given[name] for name in ("epsilon", "delta", "seed")} | {"search": bool(given.get("search"))}


def schema_beside(data: Path) -> Path:
    """Return where the schema of a file is looked for: people.csv has people.schema.toml."""
    from lipcompile.tables.read import stem

    return data.with_name(f"{stem(data)}{_ENDING}")


def _schema(run: TableRun) -> tuple[Schema, list[str]]:
    """Return a schema, and that it was read from the rows if it was, with a warning; raises InputError."""
    from lipcompile.tables.guess import guess
    from lipcompile.tables.schema_file import load

    path = run.schema or schema_beside(run.data)
    if run.schema is None and not path.exists():
        if run.target is None:
            raise input_error("LIP411", "the table has no target column", "name the column with --target")
        found = guess(run.data, run.target, tokenizer=run.tokenizer)
        ignored = f" ({unused})" if (unused := ignored_in(found)) else ""
        command = ["lipcompile", "new", str(run.data), "--target", run.target]
        command += [] if run.tokenizer is None else ["--tokenizer", run.tokenizer]
        words = ", ".join(f"`{one.name}`" for one in found.columns if isinstance(one, Number) and one.coerce)
        ignored += f" ({words}: numbers, but for a few words, which count as missing)" if words else ""
        kinds = _read(KINDS_READ, f"write them down: {shlex.join(command)}{ignored}")
        return found, [kinds, *names_read(found, run.data)]
    if run.tokenizer is not None:
        raise click.UsageError(f"--tokenizer is for tables without a schema: write it into {path}")
    click.echo(f"schema {path}", err=True)
    found = load(path)
    if run.target not in (None, found.target):
        other = "another target than" if found.target else "no target"
        help_line = "write it into the schema" + (", or leave out --target" if found.target else _TARGET_LINE)
        raise input_error("LIP412", f"`{path}` has {other} `{run.target}`", help_line)
    return found, []


def ignored_in(schema: Schema) -> str:
    """Return which columns of a guessed schema are ignored, and why; empty if none is."""
    names = ", ".join(f"`{one.name}`" for one in schema.columns if isinstance(one, Ignore))
    reason = (
        "ignored: free text without --tokenizer, one value only, or no text, number or date; dates are read as "
        "2020-01-31, or as 31/01/2020 if no other order fits, with years of four digits"
    )
    return f"{names}: {reason}" if names else ""


def names_read(schema: Schema, data: Path) -> list[str]:
    """Warn if the first row of a text file may stand in a schema for names, and return what was read."""
    from lipcompile.tables.read import TEXT, are_names

    names = [column.name for column in schema.columns] + [schema.target or "target"]
    if are_names(names) or not data.name.lower().endswith(TEXT):
        return []
    return [_read(NAMES_READ, "if there is no line of names, add one above the rows")]


def _read(what: str, help_line: str) -> str:
    """Warn that something was read from the rows, and return what."""
    complain([read_from_rows(what, help_line)])
    return what


def read_from_rows(what: str, help_line: str) -> Diagnostic:
    """Return the warning for what no budget covers, a sentence."""
    return Diagnostic("LIP415", f"{what[0].lower()}{what[1:-1]}", help_line, Severity.WARNING)


def _parts(run: TableRun, schema: Schema) -> Parts:
    """Read and check the rows, and the classes if the schema has none; raises InputError."""
    from lipcompile.tables.encode import classes_of
    from lipcompile.tables.read import called
    from lipcompile.tables.stream import encoded, taken

    data = encoded(run.data, schema)
    classes = classes_of(data, schema, called(run.data))
    if classes:
        schema = replace(schema, classes=classes)
    if run.test is not None:
        test = encoded(run.test, schema)
        classes_of(test, schema, called(run.test))
        return Parts(schema, data, test)
    if len(data.x) < 2:
        raise input_error("LIP403", f"{called(run.data)} has one row: none is left to test on", "use --test FILE")
    train_rows, test_rows = find().data.split_rows(len(data.x))
    return Parts(schema, taken(data, train_rows), taken(data, test_rows))


def _kept(schema: Schema, origins: list[str], source: str, output: Path) -> Path:
    """Write the schema into the folder of the run, so that new rows are encoded alike."""
    output.mkdir(parents=True, exist_ok=True)
    write_text(output / SCHEMA, text(placed(schema, Path()), source, origins))
    return output / SCHEMA
