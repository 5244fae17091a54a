"""Schemes of sampling: that batches are those that the accounting assumes, and what is charged for them."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from lipcompile_privacy.accounting import (
    BudgetError,
    Drawing,
    Mechanism,
    NeighbouringRelation,
    RandomAllocation,
    Sampling,
    WithoutReplacement,
)
from lipcompile_torch.noise.processor import KEY_BYTES, keyed
from lipcompile_torch.train.sampling import SamplingError, Scheme, scheme_for

ADD, REPLACE = NeighbouringRelation.ADD_REMOVE, NeighbouringRelation.REPLACE_ONE
N, B = 60, 9  # round(60/9) = 7 steps an epoch


def scheme(
    sampling: Sampling, relation: Any = REPLACE, groups: int = 1, size: int = N, batch: int = B, seed: int = 0
) -> Scheme:
    drawing = Drawing.of(sampling, batch, size, groups)
    return scheme_for(drawing, relation, keyed(seed.to_bytes(KEY_BYTES, "little")))


def _aes(key: bytes, counter: bytes, count: int) -> bytes:
    cipher = Cipher(algorithms.AES(key), modes.CTR(counter)).encryptor()
    return cipher.update(bytes(count))


def epochs(drawn_from: Scheme, count: int) -> list[list[list[int]]]:
    return [[drawn.indices.tolist() for drawn in drawn_from.epoch()] for _ in range(count)]


def frequencies_fit(counts: list[int], trials: int, probability: float) -> bool:
    """Whether every count lies within 6 standard deviations: for 60 counts, not so in 1e-7 of cases."""
    deviation = math.sqrt(trials * probability * (1 - probability))
    return all(abs(count - trials * probability) <= 6 * deviation for count in counts)


def test_uniforms_are_53_bits_of_a_cipher() -> None:
    """Words of AES-128 in counter mode, of another library than native code. The mean of a million is within 6
    standard errors, and ten bins have a chi-square of 9 degrees of freedom below 60: each fails for 1 key in 5e8.
    """
    entropy = bytes(range(KEY_BYTES))
    words = np.zeros(8, np.uint64)
    words.view(np.uint8)[:] = np.frombuffer(_aes(entropy[:16], entropy[16:], 64), np.uint8)
    drawn_from = scheme_for(Drawing.of("poisson", B, N), ADD, keyed(entropy))
    assert drawn_from._uniform(3).tolist() == [int(word) // 2**11 / 2**53 for word in words[:3]]
    assert drawn_from._uniform(4).tolist() == [int(word) // 2**11 / 2**53 for word in words[4:]]
    numbers = drawn_from._uniform(10**6)
    assert abs(float(numbers.mean()) - 0.5) < 6 / math.sqrt(12 * 10**6)
    counts = torch.histc(numbers, 10, 0, 1)
    assert float(((counts - 1e5) ** 2 / 1e5).sum()) < 60


def test_processes_with_and_without_native_code_draw_the_same_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = epochs(scheme("poisson"), 2)
    monkeypatch.setattr("lipcompile_torch.native.has_aes", lambda: False)
    assert epochs(scheme("poisson"), 2) == expected


@pytest.mark.parametrize(("batch", "count"), [(B, 300), (7, 300), (2, 200), (1, 100), (N, 3)])
def test_a_fixed_size_has_no_repetition_and_every_pair_is_as_likely(batch: int, count: int) -> None:
    """The smallest of N uniforms, for batches of more than 1/8 of the data, and the first different draws."""
    drawn = [found for epoch in epochs(scheme("fixed_size", batch=batch), count) for found in epoch]
    assert {len(found) for found in drawn} == {batch}
    assert all(len(set(found)) == batch for found in drawn)
    singles = Counter(i for found in drawn for i in found)
    pairs = sum({0, 1} <= set(found) for found in drawn)
    assert frequencies_fit([singles[i] for i in range(N)], len(drawn), batch / N)
    assert frequencies_fit([pairs], len(drawn), batch * (batch - 1) / (N * (N - 1)))


def test_a_fixed_size_goes_on_drawing_until_enough_are_different(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn_from = scheme("fixed_size", size=1000, batch=100)
    uniform, asked = drawn_from._uniform, []

    def repetitive(count: int) -> torch.Tensor:
        asked.append(count)
        return uniform(count) * (0.01 if len(asked) < 3 else 1.0)

    monkeypatch.setattr(drawn_from, "_uniform", repetitive)
    batch = drawn_from.batch(0).tolist()
    assert len(asked) > 2
    assert len(set(batch)) == len(batch) == 100
    assert set(range(10)) <= set(batch)


@pytest.mark.parametrize("sampling", ["shuffle", "balls_in_bins"])
def test_every_example_enters_exactly_one_step_of_an_epoch(sampling: Sampling) -> None:
    drawn = epochs(scheme(sampling), 400)
    assert all(sorted(i for batch in epoch for i in batch) == list(range(N)) for epoch in drawn)
    first = Counter(i for epoch in drawn for i in epoch[0])
    assert {len(epoch) for epoch in drawn} == {7}
    assert frequencies_fit([first[i] for i in range(N)], 400, (1 / 7 if sampling == "balls_in_bins" else 9 / 60))


def test_shuffled_batches_have_equal_sizes_and_bins_have_not() -> None:
    assert {len(batch) for batch in epochs(scheme("shuffle"), 1)[0]} == {8, 9}
    sizes = [len(batch) for epoch in epochs(scheme("balls_in_bins"), 50) for batch in epoch]
    assert len(set(sizes)) > 5


def test_bins_are_chosen_independently() -> None:
    # Examples 0 and 1 meet in a bin with probability 1/7: 1,000 epochs, 6 standard deviations, 2e-9.
    meetings = sum(any({0, 1} <= set(batch) for batch in epoch) for epoch in epochs(scheme("balls_in_bins"), 1000))
    assert frequencies_fit([meetings], 1000, 1 / 7)


def test_cyclic_groups_take_turns_at_the_same_expected_batch_size() -> None:
    drawn_from = scheme("cyclic_poisson", groups=3)
    drawn = [drawn for _ in range(400) for drawn in drawn_from.epoch()]
    turns: dict[int, set[int]] = {}
    for one in drawn:
        for index in one.indices.tolist():
            turns.setdefault(index, set()).add(one.step % 3)
    assert all(len(own) == 1 for own in turns.values())
    mean = sum(len(one.indices) for one in drawn) / len(drawn)
    assert abs(mean - B) < 6 * math.sqrt(B / len(drawn)) + 0.1  # 2e-9; Poisson-like variance at most B
    assert [one.round for one in drawn[:7]] == [0, 0, 0, 1, 1, 1, 2]


@pytest.mark.parametrize(("relation", "balanced"), [(REPLACE, True), (ADD, False)])
def test_a_fixed_order_repeats_and_is_balanced_only_where_sizes_are_public(relation: Any, balanced: bool) -> None:
    first, second, third = epochs(scheme("fixed_order", relation), 3)
    assert first == second == third
    assert sorted(i for batch in first for i in batch) == list(range(N))
    assert (max(map(len, first)) - min(map(len, first)) <= 1) is balanced


def test_an_epoch_that_is_broken_off_is_followed_by_a_round_of_its_own() -> None:
    drawn_from = scheme("shuffle")
    broken = drawn_from.epoch()
    started = [next(broken) for _ in range(3)]
    again = list(drawn_from.epoch())
    assert {one.round for one in started} == {0}
    assert [(one.step, one.round) for one in again] == [(7 + step, 1) for step in range(7)]


def test_turns_and_orders_go_on_where_an_epoch_was_broken_off() -> None:
    for sampling in ("cyclic_poisson", "fixed_order"):
        drawn_from = scheme(sampling, groups=3)
        broken = drawn_from.epoch()
        next(broken)
        assert [one.step for one in drawn_from.epoch()] == list(range(1, 8))


@pytest.mark.parametrize("sampling", ["poisson", "balls_in_bins", "fixed_order"])
def test_an_older_iteration_does_not_go_on_beside_a_newer_one(sampling: Sampling) -> None:
    # Two at a time could meet one partition twice, which is no random allocation.
    drawn_from = scheme(sampling)
    older = drawn_from.epoch()
    next(older)
    next(drawn_from.epoch())
    with pytest.raises(SamplingError, match="another iteration"):
        next(older)


@pytest.mark.parametrize(
    ("sampling", "groups", "release", "charges"),
    [
        ("poisson", 1, Mechanism(9 / 60, 2.0), 20),
        ("fixed_size", 1, WithoutReplacement(9, 60, 2.0), 20),
        ("shuffle", 1, Mechanism(1.0, 2.0), 3),
        ("balls_in_bins", 1, RandomAllocation(7, 2.0), 3),
        ("cyclic_poisson", 4, Mechanism(36 / 60, 2.0), 5),
        ("fixed_order", 1, Mechanism(1.0, 2.0), 1),
    ],
)
def test_what_is_charged(sampling: Sampling, groups: int, release: object, charges: int) -> None:
    chosen = scheme(sampling, groups=groups)
    assert chosen.drawing.release(2.0) == release
    assert chosen.drawing.charges(20) == charges
    assert chosen.drawing.charges(0) == 0


def test_schemes_without_an_analysis_are_refused_with_the_reason() -> None:
    with pytest.raises(BudgetError, match=r"moves others to other batches.*replace_one"):
        scheme("shuffle", relation=ADD)
    with pytest.raises(BudgetError, match="at most 6 bands"):
        scheme("cyclic_poisson", groups=7)
    with pytest.raises(BudgetError, match="unknown sampling 'ordered'"):
        Drawing("ordered", 0.1)  # type: ignore[arg-type]
