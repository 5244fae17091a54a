"""All rows of a source as one matrix: in memory, or in a file that nobody sees if it is larger than a limit."""

from __future__ import annotations

import tempfile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lipcompile.tables.encode import Block, Encoded, assembled, encoded_batch, layout, release
from lipcompile.tables.read import batches, called
from lipcompile.tables.schema import Schema
from lipcompile.tables.schema_file import portable

MEMORY = 2**30  # bytes
_PIECE = 2**25  # bytes


class _Store:
    """Rows of one width that are added piece by piece; beyond half of `memory` they go to a temporary file.

    The file has no name, so that it is gone when the last array over it is, however the program ends.
    """

    def __init__(self, width: int, memory: int) -> None:
        self._width, self._memory = width, memory
        self._pieces: list[Block] = []
        self._rows = 0
        self._file: Any = None

    def add(self, piece: Block) -> None:
        """Add rows, float32 [n, width]; raises OSError if the disk is full."""
        self._rows += len(piece)
        self._pieces.append(piece)
        if self._file is None and 8 * self._rows * self._width > self._memory:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115
        if self._file is not None:
            self._write()

    def rows(self) -> Block:
        """Return all rows, float32 [N, width], and forget them."""
        if self._file is None:
            return self._joined()
        with self._file as file:
            file.flush()
            return np.memmap(file, np.float32, "r+", shape=(self._rows, self._width))

    def _write(self) -> None:
        while self._pieces:
            self._file.write(self._pieces.pop(0).data)

    def _joined(self) -> Block:
        """Return the pieces in one array; each is given back as soon as it is copied."""
        found = np.empty((self._rows, self._width), np.float32)
        start = 0
        while self._pieces:
            piece = self._pieces.pop(0)
            found[start : start + len(piece)] = piece
            start += len(piece)
        return found


def encoded(source: Any, schema: Schema, memory: int = MEMORY) -> Encoded:
    """Encode a source that may be larger than memory, batch by batch.

    Args:
        source: as `read.batches` takes it.
        schema: what its columns are. The target may be missing.
        memory: bytes for the matrix, and as much again for parts that are taken from it; a larger one lies in a
            temporary file, in the folder of TMPDIR.

    Raises:
        InputError: LIP410, the source cannot be read; LIP411, a column is not there; LIP413, one holds something
            else than the schema says.
        OSError: there is no room for the temporary file.
    """
    schema = portable(schema)  # files of tokenizers are read once, and not for each piece
    width, targets = len(layout(schema).names), []
    store = _Store(width, memory)
    for batch in batches(source):
        for start in range(0, batch.num_rows, _rows(width)):
            x, y = encoded_batch(batch.slice(start, _rows(width)), schema, called(source))
            store.add(x)
            if y is not None:
                targets.append(y)
    return assembled(store.rows(), targets, schema)


def _rows(width: int) -> int:
    """Return how many rows of a matrix are made at once."""
    return max(1, _PIECE // (4 * max(width, 1)))


def taken(data: Encoded, rows: NDArray[np.int64], memory: int = MEMORY) -> Encoded:
    """Return the rows of some numbers [n], in the order of the table, so that a file is read from front to back.

    Raises OSError as `encoded`.
    """
    rows, width = np.sort(rows), data.x.shape[1]
    store = _Store(width, memory)
    for start in range(0, len(rows), _rows(width)):
        store.add(data.x[rows[start : start + _rows(width)]])
        release(data.x)
    return Encoded(store.rows(), data.low, data.high, data.names, None if data.y is None else data.y[rows])
