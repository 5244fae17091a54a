"""The privacy ledger: what was released, on disk before it is released.

A ledger is a file of JSON lines, only ever appended to. Line 1 is the header; a `mechanism` line declares a
release before its first use. The accountant counts charges:

=========  =========================================================================================
`step`     one training step, which is a use of the release by itself
`round`    one use of the release that covers several training steps: an epoch, a run
`inner`    one training step of the round that was opened last; charges nothing
=========  =========================================================================================

Each line ends in the SHA-256 of the previous line's hash and of its own content, so that a changed, lost or
moved line shows. The chain does not show the loss of whole lines at the end: a checkpoint remembers the hash it
was saved at.

Steps carry no time: the hour stands in headers and declarations for the reader's eye alone.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lipcompile_privacy.accounting import Accountant, NeighbouringRelation, Release, release_from
from lipcompile_privacy.errors import LedgerError
from lipcompile_privacy.ledger import COUNTS, GENESIS, SCHEMA, UNKNOWN, LedgerRecord, parse, read_ledger, sealed

from ..distributed import ALONE, World
from .gradient_watch import Singular

__all__ = ["Ledger", "LedgerError", "LedgerRecord", "read_ledger", "sync_folder"]


_CUT_OFF = b"{"
"""An incomplete line, which stands for any line but an inner one."""


class Ledger(Singular):
    """An open ledger, in a file or in memory.

    Of several processes, which all do the same to it together, rank 0 alone has the file, and the others hear from
    it that a line is on the disk. They keep the same record in memory.

    Args:
        path: the file, made if missing and locked until `close`; None: kept in memory, and lost with the process.
        relation: under which steps are accounted; must be that of an existing file.
        dataset_size: N; must be that of an existing file.
        world: the processes that share the ledger.

    Attributes:
        delta: δ that the training was given, if any. Declarations note it, for who asks for ε later; no charge
            depends on it.

    Raises:
        LedgerError: the file is damaged, another process is writing it, or it was kept for other data.
        OSError: it cannot be opened or written.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        relation: NeighbouringRelation,
        dataset_size: int,
        world: World = ALONE,
    ) -> None:
        self.path = None if path is None else Path(path)
        self.world = world
        self.record = LedgerRecord(relation, dataset_size)
        self.delta: float | None = None
        self._open: Release | None = None
        self._file = -1
        self._process = os.getpid()
        self._closed = False
        self.record = world.first("open the ledger", lambda: self._start(relation, dataset_size))

    def _start(self, relation: NeighbouringRelation, dataset_size: int) -> LedgerRecord:
        if self.path is None:
            self._store(_header(relation, dataset_size))
            return self.record
        self._file = _open_locked(self.path)
        try:
            self._read(relation, dataset_size)
        except BaseException:
            self.close()
            raise
        return self.record

    def _read(self, relation: NeighbouringRelation, dataset_size: int) -> None:
        content = Path(str(self.path)).read_bytes()
        if not content:
            self._store(_header(relation, dataset_size))
            sync_folder(Path(str(self.path)).parent)
            return
        self.record = parse(content, str(self.path))
        self._check_belongs(relation, dataset_size)
        if self.record.interrupted:
            self._help_line(len(content))

    def _check_belongs(self, relation: NeighbouringRelation, dataset_size: int) -> None:
        if (self.record.relation, self.record.dataset_size) != (relation, dataset_size):
            raise LedgerError(
                f"the ledger {self.path} belongs to {self.record.dataset_size} examples under "
                f"{self.record.relation.value}, not to {dataset_size} under {relation.value}: use "
                "another file"
            )

    def _help_line(self, old_length: int) -> None:
        """Write the steps that a cut-off line may have been over it; at no time are there fewer."""
        self.record.interrupted = False
        for release in self.record.recovered:  # counted when read; their lines count them again
            self.record.count(release, -1, -1)
        last = len(self.record.recovered) - 1
        for number, release in enumerate(self.record.recovered):
            self._store(self._line_of("step", release, recovered=True), more=number < last)
        self.record.recovered = ()
        if self.record.length < old_length:
            os.ftruncate(self._file, self.record.length)
            os.fsync(self._file)

    def declare(self, release: Release, seeded: bool = False, generators: Sequence[str] = (UNKNOWN,)) -> None:
        """Announce a release before its first use, durably.

        Args:
            release: which.
            seeded: whether a seed was fixed.
            generators: what noise comes from on this process, by the names of `generators`.
        """
        meant = {} if self.delta is None else {"delta": self.delta}
        declaration = {"kind": "mechanism", **release.fields(), "seeded": seeded, **meant, "time": time.time()}
        said = self.world.each("declare a release", lambda: (declaration, generators))
        names = sorted({name for _, theirs in said for name in theirs})
        self._append({**said[0][0], "generators": names})
        self.record.declare(release, seeded, names, said[0][0].get("delta"))

    def record_step(self, release: Release) -> None:
        """Count one training step that is one use of a declared release.

        Formal guarantees: on return the line is on the disk (fsync). If writing fails the step is not counted or
        is counted once too often, never too seldom, provided the caller takes the step only after the return.

        Raises:
            LedgerError: the release was not declared.
            OSError: the line could not be written.
        """
        self._write("step", release)

    def open_round(self, release: Release) -> None:
        """Charge one use of a release that covers the steps to come; as durable as `record_step`.

        A round ends with the process: steps of another one need a round of their own.
        """
        self._write("round", release)
        self._open = release

    def record_inner_step(self, release: Release) -> None:
        """Note one training step of the round that this ledger opened last; as durable as `record_step`.

        Raises:
            LedgerError: that round is another release's, or none was opened since the file was.
        """
        if release != self._open:
            raise LedgerError(f"no open round of {release} has steps to charge")
        self._write("inner", release)

    def _write(self, kind: str, release: Release) -> None:
        self._append(self._line_of(kind, release))

    def _line_of(self, kind: str, release: Release, **notes: bool) -> dict[str, Any]:
        if release not in self.record.declared:
            raise LedgerError(f"{release} was not declared in this ledger")
        number = {} if kind == "round" else {"step": self.record.total_steps + 1}
        return {"kind": kind, **number, **release.fields(), **notes}

    def epsilon(self, delta: float, accountant: Accountant = "pld") -> float:
        """Return ε at δ of everything recorded; see `accounting.epsilon`."""
        return self.record.epsilon(delta, accountant)

    @property
    def head(self) -> str:
        """Hash of the last line: the ledger's position."""
        return self.record.hashes[-1]

    def close(self) -> None:
        """Release the file and its lock. A ledger in memory stays as it is."""
        self._closed = True
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _append(self, body: dict[str, Any]) -> None:
        self.world.each("write the ledger", lambda: self._store(body))

    def _store(self, body: dict[str, Any], more: bool = False) -> None:
        """Write a line. `more`: an incomplete one follows it, until the next takes its place."""
        if os.getpid() != self._process:
            raise LedgerError(
                "the ledger was opened by the parent of this forked process: both processes would count "
                "separately and overwrite each other's lines; make the engine in the process that trains"
            )
        if self.path is not None and self._closed:
            raise LedgerError(f"{self.path} was closed: open it again before the next step")
        if self._file >= 0 and not _is_at(Path(str(self.path)), self._file):
            raise LedgerError(
                f"{self.path} was deleted, moved or replaced during training, so it no longer records "
                "the privacy spent: restore the file"
            )
        line, digest = sealed(body, self.record.hashes[-1] if self.record.hashes else GENESIS)
        if self._file >= 0:
            if more:  # first, so that at no time does the file end in a complete line
                _write_all(self._file, _CUT_OFF, self.record.length + len(line))
            _write_all(self._file, line, self.record.length)
        self.record.length += len(line)
        self.record.hashes.append(digest)
        if body["kind"] in COUNTS:
            self.record.count(release_from(body), *COUNTS[body["kind"]])
        if self._file >= 0:
            os.fsync(self._file)


