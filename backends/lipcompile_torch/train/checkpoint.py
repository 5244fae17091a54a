"""Checkpoints: weights and optimizer state, tied to a place in the privacy ledger."""

from __future__ import annotations

import io
import os
import pickle
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from lipcompile_privacy.errors import CheckpointError as CheckpointError
from torch import Tensor
from torch.optim import Optimizer

from ..nn.constrained import outside
from ..sharding import cut_like, is_shard, whole_state
from .certificate import certificate_of, graph_hash, refuse_unverified
from .ledger import Ledger, LedgerError, sync_folder
from .module import LipschitzModule
from .optimizer import PrivateOptimizer

SCHEMA = "lipcompile.checkpoint/2"
_ARCHIVE = b"PK\x03\x04"  # first bytes of what torch writes since 1.6


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint as stored.

    Args:
        steps: steps in the ledger when it was saved. The ledger, which may be ahead, records the privacy spent.
        ledger_head: hash of the ledger's last line at that time.
        notes: what the caller stored beside it: numbers, strings, lists and dicts.
        states: state dicts of the module and the optimizer.
        certificate: of the module that it is of; None if that had none.
    """

    steps: int
    ledger_head: str
    notes: dict[str, Any]
    states: dict[str, Any]
    certificate: dict[str, Any] | None


def save_checkpoint(
    path: str | os.PathLike[str],
    module: LipschitzModule,
    optimizer: Optimizer,
    ledger: Ledger,
    notes: Mapping[str, Any] | None = None,
) -> None:
    """Write a checkpoint atomically: after a power cut there is the old one or the new one.

    It holds the module's certificate, which says how it is trained, and nothing that was not released with noise:
    gradients are not stored. Of several processes, which all call this, rank 0 writes; what is sharded is stored
    whole, so that another number of them can go on from it.

    Raises:
        OSError: it could not be written; the old one is untouched.
    """
    content = {
        "schema": SCHEMA,
        "steps": ledger.record.total_steps,
        "ledger_head": ledger.head,
        "notes": dict(notes or {}),
        "certificate": _certificate(module, optimizer),
        "states": whole_state({"module": module.state_dict(), "optimizer": optimizer.state_dict()}),
    }
    ledger.world.first("save a checkpoint", lambda: _write(Path(path), content))


def _certificate(module: LipschitzModule, optimizer: Optimizer) -> dict[str, Any] | None:
    """Return the module's certificate, with the training as it is run in the place of that which was planned."""
    document = certificate_of(module)
    if document is None or not isinstance(optimizer, PrivateOptimizer):
        return document
    return {**document, "training": optimizer.training}


def _write(target: Path, content: Mapping[str, Any]) -> None:
    temporary, stored = target.with_name(f".{target.name}.{os.getpid()}.tmp"), io.BytesIO()
    torch.save(content, stored)  # in memory, as it is read: of a full disk, torch would speak of its archive
    try:
        with temporary.open("wb") as file:
            file.write(stored.getbuffer())
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(target.parent)


def read_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Read a checkpoint; runs no code from the file.

    Raises:
        CheckpointError: the file is not a checkpoint.
        OSError: it cannot be read.
    """
    stored = io.BytesIO(Path(path).read_bytes())
    try:
        content = load_intact(stored)
        if content["schema"] != SCHEMA:
            raise ValueError
        return checkpoint_of(content)
    except (pickle.UnpicklingError, RuntimeError, OSError, EOFError, LookupError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path} is not a checkpoint of lipcompile, or it is damaged") from error


def checkpoint_of(content: Mapping[str, Any]) -> Checkpoint:
    """Return what the content of a file of `SCHEMA` says; raises LookupError, TypeError, ValueError for others."""
    own = content["certificate"]
    return Checkpoint(
        int(content["steps"]),
        str(content["ledger_head"]),
        dict(content["notes"]),
        dict(content["states"]),
        None if own is None else dict(own),
    )


def load_intact(stored: io.BytesIO) -> Any:
    """Return what `torch.save` wrote, by tensors on the CPU; runs no code from it.

    Raises:
        ValueError: the content is not that of its checksums, which torch itself does not look at.
        RuntimeError, OSError, EOFError, LookupError, UnpicklingError: it is something else.
    """
    if bytes(stored.getbuffer()[:4]) == _ARCHIVE:
        try:
            with zipfile.ZipFile(stored) as archive:
                damaged = archive.testzip()
        except Exception as error:  # of many kinds, by what is damaged
            raise ValueError(str(error)) from error
        if damaged:
            raise ValueError(f"{damaged} is damaged")
    stored.seek(0)
    return torch.load(stored, map_location="cpu", weights_only=True)


def restore(checkpoint: Checkpoint, module: LipschitzModule, optimizer: Optimizer, ledger: Ledger) -> None:
    """Put a checkpoint's state into a module and an optimizer, for training to go on under `ledger`.

    Formal guarantees: the ledger contains the checkpoint's place, so that what it says was spent covers the loaded
    weights; the module computes the graph that the checkpoint was trained with, by the certificates of both; the
    weights lie in their constraint sets, and were not moved there by more than rounding. Randomness is not
    restored: noise is always fresh.

    Raises:
        LedgerError: the ledger lacks the checkpoint's place: it is older than the checkpoint, or another one.
        CheckpointError: the state is not that of this module and optimizer, not finite, or outside of the
            constraint sets.
    """
    if checkpoint.ledger_head not in ledger.record.hashes:
        raise LedgerError(
            f"the ledger {ledger.path or 'in memory'} does not contain the steps of this checkpoint: it "
            "is an older copy or belongs to another run, and would under-count the privacy spent; use "
            "the ledger that belongs to the checkpoint"
        )
    if graph_hash(checkpoint.certificate) != graph_hash(certificate_of(module)):
        raise CheckpointError(
            "the checkpoint belongs to another model: the graphs in the two certificates differ; resume "
            "with the module that was trained, or load only the weights"
        )
    refuse_unverified(checkpoint.certificate, CheckpointError, "the checkpoint's certificate")
    try:
        _refuse_outside(module, checkpoint.states["module"])
        module.load_state_dict(_cut(checkpoint.states["module"], module.state_dict()))
        module.project_()
        optimizer.load_state_dict(_cut_optimizer(checkpoint.states["optimizer"], optimizer))
    except (RuntimeError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"the checkpoint does not fit this module and optimizer: {error}") from error


def _refuse_outside(module: LipschitzModule, state: Mapping[str, Any]) -> None:
    found = outside(module, state)
    if found:
        raise CheckpointError(
            f"weights of the checkpoint violate their constraints: {', '.join(found)}; training of this "
            "module never writes such weights, so the file was changed or belongs to another module"
        )


def _cut(state: Mapping[str, Any], like: Mapping[str, Any]) -> dict[str, Any]:
    """Return whole tensors cut into shards where those of the same name are."""
    return {
        name: cut_like(value, like[name]) if is_shard(like.get(name)) else value for name, value in state.items()
    }


def _cut_optimizer(state: Mapping[str, Any], optimizer: Optimizer) -> dict[str, Any]:
    parameters = dict(enumerate(parameter for group in optimizer.param_groups for parameter in group["params"]))
    cut = {
        number: {name: _cut_moment(value, parameters.get(number)) for name, value in moments.items()}
        for number, moments in state["state"].items()
    }
    return {**state, "state": cut}


def _cut_moment(value: Any, parameter: Tensor | None) -> Any:
    if is_shard(parameter) and isinstance(value, Tensor) and value.shape == parameter.shape:
        return cut_like(value, parameter)
    return value
