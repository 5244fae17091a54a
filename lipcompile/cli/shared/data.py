"""What is wrong with a file of data, in the words of diagnostics."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lipcompile_privacy.errors import DataError

from lipcompile.core.diagnostics import input_error

if TYPE_CHECKING:
    from lipcompile.core.backend import Backend
    from lipcompile.core.graph import Graph


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
        return backend.data.load_npz(path, graph.input.shape, _classes(graph), tokens_of(graph))


def checked(data: Any, graph: Graph, backend: Backend) -> Any:
    """Return `Arrays`, or four values in their order, as those of a file; raises DataError."""
    import numpy as np

    names = ("x_train", "y_train", "x_test", "y_test")
    values = [getattr(data, name) for name in names] if isinstance(data, backend.data.Arrays) else data
    arrays = {name: np.asarray(value) for name, value in zip(names, values, strict=True)}
    return backend.data.from_arrays(arrays, graph.input.shape, _classes(graph), tokens_of(graph))


def _classes(graph: Graph) -> int | None:
    assert graph.loss is not None
    return graph.shape(graph.output)[0] if graph.loss.loss.target == "a class index" else None


def tokens_of(graph: Graph) -> int | None:
    """Return how many different tokens every embedding has a row for; None if the input holds numbers."""
    if not graph.input.tokens:
        return None
    entries: int = min(node.attributes.entries for node in graph.nodes if node.op.takes == "tokens")
    return entries