def _header(relation: NeighbouringRelation, dataset_size: int) -> dict[str, Any]:
    # The identity makes two ledgers differ from their first line on.
    identity = secrets.token_hex(8)
    return {
        "kind": "header",
        "schema": SCHEMA,
        "relation": relation.value,
        "dataset_size": dataset_size,
        "id": identity,
        "time": time.time(),
    }


# --- files -------------------------------------------------------------------------------------------------------


def _open_locked(path: Path) -> int:
    """Open for writing under an exclusive lock that ends with the process."""
    import fcntl  # POSIX only: elsewhere ledgers can be read and kept in memory

    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and not path.is_file():
        raise LedgerError(f"{path} is no file: a device or a pipe keeps no record of the privacy spent")
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(file)
        raise LedgerError(
            f"{path} is in use by another process or engine: two trainings cannot write to one ledger at "
            "the same time; end the other training, or close its engine"
        ) from error
    return file


def _is_at(path: Path, file: int) -> bool:
    """Whether an open file is the one at a path."""
    try:
        return os.path.samestat(path.stat(), os.fstat(file))
    except FileNotFoundError:
        return False


def _write_all(file: int, data: bytes, offset: int) -> None:
    # At a known offset: what a failed attempt left behind is overwritten by the next.
    while data:
        written = os.pwrite(file, data, offset)
        data, offset = data[written:], offset + written


def sync_folder(folder: Path) -> None:
    """Make a new or renamed file's name durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
