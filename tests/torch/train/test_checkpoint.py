"""Checkpoints: whole or absent, in the constraint set, and never a way to forget what was spent."""

from __future__ import annotations

import errno
import io
import os
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lipcompile_torch import PrivacyEngine
from lipcompile_torch.certify.constraints import Spectral
from lipcompile_torch.deploy.certification import load_weights
from lipcompile_torch.nn.constrained import outside
from lipcompile_torch.nn.layers import Dense
from lipcompile_torch.train.checkpoint import CheckpointError, read_checkpoint, restore, save_checkpoint
from lipcompile_torch.train.ledger import Ledger, LedgerError
from torch.optim import SGD, Adam

from tests.torch.private_net import backward, private


class Session:
    """A private training with its ledger on disk."""

    def __init__(self, folder: Path) -> None:
        self.engine = PrivacyEngine("rdp", ledger=folder / "ledger.jsonl")
        self.module, self.optimizer, self.loader = private(lambda ps: Adam(ps, lr=0.1), engine=self.engine)
        self.path = folder / "checkpoint.pt"

    @property
    def ledger(self) -> Ledger:
        assert self.engine.ledger is not None
        return self.engine.ledger

    def epoch(self) -> None:
        for x, y in self.loader:
            backward(self.module, x, y)
            self.optimizer.step()

    def save(self) -> None:
        save_checkpoint(self.path, self.module, self.optimizer, self.ledger, {"epoch": 1, "name": "a"})

    def load(self) -> None:
        restore(read_checkpoint(self.path), self.module, self.optimizer, self.ledger)


@pytest.fixture
def saved(tmp_path: Path) -> Session:
    session = Session(tmp_path)
    session.epoch()
    session.save()
    return session


def test_training_goes_on_where_it_was(saved: Session, tmp_path: Path) -> None:
    saved.engine.close()
    resumed = Session(tmp_path)
    resumed.load()
    for name, weight in saved.module.state_dict().items():
        assert torch.equal(weight, resumed.module.state_dict()[name])
    state = resumed.optimizer.state_dict()["state"][0]
    assert torch.equal(state["exp_avg"], saved.optimizer.state_dict()["state"][0]["exp_avg"])
    checkpoint = read_checkpoint(saved.path)
    assert (checkpoint.steps, checkpoint.notes) == (10, {"epoch": 1, "name": "a"})
    resumed.epoch()
    assert resumed.ledger.record.total_steps == 20


def test_what_was_spent_is_what_the_ledger_says(saved: Session, tmp_path: Path) -> None:
    saved.epoch()  # ten steps that no checkpoint knows of
    spent = saved.engine.get_epsilon(1e-5)
    saved.engine.close()
    resumed = Session(tmp_path)
    resumed.load()
    assert resumed.engine.get_epsilon(1e-5) == spent
    assert resumed.ledger.record.total_steps == 20


@pytest.mark.parametrize("case", ["older", "another", "memory"])
def test_a_ledger_without_the_checkpoints_steps_is_refused(saved: Session, tmp_path: Path, case: str) -> None:
    ledger, folder = tmp_path / "ledger.jsonl", tmp_path / "elsewhere"
    folder.mkdir()
    if case == "older":
        lines = ledger.read_bytes().splitlines(keepends=True)
        (folder / "ledger.jsonl").write_bytes(b"".join(lines[:-1]))
    other = Session(folder)
    if case == "another":
        other.epoch()  # as many steps, but not these
    if case == "memory":
        other.engine.close()
        other.engine.ledger = Ledger(None, other.engine.relation, 200)
    shutil.copy(saved.path, other.path)
    before = other.module.state_dict()["inner.weight"].clone()
    with pytest.raises(LedgerError, match="would under-count"):
        other.load()
    assert torch.equal(before, other.module.state_dict()["inner.weight"])


def test_noise_after_loading_is_fresh(saved: Session, tmp_path: Path) -> None:
    saved.engine.close()
    results = []
    for _ in range(2):
        torch.manual_seed(0)
        session = Session(tmp_path)
        session.load()
        session.epoch()
        session.engine.close()
        results.append(session.module.inner.weight.detach().clone())
    assert not torch.equal(*results)


