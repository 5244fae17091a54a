"""The privacy ledger: what was released, on disk before it is released.

A ledger is a file of JSON lines, only ever appended to. Line 1 is the header; a `mechanism` line declares a
sampling rate and a noise multiplier before the first step that uses them; a `step` line stands for one training
step. Each line ends in the SHA-256 of the previous line's hash and of its own content, so that a changed, lost or
moved line shows. The chain does not show the loss of whole lines at the end: a checkpoint remembers the hash it
was saved at.

Steps carry no time: the hour stands in headers and declarations for the reader's eye alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..accounting import Accountant, Mechanism, NeighbouringRelation, Run, epsilon

SCHEMA = "lipcompile.ledger/1"
_GENESIS = "0" * 64


class LedgerError(RuntimeError):
    """A ledger that is damaged, in use by another process, or that belongs to something else."""


@dataclass
class LedgerRecord:
    """What a ledger says.

    Args:
        relation: neighbouring relation that the steps are accounted under.
        dataset_size: N, treated as public.
        steps: steps by mechanism. A line that was cut off while being written counts as one step of EVERY declared
            mechanism: it may have been any of them.
        declared: every mechanism declared, in order.
        seeded: some run had a fixed seed: its steps count, but its noise is known to whoever knows the seed.
        interrupted: the last line is incomplete.
        hashes: hash of every complete line, in order.
        length: bytes of the complete lines.
    """

    relation: NeighbouringRelation
    dataset_size: int
    steps: Counter[Mechanism] = field(default_factory=Counter)
    declared: list[Mechanism] = field(default_factory=list)
    seeded: bool = False
    interrupted: bool = False
    hashes: list[str] = field(default_factory=list)
    length: int = 0

    @property
    def total_steps(self) -> int:
        """How many steps were recorded, counting those that may have happened."""
        return self.steps.total()

    @property
    def runs(self) -> list[Run]:
        """The steps, as accounting takes them."""
        return list(self.steps.items())

    def epsilon(self, delta: float, accountant: Accountant = "pld") -> float:
        """Return ε at δ of everything recorded; see `accounting.epsilon`."""
        return epsilon(self.runs, delta, self.relation, accountant)


def read_ledger(path: str | os.PathLike[str]) -> LedgerRecord:
    """Read and verify a ledger without locking it.

    Formal guarantees: every step whose line reached the disk is counted, also if that line is cut off.

    Raises:
        LedgerError: the file is not a ledger, or some line other than a cut-off last one is not what was written.
        OSError: it cannot be read.
    """
    return _parse(Path(path).read_bytes(), str(path))


class Ledger:
    """An open ledger, in a file or in memory.

    Args:
        path: the file, made if missing and locked until `close`; None: kept in memory, and lost with the process.
        relation: under which steps are accounted; must be that of an existing file.
        dataset_size: N; must be that of an existing file.

    Raises:
        LedgerError: the file is damaged, another process is writing it, or it was kept for other data.
        OSError: it cannot be opened or written.
    """

    def __init__(
        self, path: str | os.PathLike[str] | None, relation: NeighbouringRelation, dataset_size: int
    ) -> None:
        self.path = None if path is None else Path(path)
        self.record = LedgerRecord(relation, dataset_size)
        self._file = -1
        if self.path is None:
            self._append(_header(relation, dataset_size))
            return
        self._file = _open_locked(self.path)
        try:
            self._start(relation, dataset_size)
        except BaseException:
            self.close()
            raise

    def _start(self, relation: NeighbouringRelation, dataset_size: int) -> None:
        content = Path(str(self.path)).read_bytes()
        if not content:
            self._append(_header(relation, dataset_size))
            sync_folder(Path(str(self.path)).parent)
            return
        self.record = _parse(content, str(self.path))
        self._check_belongs(relation, dataset_size)
        if self.record.interrupted:
            self._mend(len(content))

    def _check_belongs(self, relation: NeighbouringRelation, dataset_size: int) -> None:
        if (self.record.relation, self.record.dataset_size) != (relation, dataset_size):
            raise LedgerError(
                f"{self.path} was kept for {self.record.dataset_size} examples under "
                f"{self.record.relation.value}, not for {dataset_size} under {relation.value}: use another file"
            )

    def _mend(self, old_length: int) -> None:
        """Write the steps that a cut-off line may have been over it; at no time are there fewer."""
        self.record.interrupted = False
        self.record.steps.subtract(self.record.declared)  # counted when read; `record_step` counts them again
        for mechanism in self.record.declared:
            self.record_step(mechanism, recovered=True)
        if self.record.length < old_length:
            os.ftruncate(self._file, self.record.length)
            os.fsync(self._file)

    def declare(self, mechanism: Mechanism, seeded: bool = False) -> None:
        """Announce a mechanism before its first step, durably."""
        self._append({"kind": "mechanism", **_fields(mechanism), "seeded": seeded, "time": time.time()})
        self.record.seeded |= seeded
        if mechanism not in self.record.declared:
            self.record.declared.append(mechanism)

    def record_step(self, mechanism: Mechanism, recovered: bool = False) -> None:
        """Count one step of a declared mechanism.

        Formal guarantees: on return the line is on the disk (fsync). If writing fails the step is not counted or
        is counted once too often, never too seldom, provided the caller takes the step only after the return.

        Raises:
            LedgerError: the mechanism was not declared.
            OSError: the line could not be written.
        """
        if mechanism not in self.record.declared:
            raise LedgerError(f"{mechanism} was not declared in this ledger")
        note = {"recovered": True} if recovered else {}
        self._append({"kind": "step", "step": self.record.total_steps + 1, **_fields(mechanism), **note})

    def epsilon(self, delta: float, accountant: Accountant = "pld") -> float:
        """Return ε at δ of everything recorded; see `accounting.epsilon`."""
        return self.record.epsilon(delta, accountant)

    @property
    def head(self) -> str:
        """Hash of the last line: the ledger's position."""
        return self.record.hashes[-1]

    def close(self) -> None:
        """Release the file and its lock. A ledger in memory stays as it is."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _append(self, body: dict[str, Any]) -> None:
        if self.path is not None and self._file < 0:
            raise LedgerError(f"{self.path} was closed: open it again before the next step")
        line, digest = _line(body, self.record.hashes[-1] if self.record.hashes else _GENESIS)
        if self._file >= 0:
            _write_all(self._file, line, self.record.length)
        self.record.length += len(line)
        self.record.hashes.append(digest)
        if body["kind"] == "step":
            self.record.steps[_mechanism(body)] += 1
        if self._file >= 0:
            os.fsync(self._file)


# --- lines -------------------------------------------------------------------------------------------------------


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


def _fields(mechanism: Mechanism) -> dict[str, float]:
    return {"sampling_rate": mechanism.sampling_rate, "noise_multiplier": mechanism.noise_multiplier}


def _mechanism(body: dict[str, Any]) -> Mechanism:
    return Mechanism(float(body["sampling_rate"]), float(body["noise_multiplier"]))


def _line(body: dict[str, Any], previous: str) -> tuple[bytes, str]:
    """Return a line, newline included, and its hash."""
    digest = hashlib.sha256((previous + json.dumps(body)).encode()).hexdigest()
    return (json.dumps({**body, "hash": digest}) + "\n").encode(), digest


def _parse(content: bytes, name: str) -> LedgerRecord:
    *lines, tail = content.split(b"\n")
    if not lines:
        raise LedgerError(
            f"{name} has no complete header: it is no ledger, or was cut off before any step and can be deleted"
        )
    record: LedgerRecord | None = None
    previous = _GENESIS
    for number, line in enumerate(lines, 1):
        body, previous = _verified(line, previous, f"{name}, line {number}")
        with _explained(f"{name}, line {number}"):
            if record is None:
                record = _new_record(body)
            else:
                _take(record, body)
            record.hashes.append(previous)
    assert record is not None
    record.length = len(content) - len(tail)
    record.interrupted = bool(tail)
    if tail:  # a mechanism is on the disk before its first step: without one no step can have been cut off
        record.steps.update(record.declared)
    return record


def _verified(line: bytes, previous: str, where: str) -> tuple[dict[str, Any], str]:
    with _explained(where):
        body = json.loads(line)
        del body["hash"]
        expected, digest = _line(body, previous)
        if expected != line + b"\n":
            raise ValueError
        return body, digest


@contextlib.contextmanager
def _explained(where: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LedgerError(
            f"{where}: this line is not what was written; the ledger was changed or damaged, and what it says of "
            "the privacy spent cannot be trusted"
        ) from error


def _new_record(body: dict[str, Any]) -> LedgerRecord:
    if body["kind"] != "header" or body["schema"] != SCHEMA:
        raise ValueError
    return LedgerRecord(NeighbouringRelation(body["relation"]), int(body["dataset_size"]))


def _take(record: LedgerRecord, body: dict[str, Any]) -> None:
    mechanism = _mechanism(body)
    if body["kind"] == "step" and mechanism in record.declared:
        record.steps[mechanism] += 1
    elif body["kind"] == "mechanism":
        record.seeded |= bool(body["seeded"])
        if mechanism not in record.declared:
            record.declared.append(mechanism)
    else:
        raise ValueError


# --- files -------------------------------------------------------------------------------------------------------


def _open_locked(path: Path) -> int:
    """Open for writing under an exclusive lock that ends with the process."""
    import fcntl  # POSIX only: elsewhere ledgers can be read and kept in memory

    path.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(file)
        raise LedgerError(
            f"{path} is in use by another process or engine: two trainings cannot write one ledger at a time; "
            "end the other one, or close its engine"
        ) from error
    return file


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
