"""`lipcompile predict`."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from lipcompile_privacy.errors import DataError

from lipcompile.cli.shared.arguments import PATH, file_option, weights_option
from lipcompile.cli.shared.inputs import CLASSES, MODULE, expected, reading, with_weights
from lipcompile.core.backend import find
from lipcompile.core.record import CLASS_OF_PIXEL, CLASS_OF_TOKEN
from lipcompile.diagnostics import input_error
from lipcompile.ops.loss.rules import CLASS, SHARE, SHARES, SIGN

if TYPE_CHECKING:
    from lipcompile.core.graph import LossUse

# Of the losses of classes, those whose outputs say probabilities: the softmax of the scaled outputs.
_WITH_SHARES = ("cross_entropy", "nll")


@click.command(short_help="Predict with a trained model.")
@click.argument("run", type=PATH)
@click.argument("data", type=PATH)
@weights_option
@file_option("--output", metavar="FILE", text="File of predictions; else stdout.")
def predict(run: Path, data: Path, weights: Path | None, output: Path | None) -> int:
    """Predict the target of each example of DATA. RUN is a folder that `train` wrote.

    It writes a CSV file with a line for each example: the prediction, and the probability of each class. For the
    model of a table DATA is a table; for a network an image, a folder of images, or an .npz file with an array x.

    \b
    Example:
      lipcompile predict run new_people.csv --output predicted.csv
    """
    of_network = run.suffix == ".py" or (run / MODULE).is_file()
    if weights is not None and not of_network:
        raise click.UsageError(f"--weights are those of a network, and `{run}` is none")
    lines = [*(_of_network(run, data, weights) if of_network else _of_table(run, data))]
    with nullcontext(sys.stdout) if output is None else output.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(lines)
    return 0


def _of_table(run: Path, data: Path) -> Iterator[Iterable[Any]]:
    from lipcompile.cli.shared.tables import MODEL
    from lipcompile.learn.table_model import load

    path = run / MODEL if run.is_dir() else run
    try:
        model = load(path)
    except DataError as error:
        raise input_error("LIP402", str(error)) from None
    except OSError as error:
        help_line = "give the folder that `lipcompile train --output DIR` wrote"
        raise input_error("LIP402", f"`{path}` cannot be read: {error.strerror}", help_line) from None
    rows = model.encoded(data)
    classes = model.schema.classes or ()
    yield [model.schema.target, *map(_of_class, classes)]
    shares = model.probabilities(rows.x) if classes else None
    # Nine digits say which float32 it is.
    labels = [f"{one:.9g}" for one in model.predictions(rows.x)] if shares is None else model.labels(shares)
    for label, each in zip(labels, [()] * len(labels) if shares is None else shares, strict=True):
        yield [label, *map(_share, each)]


def _of_network(run: Path, data: Path, weights: Path | None) -> Iterator[Iterable[Any]]:
    import torch

    from lipcompile.certificates.read import graph_of
    from lipcompile.exporting import document_in

    backend = find()
    module = with_weights(run, weights, backend).module
    graph = graph_of(document_in(module))
    assert graph.loss is not None
    if (kind := graph.loss.loss.target) in (CLASS_OF_TOKEN, CLASS_OF_PIXEL):
        message = f"the network says {kind}, which is no line of a table"
        raise input_error("LIP404", message, "call the module in Python, or export it: lipcompile export")
    shape, _, tokens, parts = expected(graph)
    with reading(data):
        names, inputs = backend.data.load_inputs(data, shape, tokens, parts)
    outputs = backend.robustness.outputs_of(module, torch.from_numpy(inputs)).double()
    outputs = outputs.reshape(len(inputs), -1)
    header, rows = _read_out(graph.loss, outputs, _names(run, outputs.shape[1]))
    yield ["file" if data.suffix != ".npz" else "row", *header]
    for name, row in zip(names, rows, strict=True):
        yield [name, *row]


def _names(run: Path, count: int) -> list[str]:
    """Return the names of classes, as the folders had them that were trained on, or their numbers.

    Raises InputError (LIP402) if their file is damaged.
    """
    path = run / CLASSES
    try:
        names = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []
    except ValueError:
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        help_line = "remove it: classes then have numbers"
        raise input_error("LIP402", f"`{path}` does not hold the names of classes", help_line)
    return names if len(names) == max(count, 2) else [str(number) for number in range(max(count, 2))]


def _read_out(loss: LossUse, outputs: Any, names: list[str]) -> tuple[list[str], Iterable[Iterable[Any]]]:
    """Return the header and the rows that say what outputs [N, K] mean for the loss that they were trained on."""
    kind, scaled = loss.loss.target, float(getattr(loss.attributes, "temperature", 1)) * outputs
    if kind == CLASS:
        labels = [names[best] for best in outputs.argmax(1)]
        if loss.loss.name not in _WITH_SHARES:
            return ["prediction"], zip(labels)
        shares = [map(_share, row) for row in scaled.softmax(1).tolist()]
        return ["prediction", *map(_of_class, names)], (
            [label, *row] for label, row in zip(labels, shares, strict=True)
        )
    if kind == SIGN:
        return ["prediction"], ([1 if row > 0 else -1] for row in outputs[:, 0])
    if kind == SHARE:
        rows = ([names[int(row > 0)], _share(row.sigmoid())] for row in scaled[:, 0])
        return ["prediction", _of_class(names[1])], rows
    if kind == SHARES:
        return [_of_class(name) for name in names], (map(_share, row) for row in scaled.sigmoid().tolist())
    header = [f"output {number}" for number in range(outputs.shape[1])]
    return header, ([f"{value:.6g}" for value in row] for row in outputs.tolist())


def _of_class(name: str) -> str:
    return f"probability of {name}"


def _share(value: float) -> str:
    return f"{value:.4f}"
