"""What commands read beside models: files of data, and emitted modules with their weights."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from lipcompile_privacy.errors import CheckpointError, DataError

from lipcompile.analysis.tokens import vocabulary
from lipcompile.cli.shared.output import complain
from lipcompile.core.backend import Backend, find, instantiate
from lipcompile.core.graph import Graph
from lipcompile.core.record import CLASS_OF_PIXEL, CLASS_OF_TOKEN
from lipcompile.diagnostics import Diagnostic, Severity, input_error
from lipcompile.ops.loss.regression import REAL
from lipcompile.ops.loss.rules import CLASS, SHARE, SHARES, SIGN
from lipcompile.ops.own.rules import OWN_NETWORK

# What the records of the losses call their targets, in the words of the backend.
_TARGETS = {
    CLASS: "class",
    CLASS_OF_TOKEN: "class",
    CLASS_OF_PIXEL: "pixel",
    SIGN: "sign",
    SHARE: "probability",
    SHARES: "probabilities",
    REAL: "vector",
}


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Raise InputError (LIP402, LIP403) for a file that cannot be read, or that holds no such data.

    A DataError that something else caused is about what is no array file at all.
    """
    try:
        yield
    except OSError as error:
        raise input_error("LIP402", f"`{path}` cannot be read: {error.strerror or error}") from None
    except DataError as error:
        raise input_error("LIP402" if error.__cause__ else "LIP403", str(error)) from None


def arrays_of(path: Path, graph: Graph, backend: Backend) -> Any:
    """Read data for a model with a loss; raises InputError (LIP402, LIP403)."""
    with reading(path):
        return backend.data.load_npz(path, *expected(graph))


def checked(data: Any, graph: Graph, backend: Backend) -> Any:
    """Return `Arrays`, or four values in their order, as those of a file; raises DataError."""
    import numpy as np

    names = ("x_train", "y_train", "x_test", "y_test")
    values = [getattr(data, name) for name in names] if isinstance(data, backend.data.Arrays) else data
    arrays = {
        name: {part: np.asarray(array) for part, array in value.items()}
        if isinstance(value, Mapping)
        else np.asarray(value)
        for name, value in zip(names, values, strict=True)
    }
    for value in (part for one in values for part in (one.values() if isinstance(one, Mapping) else [one])):
        kinds = (
            {str(item.dtype) for item in value if hasattr(item, "dtype")}
            if isinstance(value, list | tuple)
            else ()
        )
        if len(kinds) > 1:  # numpy's type for all of them says whether images are divided by 255
            raise DataError(
                "the arrays of a list have different types of numbers, by which all are scaled: convert each"
            )
    return backend.data.from_arrays(arrays, *expected(graph))


def expected(graph: Graph) -> tuple[Any, ...]:
    """Return what data are checked against: the shape of an example, its classes, tokens, and inputs."""
    return graph.input.shape, _classes(graph), vocabulary(graph), graph.input.parts


def _classes(graph: Graph) -> int | None:
    assert graph.loss is not None
    return graph.shape(graph.output)[0] if graph.loss.loss.target == CLASS else None


def admissible(attack: Any, graph: Graph) -> Any:
    """Say what the adversary may choose as target and as tokens."""
    assert graph.loss is not None
    kind = graph.loss.loss.target
    if kind not in _TARGETS:
        message = (
            f"the targets of the loss `{graph.loss.loss.name}` are not known, so no adversary can choose them"
        )
        raise input_error("LIP404", message, "name a loss with --loss, for this command alone")
    norm = getattr(graph.loss.attributes, "target_norm", None)
    return attack.Admissible(
        target=_TARGETS[kind], target_norm=math.inf if norm is None else float(norm), vocabulary=vocabulary(graph)
    )


# The files of a folder of `train`.
MODULE, LEDGER, CHECKPOINT, CLASSES = "model.py", "ledger.jsonl", "checkpoint.pt", "classes.json"
NETWORK = "network.json"  # of a module of torch that no rule covers: where it is found
_HELP = "give the .py file that `lipcompile compile MODEL -o FILE.py` writes, or the folder of `train`"


@dataclass(frozen=True, slots=True)
class Trained:
    """A module with its weights, projected, and the files that they came from.

    weights: None for those that it starts with. ledger_head: the place in its ledger that the weights were saved
    at, if they are a checkpoint.
    """

    module: Any
    source: Path
    weights: Path | None
    ledger_head: str | None