def test_weights_outside_of_their_sets_are_refused(saved: Session) -> None:
    content = torch.load(saved.path, weights_only=True)
    before, weight = saved.module.inner.weight.detach().clone(), content["states"]["module"]["inner.weight"]
    weight *= 1.01 / torch.linalg.matrix_norm(weight, 2)
    torch.save(content, saved.path)
    with pytest.raises(CheckpointError, match=r"inner\.weight \(norm up to 1\.01, allowed 1\)"):
        saved.load()
    assert torch.equal(saved.module.inner.weight, before)
    weight[0, 0] = torch.nan
    torch.save(content, saved.path)
    with pytest.raises(CheckpointError, match="does not fit"):
        saved.load()


@pytest.mark.parametrize(("dtype", "room"), [(torch.float32, 1e-3), (torch.bfloat16, 2.0**-4)])
def test_weights_are_outside_from_a_thousandth_or_eight_roundings_on(dtype: torch.dtype, room: float) -> None:
    """The spectral norm of c·I is c."""
    layer = Dense(4, 4, constraint=Spectral())
    for share, found in ((0.8, []), (1.3, ["weight"])):
        weight = ((1 + share * room) * torch.eye(4)).to(dtype)
        assert [name.split()[0] for name in outside(layer, {"weight": weight})] == found


def test_weights_that_training_left_lie_in_their_sets(tmp_path: Path) -> None:
    """Also those that a drift alone vouched for: no full certificate, and so no refusal, comes between."""
    session = Session(tmp_path)
    for _ in range(8):
        session.epoch()
        session.save()
        assert not outside(session.module, read_checkpoint(session.path).states["module"])
    session.load()
    assert torch.linalg.matrix_norm(session.module.inner.weight.double(), 2) <= 1


def test_a_failed_save_leaves_the_old_checkpoint(saved: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    before = saved.path.read_bytes()
    saved.epoch()

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            saved.save()
    assert saved.path.read_bytes() == before
    assert sorted(path.name for path in saved.path.parent.iterdir()) == ["checkpoint.pt", "ledger.jsonl"]
    saved.save()
    assert read_checkpoint(saved.path).steps == 20


class Full(io.FileIO):
    """A file on a disk that has room for a hundred bytes."""

    def write(self, data: Any) -> int:
        if self.tell() + len(data) > 100:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(data)


def test_a_full_disk_is_told_as_such(saved: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch raises a RuntimeError about its archive when a write in the middle of it fails."""
    before = saved.path.read_bytes()
    saved.epoch()
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", lambda path, mode: Full(path, mode))
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            saved.save()
    assert saved.path.read_bytes() == before


class Evil:
    """Would run code when unpickled."""

    def __reduce__(self) -> Any:
        return (os.abort, ())


@pytest.mark.parametrize("kind", ["text", "truncated", "code", "tensor", "foreign"])
def test_files_that_are_no_checkpoints_are_refused(saved: Session, kind: str) -> None:
    if kind == "text":
        saved.path.write_text("hello")
    elif kind == "truncated":
        saved.path.write_bytes(saved.path.read_bytes()[:-100])
    else:
        torch.save({"code": Evil(), "tensor": torch.ones(3), "foreign": {"schema": "x"}}[kind], saved.path)
    with pytest.raises(CheckpointError, match="is not a checkpoint"):
        saved.load()


def test_one_wrong_bit_of_a_weight_is_seen(saved: Session, tmp_path: Path) -> None:
    """Torch reads it without a word."""
    state = saved.module.state_dict()
    entries = state["inner.weight"].numpy().tobytes()
    plain, legacy = tmp_path / "plain.pt", tmp_path / "legacy.pt"
    torch.save(state, plain)
    torch.save(state, legacy, _use_new_zipfile_serialization=False)  # has no checksums
    for path, load in ((saved.path, read_checkpoint), (plain, partial(load_weights, saved.module))):
        content = bytearray(path.read_bytes())
        content[content.index(entries) + 5] ^= 1
        load(path)
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match="or it is damaged"):
            load(path)
    load_weights(saved.module, legacy)


def test_a_checkpoint_of_another_network_or_optimizer_is_refused(saved: Session) -> None:
    checkpoint = read_checkpoint(saved.path)
    with pytest.raises(CheckpointError, match="does not fit"):
        restore(checkpoint, saved.module, SGD([torch.zeros(1)], lr=0.1), saved.ledger)
    del checkpoint.states["module"]["outer.weight"]
    with pytest.raises(CheckpointError, match="does not fit"):
        restore(checkpoint, saved.module, saved.optimizer, saved.ledger)
