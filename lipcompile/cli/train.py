"""`lipcompile train`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lipcompile.cli.arguments import model_options
from lipcompile.cli.output import complain, serious

if TYPE_CHECKING:
    from lipcompile.frontends.options import ModelOptions

DEFAULTS = {
    "epochs": 20,
    "optimizer": "adam",
    "learning_rate": 1e-2,
    "momentum": 0.9,
    "schedule": "constant",
    "noise": "per_layer",
    "neighbours": "add_remove",
    "accountant": "pld",
    "device": "auto",
    "resume": False,
}


@click.command(short_help="Train MODEL privately, to a budget.")
@model_options()
@click.option(
    "--data", type=click.Path(path_type=Path), required=True, metavar="FILE.npz", help="Arrays to train on."
)
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    required=True,
    metavar="DIR",
    help="Folder for model.py, checkpoint.pt and ledger.jsonl.",
)
@click.option("--epsilon", type=float, help="ε to spend on the whole training.")
@click.option("--delta", type=float, help="δ, below one over the number of examples.")
@click.option("--epochs", type=click.IntRange(1), help="Passes over the data; 20 by default.")
@click.option(
    "--batch-size",
    type=click.IntRange(1),
    help="Expected batch size; by default 512, or all examples if they are fewer.",
)
@click.option("--lr", "learning_rate", type=float, help="Learning rate; 0.01 by default.")
@click.option("--optimizer", type=click.Choice(["adam", "sgd"]), help="adam by default.")
@click.option("--momentum", type=float, help="Of sgd; 0.9 by default.")
@click.option("--schedule", type=click.Choice(["constant", "cosine"]), help="Of the learning rate.")
@click.option("--noise", type=click.Choice(["global", "per_layer", "optimal"]), help="How noise is shared.")
@click.option("--neighbours", type=click.Choice(["add_remove", "replace_one"]), help="What one person changes.")
@click.option("--accountant", type=click.Choice(["pld", "rdp"]), help="pld by default.")
@click.option("--max-physical-batch", type=click.IntRange(1), help="Most examples computed at once.")
@click.option("--seed", type=int, help="Makes the run repeatable, and NOT private.")
@click.option("--resume", is_flag=True, default=None, help="Go on with the run in DIR.")
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), help="auto by default.")
def train(model: str, options: ModelOptions, data: Path, output: Path, **given: Any) -> int:
    """Compile MODEL and train it privately, to a budget.

    The `train` block of MODEL supplies what is not given as an option. FILE.npz holds x_train, y_train, x_test and
    y_test, or X and y. A run that was interrupted goes on with --resume; steps that the ledger holds stay spent.

    \b
    Example:
      lipcompile train model.lip --data data.npz --output run --epsilon 3 --delta 1e-5
    """
    from lipcompile import pipeline
    from lipcompile.backend import find
    from lipcompile.cli.settings import demand, merged, planned, setting_error
    from lipcompile.cli.training import CHECKPOINT, Run, execute, print_result

    loaded = pipeline.load(model, options)
    derivation = pipeline.derive(loaded, options)
    complain(serious(derivation.diagnostics))
    if not derivation.ok:
        return 1
    plan = planned(loaded)
    if "correlation" in plan:
        raise setting_error(
            "`train` draws independent noise only: the plan's `noise` is correlated over the steps"
        )
    settings = merged(given, plan, DEFAULTS)
    demand(settings, ("epsilon", "delta"))
    run = Run(derivation, data, settings, output, plan.get("dataset"))
    try:
        print_result(execute(run, find()), run)
    except KeyboardInterrupt:
        if (output / CHECKPOINT).exists():
            click.echo("interrupted: the same command with --resume goes on", err=True)
        raise
    return 0
