"""Poisson sampling: its law, its empty batches, its pieces, and what it refuses."""

from __future__ import annotations

import math
from collections import UserDict
from typing import Any

import pytest
import torch
from lipcompile_privacy.accounting import Drawing
from lipcompile_torch.noise.processor import KEY_BYTES, keyed
from lipcompile_torch.train.sampler import PrivateLoader
from lipcompile_torch.train.sampling import Poisson, SamplingError
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)


class Listed(Dataset[tuple[Tensor, int]]):
    """A data set without tensors to index."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.full((2, 3), float(index)), index


def tensors(count: int) -> TensorDataset:
    return TensorDataset(torch.arange(count, dtype=torch.float32)[:, None].expand(count, 3), torch.arange(count))


def poisson(dataset: Any, batch_size: int, *, seed: int | None = 0, **options: Any) -> PrivateLoader:
    limit = options.pop("max_physical_batch", None)
    return PrivateLoader(DataLoader(dataset, batch_size=batch_size, **options), limit, seed)


def test_inclusions_are_independent_with_probability_q() -> None:
    # 4000 draws of N = 50 with q = 0.1. Each example's count, the batch size's variance and the correlation of
    # neighbours lie within 6 standard errors: a false alarm in about 52 · 2e-9 of all seeds.
    loader = poisson(tensors(50), 5)
    trials, q = 4000, 0.1
    drawn = torch.zeros(trials, 50, dtype=torch.float64)
    for row in drawn:
        row[loader.scheme.batch(0)] = 1
    error = math.sqrt(q * (1 - q) / trials)
    assert float((drawn.mean(0) - q).abs().max()) < 6 * error
    sizes = drawn.sum(1)
    variance = 50 * q * (1 - q)
    assert abs(float(sizes.var()) - variance) < 6 * variance * math.sqrt(2.2 / trials)
    centred = drawn - q
    correlation = (centred[:, 1:] * centred[:, :-1]).mean() / (q * (1 - q))
    assert abs(float(correlation)) < 6 / math.sqrt(49 * trials)


def test_batch_sizes_vary_and_the_number_of_steps_does_not() -> None:
    loader = poisson(tensors(103), 10)
    assert loader.sampling_rate == 10 / 103
    sizes = [len(x) for x, _ in loader]
    assert len(sizes) == len(loader) == 10
    assert len(set(sizes)) > 3


@pytest.mark.parametrize("dataset", [tensors(30), Listed(30)])
def test_empty_batches_are_yielded_with_shape_and_type(dataset: Any) -> None:
    # Trap 6: q = 1/30, so a third of all batches is empty.
    batches = list(poisson(dataset, 1))
    empty = [(x, y) for x, y in batches if len(x) == 0]
    assert len(batches) == 30
    assert empty
    x, y = empty[0]
    assert x.shape == (0, *dataset[0][0].shape)
    assert x.dtype == torch.float32
    assert y.shape == (0,)
    assert y.dtype == torch.int64


@pytest.mark.parametrize(("dataset", "workers"), [(tensors(40), 0), (Listed(40), 0), (Listed(40), 2)])
def test_pieces_of_a_logical_batch_are_the_batch(dataset: Any, workers: int) -> None:
    whole = poisson(dataset, 10, seed=3)
    split = poisson(dataset, 10, seed=3, max_physical_batch=4, num_workers=workers)
    expected = [whole.scheme.batch(0).tolist() for _ in range(len(whole))]
    found: list[list[int]] = []
    for x, y in split:
        assert split.current is not None
        assert len(x) == len(y) <= 4
        if split.current.position == 0:
            found.append([])
        found[-1] += y.tolist()
        assert split.current.complete == (len(found[-1]) == split.current.examples)
        assert torch.equal(x.reshape(len(x), -1)[:, 0], y.float())
    assert found == expected


def test_the_last_piece_is_known_as_the_last_while_workers_fetch_ahead() -> None:
    loader = poisson(Listed(40), 10, max_physical_batch=3, num_workers=2)
    sizes, seen = [], 0
    for x, _ in loader:
        assert loader.current is not None
        seen += len(x)
        if loader.current.complete:
            assert seen == loader.current.examples
            sizes.append(seen)
            seen = 0
    assert len(sizes) == len(loader)


@pytest.mark.parametrize(
    ("size", "limit"),
    [(2, None), (4, 2)],
    ids=["a step before the one of another iteration", "a piece of another batch"],
)
def test_what_workers_fetched_for_an_older_iteration_is_not_yielded_beside_a_newer_one(
    size: int, limit: int | None
) -> None:
    """All of an epoch was drawn ahead, so the sampler is not asked again."""
    loader = poisson(Listed(4), size, max_physical_batch=limit, num_workers=1)
    older, newer = iter(loader), iter(loader)
    next(older)
    loader.close()
    next(newer)
    if limit is None:
        loader.close()
    with pytest.raises(SamplingError, match="another iteration"):
        next(older)


def test_before_batch_is_called_once_for_each_logical_batch() -> None:
    loader = poisson(tensors(40), 20, max_physical_batch=3)
    calls = []
    loader.before_batch = lambda: calls.append(1)
    assert len(list(loader)) > len(loader) == len(calls)


def test_unseeded_loaders_differ_also_under_one_global_seed() -> None:
    drawn = []
    for _ in range(2):
        torch.manual_seed(0)
        drawn.append(poisson(tensors(1000), 100, seed=None).scheme.batch(0).tolist())
    assert drawn[0] != drawn[1]
    assert poisson(tensors(99), 9).scheme.batch(0).tolist() == poisson(tensors(99), 9).scheme.batch(0).tolist()


def test_small_rates_are_not_rounded() -> None:
    # Float32 uniforms are multiples of 2^-24: below q = 1e-8 there is only 0, which is 6 times too likely.
    rare = Poisson(Drawing("poisson", 1e-8, (1, 10**7)), keyed(bytes(KEY_BYTES)))
    total = sum(len(rare.batch(0)) for _ in range(20))
    assert total <= 14  # Poisson(2): above 14 with probability 1e-8; at 2^-24 it would be Poisson(12)


def test_collate_and_dictionaries_are_kept() -> None:
    def collate(items: list[tuple[Tensor, int]]) -> dict[str, Any]:
        return {"x": torch.stack([x for x, _ in items]), "y": [torch.tensor([y for _, y in items])]}

    for batch in poisson(Listed(10), 1, collate_fn=collate):
        assert batch["x"].shape[1:] == (2, 3)
        assert len(batch["y"][0]) == len(batch["x"])


class Encoding(UserDict[str, Tensor]):
    """What collators of tokenizers return: no dict, with attributes and methods of its own."""

    def __getattr__(self, name: str) -> Tensor:
        return self.data[name]


def test_mappings_of_other_classes_are_kept() -> None:
    def collate(items: list[tuple[Tensor, int]]) -> Encoding:
        return Encoding(x=torch.stack([x for x, _ in items]))

    lengths = set()
    for batch in poisson(Listed(10), 1, collate_fn=collate):
        assert type(batch) is Encoding
        assert batch.x.shape[1:] == (2, 3)
        lengths.add(len(batch.x))
    assert 0 in lengths


def test_a_subset_is_sampled_within_itself() -> None:
    loader = poisson(Subset(tensors(100), range(90, 100)), 5)
    assert loader.sampling_rate == 0.5
    assert all(y >= 90 for _, ys in loader for y in ys)


def test_full_batches_at_rate_one() -> None:
    assert [len(x) for x, _ in poisson(tensors(8), 8)] == [8]


class Stream(IterableDataset[Tensor]):
    def __iter__(self) -> Any:
        return iter(())


@pytest.mark.parametrize(
    ("loader", "said"),
    [
        (lambda: DataLoader(Stream(), batch_size=2), "stream"),
        (lambda: DataLoader(tensors(9), batch_size=None), "no batch_size"),
        (lambda: DataLoader(tensors(9), batch_sampler=[[0, 1]]), "no batch_size"),
        (lambda: DataLoader(tensors(9), batch_size=10), "sampling rate"),
        (lambda: DataLoader(tensors(9), batch_size=3, sampler=SubsetRandomSampler(range(4))), "Subset"),
        (lambda: DataLoader(tensors(9), batch_size=3, sampler=WeightedRandomSampler([1.0] * 9, 9)), "Subset"),
        (lambda: DataLoader(tensors(9), 3, sampler=RandomSampler(range(9), replacement=True)), "Subset"),
    ],
)
def test_loaders_that_cannot_be_sampled_are_refused_with_the_fix(loader: Any, said: str) -> None:
    with pytest.raises(SamplingError, match=said):
        PrivateLoader(loader())


def test_ordered_and_shuffled_loaders_are_both_resampled() -> None:
    assert len(poisson(tensors(9), 3, shuffle=True)) == len(poisson(tensors(9), 3)) == 3
    with pytest.raises(SamplingError, match="max_physical_batch"):
        poisson(tensors(9), 3, max_physical_batch=0)


def test_batches_that_cannot_be_emptied_are_refused() -> None:
    with pytest.raises(SamplingError, match="collate to tensors"):
        list(poisson(Listed(5), 1, collate_fn=lambda items: "text"))  # noqa: ARG005


class Turned(TensorDataset):
    """The second half of the examples, with other signs."""

    def __len__(self) -> int:
        return len(self.tensors[0]) // 2

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        return tuple(-tensor[len(self) + index] for tensor in self.tensors)


def test_examples_are_those_that_the_data_set_gives() -> None:
    """Also of one that is made from tensors, and gives others than these."""
    data = Turned(torch.arange(8.0))
    (batch,) = next(iter(PrivateLoader(DataLoader(data, batch_size=4), seed=0)))
    assert batch.tolist() == [-4.0, -5.0, -6.0, -7.0]
