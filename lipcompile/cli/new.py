"""`lipcompile new`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from lipcompile.cli.shared.arguments import PATH, file_option, shapes, tokenizer_option
from lipcompile.cli.shared.output import write_text
from lipcompile.cli.shared.presets import preset_text
from lipcompile.diagnostics import input_error


@click.command(short_help="Write a schema for a table, for you to complete.")
@click.argument("data", type=PATH)
@click.option("--target", metavar="COLUMN", help="The column to be learned.")
@tokenizer_option
@click.option(
    "--preset",
    type=click.Choice(["images"]),
    help="Write a model and its plan for DATA, images in an .npz file or a folder, from shapes and counts.",
)
@click.option("--epsilon", type=float, help="With --preset: ε of the plan.")
@click.option(
    "--delta",
    type=float,
    help="With --preset: δ of the plan; by default a power of ten below one over the examples.",
)
@click.option(
    "--input-shape",
    multiple=True,
    metavar="N,…",
    help="With --preset: shape, such as 3,32,32, that each image of a folder gets.",
)
@click.option(
    "--public",
    is_flag=True,
    help="All of DATA is public: read ranges, names of categories and classes from it, too.",
)
@file_option(
    "--output",
    metavar="FILE",
    text="The file to write; people.schema.toml beside people.csv by default, where `train` looks for it; "
    "mnist.lip beside mnist.npz.",
)
def new(
    data: Path, target: str | None, tokenizer: str | None, public: bool, output: Path | None, **plan: Any
) -> int:
    """Write a schema for DATA, a .csv, .tsv or .parquet file. Complete it with the public facts about the table.

    With --preset, DATA is an .npz file or a folder of images, and the command writes a model for it instead.

    Kinds of columns are read from the rows, and the privacy budget does not cover that. Ranges and names of
    categories are read only with --public.

    \b
    Example:
      lipcompile new people.csv --target income
      lipcompile new mnist.npz --preset images --epsilon 3
    """
    from lipcompile.tables.read import is_table

    if plan["preset"] is not None:
        return _model(data, output or data.with_suffix(".lip"), plan)
    if is_table(data):
        return _schema(data, target, tokenizer, public, output)
    raise input_error(
        "LIP410", f"`{data}` is no table", "its name must end in .csv, .tsv, .gz of these, or .parquet"
    )


def _model(data: Path, path: Path, plan: dict[str, Any]) -> int:
    text = preset_text(data, plan["epsilon"], plan["delta"], shapes(plan["input_shape"]))
    if path.exists():
        raise input_error("LIP005", f"`{path}` exists, and may have been changed", "choose another --output")
    write_text(path, text)
    click.echo(f"{path}: `lipcompile train {path} --data {data} --output run` trains it")
    return 0


def _schema(data: Path, target: str | None, tokenizer: str | None, public: bool, output: Path | None) -> int:
    from lipcompile.cli.shared.tables import ignored_in, names_read, schema_beside
    from lipcompile.tables.encode import open_ranges
    from lipcompile.tables.guess import guess
    from lipcompile.tables.schema_file import KINDS_READ, PUBLIC, placed, text

    path = output or schema_beside(data)
    if path.exists():
        raise input_error("LIP005", f"`{path}` exists, and may have been filled in", "choose another --output")
    schema = placed(guess(data, target, public=public, tokenizer=tokenizer), Path())
    origin = PUBLIC if public else KINDS_READ
    origins = [origin] if public else [origin, *names_read(schema, data)]
    write_text(path, text(schema, data.name, origins))
    click.echo(f"{path}: {len(schema.columns)} columns, {open_ranges(schema)} of them without a range. {origin}")
    if ignored := ignored_in(schema):
        click.echo(ignored)
    return 0
