"""Sums over all examples: their noise, and their charge."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from lipcompile_privacy.accounting import BudgetError, Mechanism, epsilon
from lipcompile_privacy.ledger import read_ledger
from lipcompile_torch import PrivacyEngine
from lipcompile_torch.noise.mechanism import NoiseSource
from lipcompile_torch.train import sums
from lipcompile_torch.train.engine import SeededWarning
from lipcompile_torch.train.sums import release_sum

ENTRIES = 40_000


def test_noise_has_the_standard_deviation_of_the_norm() -> None:
    # The sample variance of n normals is within 5·√(2/n) = 3.5 % of the truth but for 6e-7 of runs, and its root
    # within 1.8 %: noise that is 5 % too small fails.
    engine = PrivacyEngine()
    released = release_sum(engine, torch.full((ENTRIES,), 7.0, dtype=torch.float64), 3.0, 20.0, 100)
    assert abs(released.mean().item() - 7.0) < 5 * 60 / math.sqrt(ENTRIES)
    assert released.std().item() == pytest.approx(60.0, rel=0.018)


def test_noise_has_room_for_the_rounding_of_the_sum() -> None:
    # N numbers added one after the other are off by N·u·N·K at most, and so are those of the neighbour.
    rows, total = 10**7, torch.zeros(1, dtype=torch.float64)
    with pytest.warns(SeededWarning):
        few, many = (release_sum(PrivacyEngine(), total, 1.0, 1.0, n, seed=1).item() for n in (1, rows))
    assert abs(many / few) >= 1 + 2 * rows * rows * 2.0**-53


def test_noise_has_room_for_the_rounding_of_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where one row may be twice as long as its bound, noise is twice as large."""
    found = []
    for slack in (0.0, 1.0):
        monkeypatch.setattr(sums, "rounding_slack", lambda _, slack=slack: slack)
        with pytest.warns(SeededWarning):
            found.append(release_sum(PrivacyEngine(), torch.zeros(1, dtype=torch.float64), 1.0, 1.0, 10, seed=1))
    assert float(found[1] / found[0]) == pytest.approx(2)


def test_a_sum_is_charged_before_noise_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = PrivacyEngine(ledger=tmp_path / "ledger.jsonl")
    total = torch.zeros(3, dtype=torch.float64)
    release_sum(engine, total, 1.0, 5.0, 100)
    assert engine.get_epsilon(1e-5) == epsilon([(Mechanism(1.0, 5.0), 1)], 1e-5)

    def broken(*_: object) -> None:
        raise RuntimeError("killed")

    monkeypatch.setattr(NoiseSource, "begin_step", broken)
    with pytest.raises(RuntimeError, match="killed"):
        release_sum(engine, total, 1.0, 5.0, 100)
    engine.close()
    assert read_ledger(tmp_path / "ledger.jsonl").runs == [(Mechanism(1.0, 5.0), 2)]


def test_what_is_no_sum_is_refused_and_not_charged() -> None:
    engine, total = PrivacyEngine(), torch.zeros(3, dtype=torch.float64)
    for wrong in (total.float(), total[None], torch.tensor([math.nan], dtype=torch.float64)):
        with pytest.raises(ValueError, match="float64"):
            release_sum(engine, wrong, 1.0, 5.0, 100)
    for norm in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="norm"):
            release_sum(engine, total, norm, 5.0, 100)
    for sigma in (0.0, -1.0, math.nan):
        with pytest.raises(BudgetError):
            release_sum(engine, total, 1.0, sigma, 100)
    assert engine.get_epsilon(1e-5) == 0


def test_a_seed_repeats_the_noise_and_says_so() -> None:
    total = torch.zeros(3, dtype=torch.float64)
    with pytest.warns(SeededWarning, match="NOT private"):
        first = release_sum(engine := PrivacyEngine(), total, 1.0, 5.0, 100, seed=4)
    assert engine.ledger is not None
    assert engine.ledger.record.seeded
    with pytest.warns(SeededWarning):
        assert torch.equal(first, release_sum(PrivacyEngine(), total, 1.0, 5.0, 100, seed=4))
    assert not torch.equal(first, release_sum(PrivacyEngine(), total, 1.0, 5.0, 100))