def trained(path: Path, weights: Path | None, backend: Backend) -> Trained:
    """Run a module, or that of a folder of `train`, and load its weights; raises InputError (LIP510, LIP513)."""
    source = path / MODULE if path.is_dir() else path
    if not source.exists() and (path / "model.npz").is_file():
        message = f"`{path}` holds the model of a table, which is no network"
        raise input_error("LIP510", message, f"apply it: lipcompile predict {path} FILE.csv")
    weights = path / CHECKPOINT if weights is None and path.is_dir() else weights
    module = _instance(source, backend)
    return Trained(module, source, weights, None if weights is None else _loaded(module, weights, backend))


def with_weights(path: Path, weights: Path | None, backend: Backend) -> Trained:
    """Do what `trained` does; raises InputError (LIP513) if no weights were given either."""
    found = trained(path, weights, backend)
    if found.weights is None:
        raise input_error("LIP513", "no weights were given", "use --weights run/checkpoint.pt, or a state dict")
    _find_network(found)
    return found


def saved_in(folder: Path) -> Any:
    """Return the checkpoint of a folder of `train`; None without one. Raises InputError (LIP513)."""
    path = folder / CHECKPOINT
    if not path.is_file():
        return None
    try:
        return find().training.read_checkpoint(path)
    except CheckpointError as error:
        raise input_error("LIP513", str(error)) from None
    except OSError as error:
        raise input_error("LIP513", f"`{path}` cannot be read: {error.strerror or error}") from None


def _find_network(found: Trained) -> None:
    """Give a module its own network, where a file of its folder says where to find it; raises InputError."""
    from lipcompile.exporting import document_in
    from lipcompile.frontends.torch.alone import found_again

    document = document_in(found.module)
    if not any(node["op"] == OWN_NETWORK.name for node in document["graph"]["nodes"]):
        return
    place = found.source.parent / NETWORK
    help_line = "load the weights into your module, by lipcompile.load_trained(module, folder, example)"
    try:
        said = json.loads(place.read_text(encoding="utf-8"))
        shapes = {name: tuple(shape) for name, shape in said["input_shape"].items()}
        reference = said["module"]
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        message = f"`{found.source}` calls a module of torch, and `{place}` does not say where it is"
        raise input_error("LIP510", message, help_line) from None
    network = found_again(reference, shapes, document["source"]["sha256"])
    if network is None:
        message = f"`{reference}` is another module than the one that `{found.source}` was trained as"
        raise input_error("LIP510", message, f"give it back its parts and its buffers; or {help_line}")
    type(found.module).own_network = network


def _loaded(module: Any, weights: Path, backend: Backend) -> str | None:
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            saved = backend.robustness.load_weights(module, weights)
    except OSError as error:
        raise input_error("LIP513", f"`{weights}` cannot be read: {error.strerror or error}") from None
    except CheckpointError as error:
        raise input_error("LIP513", str(error)) from None
    complain([Diagnostic("LIP513", str(one.message), severity=Severity.WARNING) for one in caught])
    if saved is None:
        return None
    planned = saved.notes.get("planned_steps", 0)
    if saved.steps < planned:
        click.echo(f"note: `{weights}` has {saved.steps} of {planned} steps: its training has not ended", err=True)
    return str(saved.ledger_head)


def _instance(source: Path, backend: Backend) -> Any:
    if source.exists() and not source.is_file():  # a pipe or a device may have no end
        raise input_error("LIP510", f"`{source}` is no file", _HELP)
    try:
        module = instantiate(source, source.read_text(encoding="utf-8"))
    except OSError as error:
        raise input_error("LIP510", f"`{source}` cannot be read: {error.strerror or error}", _HELP) from None
    except SyntaxError:
        raise input_error("LIP510", f"`{source}` is no emitted module: it is no Python", _HELP) from None
    except (Exception, SystemExit) as error:  # whatever somebody's program raises
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise input_error("LIP510", f"`{source}` is no emitted module: {reason}", _HELP) from None
    if not isinstance(module, backend.robustness.LipschitzModule):
        raise input_error("LIP510", f"`{source}` is no emitted module: its Model is something else", _HELP)
    return module
