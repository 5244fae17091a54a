"""The content of a ledger: its lines, and their total. `lipcompile_torch.train.ledger` writes them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .accounting import Accountant, NeighbouringRelation, Release, Run, epsilon, release_from
from .errors import LedgerError

AES = "AES-128-CTR"
CHACHA = "ChaCha20"
SFC = "SFC64"
PHILOX = "Philox of torch"

UNKNOWN = "unknown"
"""In place of a name: that of a ledger that was written before they were recorded."""

CRYPTOGRAPHIC = frozenset({AES, CHACHA})
"""Nobody who sees some of the output of one of these is known to be able to compute any of the rest."""


def is_cryptographic(name: str) -> bool | None:
    """Whether noise of a generator is as hard to predict as a cipher to break; None if it is unknown."""
    return None if name == UNKNOWN else name in CRYPTOGRAPHIC


class GeneratorWarning(UserWarning):
    """Noise comes from a generator that is not cryptographic."""


def warn_of(names: Iterable[str], stacklevel: int) -> None:
    """Warn if a generator among these is not cryptographic; stacklevel: see `warnings.warn`."""
    weak = [name for name in names if is_cryptographic(name) is False]
    if weak:
        warnings.warn(
            f"noise comes from {', '.join(weak)}, which is not cryptographic: an attacker who sees part "
            "of its output may compute the rest; use make_private(..., secure=True) to draw noise from "
            "a cipher",
            GeneratorWarning,
            stacklevel + 1,
        )


SCHEMA = "lipcompile.ledger/1"
GENESIS = "0" * 64
# What a line of each kind adds: uses of its release, training steps.
COUNTS = {"step": (1, 1), "round": (1, 0), "inner": (0, 1)}
_INNER = b'{"kind": "inner"'


@dataclass
class LedgerRecord:
    """The content of a ledger.

    Args:
        relation: neighbouring relation that the steps are accounted under.
        dataset_size: N, treated as public.
        steps: training steps by release.
        charges: uses of each release: what was spent. A line that was cut off while being written counts as one
            step and one use of EVERY declared release, since it may have been any of them, unless its beginning
            shows that it belonged to a round, which is charged already.
        declared: every release declared, in order.
        seeded: some run had a fixed seed: its steps count, but its noise is known to whoever knows the seed.
        generators: what noise came from, by the names of `generators`, in the order of their first use.
        delta: that the training was given, as it was declared last; None if no declaration says it.
        interrupted: the last line is incomplete.
        hashes: hash of every complete line, in order.
        length: bytes of the complete lines.
        recovered: the releases that a cut-off line counts for.
    """

    relation: NeighbouringRelation
    dataset_size: int
    steps: Counter[Release] = field(default_factory=Counter)
    charges: Counter[Release] = field(default_factory=Counter)
    declared: list[Release] = field(default_factory=list)
    seeded: bool = False
    generators: list[str] = field(default_factory=list)
    delta: float | None = None
    interrupted: bool = False
    hashes: list[str] = field(default_factory=list)
    length: int = 0
    recovered: tuple[Release, ...] = ()

    @property
    def total_steps(self) -> int:
        """How many steps were recorded, counting those that may have happened."""
        return self.steps.total()

    @property
    def cryptographic(self) -> dict[str, bool | None]:
        """Whether each of `generators` is; None for what is unknown."""
        return {name: is_cryptographic(name) for name in self.generators}

    @property
    def runs(self) -> list[Run]:
        """The charges, as accounting takes them."""
        return list(self.charges.items())

    def declare(
        self, release: Release, seeded: bool, generators: Iterable[str], delta: float | None = None
    ) -> None:
        """Note a release that may be used from now on."""
        self.seeded |= seeded
        self.delta = self.delta if delta is None else delta
        self.generators += [name for name in generators if name not in self.generators]
        if release not in self.declared:
            self.declared.append(release)

    def count(self, release: Release, charges: int, steps: int) -> None:
        """Add uses and training steps of a release."""
        self.charges[release] += charges
        self.steps[release] += steps

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
    return parse(Path(path).read_bytes(), str(path))


def sealed(body: dict[str, Any], previous: str) -> tuple[bytes, str]:
    """Return the line that says this, newline included, and its hash."""
    digest = hashlib.sha256((previous + json.dumps(body)).encode()).hexdigest()
    return (json.dumps({**body, "hash": digest}) + "\n").encode(), digest


def parse(content: bytes, name: str) -> LedgerRecord:
    """Return what the content of a ledger says; raises LedgerError with its name."""
    *lines, tail = content.split(b"\n")
    if not lines:
        raise LedgerError(
            f"{name} has no complete header: it is not a ledger, or it was cut off before the first step "
            "and can be deleted"
        )
    record: LedgerRecord | None = None
    previous = GENESIS
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
    if tail and not tail.startswith(_INNER):
        # A release is on the disk before its first use: without one no use can have been cut off.
        record.recovered = tuple(record.declared)
        for release in record.recovered:
            record.count(release, 1, 1)
    return record


def _verified(line: bytes, previous: str, where: str) -> tuple[dict[str, Any], str]:
    with _explained(where):
        body = json.loads(line)
        del body["hash"]
        expected, digest = sealed(body, previous)
        if expected != line + b"\n":
            raise ValueError
        return body, digest


@contextlib.contextmanager
def _explained(where: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise LedgerError(
            f"{where}: this line was changed or damaged, so the ledger's record of the privacy spent "
            "cannot be trusted"
        ) from error


def _new_record(body: dict[str, Any]) -> LedgerRecord:
    if body["kind"] != "header" or body["schema"] != SCHEMA:
        raise ValueError
    return LedgerRecord(NeighbouringRelation(body["relation"]), int(body["dataset_size"]))


def _take(record: LedgerRecord, body: dict[str, Any]) -> None:
    release = release_from(body)
    if body["kind"] == "mechanism":
        record.declare(release, bool(body["seeded"]), _generators(body), _delta(body))
    elif release in record.declared and (body["kind"] != "inner" or record.charges[release]):
        record.count(release, *COUNTS[body["kind"]])
    else:
        raise ValueError


def _generators(body: dict[str, Any]) -> list[str]:
    names = body.get("generators", [UNKNOWN])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError
    return names


def _delta(body: dict[str, Any]) -> float | None:
    delta = body.get("delta")
    if delta is not None and not (isinstance(delta, float) and 0 < delta < 1):
        raise ValueError
    return delta
