"""`lipcompile train`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lipcompile.cli.shared.arguments import (
    model_options,
    neighbours_option,
    noise_option,
    path_option,
    table_options,
    vacuous_option,
    verify_option,
)
from lipcompile.cli.shared.inputs import CHECKPOINT, reading
from lipcompile.cli.shared.output import complain, serious
from lipcompile.cli.shared.presets import begun
from lipcompile.cli.shared.settings import defaults_of, demand, has_plan, planned, training_settings
from lipcompile.cli.shared.training import TrainingRun, execute, print_result, refuse_unresumed
from lipcompile.core.backend import find

if TYPE_CHECKING:
    from lipcompile.frontends.options import ModelOptions


@click.command(short_help="Train MODEL privately, to a budget.")
@model_options()
@path_option("--data", "FILE.npz", "Arrays to train a network on, or a folder of images.")
@click.option(
    "--preset",
    type=click.Choice(["images"]),
    help="Read MODEL as data, and train the network and the plan that suit its shapes and counts.",
)
@table_options
@path_option("--output", "DIR", "Folder for model.py, checkpoint.pt and ledger.jsonl; optional for a table.")
@click.option("--epsilon", type=float, help="ε to spend on the whole training.")
@click.option("--delta", type=float, help="δ, below one over the number of examples.")
@click.option("--epochs", type=click.IntRange(1), help="Passes over the data; 20 by default.")
@click.option(
    "--batch-size",
    type=click.IntRange(1),
    help="Expected batch size; by default 512, or all examples if they are fewer; with clips a 25th of the "
    "examples, between 64 and 2048.",
)
@click.option("--lr", "learning_rate", type=float, help="Learning rate; 0.01 by default, 0.02 with clips.")
@click.option("--optimizer", type=click.Choice(["adam", "sgd"]), help="Optimizer; adam by default.")
@click.option("--momentum", type=float, help="Momentum of sgd; 0.9 by default.")
@click.option(
    "--schedule", type=click.Choice(["constant", "cosine", "linear"]), help="Schedule of the learning rate."
)
@click.option(
    "--average",
    type=click.FloatRange(0, 1),
    metavar="SHARE",
    help="Average the weights over this last share of the steps; by default the last weights are kept.",
)
@noise_option
@click.option(
    "--noise-weight",
    "weights",
    multiple=True,
    metavar="NAME=W",
    help="Share of the noise of a parameter, or of all that a pattern matches, instead of --noise; repeatable.",
)
@click.option(
    "--correlation",
    metavar="KIND",
    help="Correlate the noise from step to step: bands (their number suits the budget), bands:16, blt, "
    "blt:4 (buffers), or none.",
)
@click.option(
    "--sampling",
    type=click.Choice(["poisson", "fixed_size", "shuffle", "balls_in_bins", "fixed_order"]),
    help="Sampling of batches; poisson by default, or the one that the noise needs.",
)
@click.option(
    "--loss-clip", type=float, metavar="C", help="Clip each example's gradient of the loss in the output to C."
)
@click.option(
    "--clip-quantile",
    type=click.FloatRange(0, 1),
    metavar="Q",
    help="Let the length of each clip follow a private quantile of its gradients, from --clip-length on.",
)
@click.option(
    "--fixed-norm", is_flag=True, default=None, help="Scale weights up to their bounds, not only down to them."
)
@click.option(
    "--secure", is_flag=True, default=None, help="Noise from a cryptographic generator: slower (extra `secure`)."
)
@click.option(
    "--cache-features/--no-cache-features",
    default=None,
    help="Compute frozen layers before the first trained parameter once for each example; by default, if there is "
    "room for it in 4 GiB.",
)
@neighbours_option
@click.option("--accountant", type=click.Choice(["pld", "rdp"]), help="Accountant; pld by default.")
@click.option(
    "--augment",
    metavar="CHANGES",
    help="Change images at random in each step: flip, shift:PIXELS, flip,shift:4, or none. The gradient of an "
    "example is the mean over its views; this costs no ε, and time for each view.",
)
@click.option("--views", type=click.IntRange(1), help="Views of each example with --augment; 4 by default.")
@click.option(
    "--max-physical-batch",
    type=click.IntRange(1),
    help="Largest number of examples computed at once; each view counts.",
)
@click.option(
    "--fixed-shape",
    is_flag=True,
    default=None,
    help="Compute every batch in one shape, so that no example changes how others are rounded: slower.",
)
@click.option(
    "--precision",
    type=click.Choice(["float32", "bfloat16"]),
    help="Precision of products in both passes; float32 by default. bfloat16 makes large networks faster on GPUs, "
    "and on processors that have instructions for it.",
)
@click.option("--seed", type=int, help="Makes the run repeatable, and NOT private.")
@click.option(
    "--resume",
    is_flag=True,
    default=None,
    help="Go on with the run in DIR. An epoch that was broken off is charged whole, except with poisson and "
    "fixed_size sampling.",
)
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), help="Device; auto by default.")
@vacuous_option
@verify_option(default=True)
def train(
    model: str, options: ModelOptions, data: Path | None, output: Path | None, allow_vacuous: bool, **given: Any
) -> int:
    """Compile MODEL and train it privately, to a budget; or learn a column of a table.

    The `train` block of MODEL supplies what is not given as an option. FILE.npz holds x_train, y_train, x_test and
    y_test, or X and y; a folder of images may stand in its place. A run that was interrupted goes on with
    --resume; steps that the ledger holds stay spent. A table, a .csv, .tsv or .parquet file, stands in the place
    of MODEL; with a preset, FILE.npz or a folder of images does. Each image of a folder is scaled and cropped to
    the shape of MODEL's input, or with a preset to --input-shape.

    \b
    Example:
      lipcompile train model.lip --data data.npz --output run --epsilon 3 --delta 1e-5
      lipcompile train mnist.npz --preset images --epsilon 3 --output run
    """
    from lipcompile.tables.read import ENDINGS, is_table

    table = {name: given.pop(name) for name in ("target", "schema", "tokenizer", "test")}
    verify_import = given.pop("verify_import")
    if is_table(model):
        return _train_on_table(
            model, options, {**given, "data": data, "allow_vacuous": allow_vacuous}, output, table
        )
    for name, value in table.items():
        if value is not None:
            raise click.UsageError(
                f"--{name} is for tables, and `{model}` is none: the name of a table ends in {', '.join(ENDINGS)}"
            )
    if data is not None and is_table(data):
        raise click.UsageError(f"--data takes arrays, and `{data}` is a table: give it in the place of MODEL")
    preset = given.pop("preset")
    if preset is not None:
        if data is not None:
            raise click.UsageError("--preset takes the data in the place of MODEL: leave --data out")
        model, data = begun(Path(model), _needed(output, "--output"), given, options.input_shape)
        options = replace(options, input_shape={})
    given |= {"allow_vacuous": allow_vacuous, "verify_import": verify_import}
    return _train_network(model, options, _needed(data, "--data"), _needed(output, "--output"), given)


def _needed(path: Path | None, option: str) -> Path:
    if path is None:
        raise click.MissingParameter(param_type="option", param_hint=f"'{option}'")
    return path


def _train_on_table(
    path: str, options: ModelOptions, given: dict[str, Any], output: Path | None, table: dict[str, Any]
) -> int:
    from lipcompile.cli.shared.tables import TableRun, train_on_table
    from lipcompile.frontends.options import ModelOptions

    if replace(options, limits=ModelOptions().limits) != ModelOptions():
        raise click.UsageError(f"options of networks were given, and `{path}` is a table")
    return train_on_table(TableRun(Path(path), output=output, **table), given)


def _train_network(model: str, options: ModelOptions, data: Path, output: Path, given: dict[str, Any]) -> int:
    from lipcompile import pipeline
    from lipcompile.analysis.usefulness import judged
    from lipcompile.cli.shared.verdicts import agrees, measured

    allow_vacuous, verify_import = given.pop("allow_vacuous"), given.pop("verify_import")
    with reading(data):  # what is wrong with the command is said before minutes are spent on the model
        data.stat()
    refuse_unresumed(output, resume=given["resume"])
    if not has_plan(model):
        demand(given, ("epsilon", "delta"))
    options = pipeline.for_training(model, options)
    loaded = pipeline.load(model, options)
    derivation = judged(pipeline.derive(loaded, options), allow_vacuous=allow_vacuous)
    plan = planned(loaded)
    settings = _settings(given, plan, defaults_of(derivation)) if derivation.ok else {}
    derivation = measured(derivation, find(), allow_vacuous=allow_vacuous)
    complain(serious(derivation.diagnostics))
    if not derivation.ok:
        return 1
    text = find().emit(derivation)
    if verify_import and not agrees(loaded, derivation, text):
        return 1
    run = TrainingRun(derivation, text, data, settings, output, plan.get("dataset"))
    try:
        print_result(execute(run, find()), run)
    except KeyboardInterrupt:
        if (output / CHECKPOINT).exists():
            click.echo("interrupted: the same command with --resume goes on", err=True)
        raise
    return 0


def _settings(given: dict[str, Any], plan: dict[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the backend's training configuration; raises InputError (LIP404)."""
    given["noise"] = _noise(given["noise"], given.pop("weights"))
    given["correlation"] = _correlation(given["correlation"])
    settings = training_settings(given, plan, defaults)
    settings["augment"] = None if settings["augment"] == "none" else settings["augment"]
    if given["views"] is not None and settings["augment"] is None:
        raise click.UsageError("--views says how often --augment changes each image: give it, too")
    return settings


def _noise(rule: str | None, weights: tuple[str, ...]) -> str | dict[str, float] | None:
    """Return how noise is shared, as the backend takes it."""
    if rule is not None and weights:
        raise click.UsageError("--noise and --noise-weight say the same twice: leave one out")
    return dict(map(_weight, weights)) or rule


def _weight(text: str) -> tuple[str, float]:
    name, _, value = text.rpartition("=")
    try:
        return name, float(value)
    except ValueError:
        raise click.UsageError(f"--noise-weight: `{text}` is not NAME=W, such as head.weight=0.5") from None


def _correlation(text: str | None) -> dict[str, Any] | None:
    """Return a correlation as the backend takes it; empty if there is to be none."""
    if text is None:
        return None
    kind, colon, number = text.partition(":")
    count = int(number) if number.isascii() and number.isdecimal() else 0
    if text == "none":
        return {}
    named = {"bands": ("correlated", "bands"), "blt": ("blt", "buffers")}.get(kind)
    if named is None or (colon and not count):
        raise click.UsageError(
            f"--correlation: `{text}` is none of bands, bands:N, blt, blt:N and none, N at least 1"
        )
    return {"kind": named[0], **({named[1]: count} if count else {})}
