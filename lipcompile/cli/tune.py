"""`lipcompile tune`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from lipcompile.cli.shared.arguments import PATH, path_option, table_options
from lipcompile.diagnostics import input_error


@click.command(short_help="Choose settings for a table privately, and train.")
@click.argument("data", type=PATH)
@table_options
@path_option("--output", "DIR", "Folder for model.npz and its ledger.")
@click.option("--epsilon", type=float, help="ε of search and model together.")
@click.option("--delta", type=float, help="δ; 1e-5 by default, or less for large tables.")
@click.option("--seed", type=int, help="Makes the run repeatable, and NOT private.")
def tune(
    data: Path,
    target: str | None,
    schema: Path | None,
    tokenizer: str | None,
    test: Path | None,
    output: Path | None,
    **given: Any,
) -> int:
    """Search settings for a table privately, and train with the best: one ε pays for both.

    The settings of `train` and richer ones share the budget. A noisy score says whether one of them is kept, or
    the mean of both. Where the rows are too few for a search to pay, it says so, and does what `train` does.

    \b
    Example:
      lipcompile tune people.csv --target income --epsilon 1
    """
    from lipcompile.cli.shared.tables import TableRun, train_on_table
    from lipcompile.tables.read import is_table

    if not is_table(data):
        help_line = (
            "settings of networks are given to `lipcompile train`; choosing them on private data is not free"
        )
        raise input_error("LIP410", f"`{data}` is no table", help_line)
    return train_on_table(TableRun(data, target, schema, tokenizer, test, output), {**given, "search": True})
