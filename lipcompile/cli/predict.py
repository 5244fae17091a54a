"""`lipcompile predict`."""

from __future__ import annotations

import csv
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click
from lipcompile_privacy.errors import DataError

from lipcompile.cli.shared.arguments import PATH, file_option
from lipcompile.diagnostics import input_error

if TYPE_CHECKING:
    from lipcompile.learn.table_model import TableModel


@click.command(short_help="Predict a column of a table.")
@click.argument("run", type=PATH)
@click.argument("data", type=PATH)
@file_option("--output", metavar="FILE", text="File of predictions; else stdout.")
def predict(run: Path, data: Path, output: Path | None) -> int:
    """Predict the target column for each row of DATA. RUN is a folder that `train` wrote.

    It writes a CSV file with a line for each row: the prediction, and the probability of each class.

    \b
    Example:
      lipcompile predict run new_people.csv --output predicted.csv
    """
    from lipcompile.cli.shared.tables import MODEL
    from lipcompile.learn.table_model import load

    path = run / MODEL if run.is_dir() else run
    try:
        model = load(path)
    except DataError as error:
        raise input_error("LIP402", str(error)) from None
    except OSError as error:
        help_line = "give the folder that `lipcompile train TABLE --output DIR` wrote"
        raise input_error("LIP402", f"`{path}` cannot be read: {error.strerror}", help_line) from None
    with nullcontext(sys.stdout) if output is None else output.open("w", newline="", encoding="utf-8") as file:
        _write(model, data, file)
    return 0


def _write(model: TableModel, data: Path, file: TextIO) -> None:
    rows = model.encoded(data)
    classes = model.schema.classes or ()
    writer: Any = csv.writer(file)
    writer.writerow([model.schema.target, *(f"probability of {name}" for name in classes)])
    shares = model.probabilities(rows.x) if classes else None
    labels = model.predictions(rows.x) if shares is None else model.labels(shares)
    for label, each in zip(labels, [()] * len(labels) if shares is None else shares, strict=True):
        writer.writerow([label, *(f"{share:.4f}" for share in each)])
