"""Fingerprints against their definition in integers, and against whoever writes where torch does not count."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from lipcompile_torch import native
from lipcompile_torch.distributed import World
from lipcompile_torch.native.fingerprint import BLOCK, Key, fingerprint, in_memory
from lipcompile_torch.train.checks import UNREAD, Contents, current_contents
from lipcompile_torch.train.reduction import Reduction
from torch import Tensor, nn

SECRET = bytes(range(32))


def contents_of(module: nn.Module, before: Contents = UNREAD) -> Contents:
    """Its parameters as they are now, by views of what they were before where these are still views of them."""
    return current_contents(dict(module.named_parameters()), before)


def words_of(row: Tensor) -> list[int]:
    """The bits of a tensor as signed words, whole blocks of them."""
    bits = bytes(row.contiguous().view(-1).view(torch.uint8).tolist())
    bits += bytes(-len(bits) % (4 * BLOCK))
    return [int.from_bytes(bits[i : i + 4], "little", signed=True) for i in range(0, len(bits), 4)]


def key_words(name: bytes, count: int) -> list[int]:
    stream = hashlib.shake_256(SECRET + name).digest(8 * count)
    return [int.from_bytes(stream[i : i + 8], "little") for i in range(0, 8 * count, 8)]


def defined(rows: list[Tensor]) -> int:
    """F, in integers."""
    words = [word for row in rows for word in words_of(row)]
    inner, outer = key_words(b"inner", BLOCK), key_words(b"outer", len(words) // BLOCK)
    return sum(outer[i // BLOCK] * inner[i % BLOCK] * word for i, word in enumerate(words)) % 2**64


def random_bits(size: int) -> Tensor:
    return torch.randint(256, (size,), dtype=torch.uint8, generator=torch.Generator().manual_seed(size))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.usefixtures("passes")
def test_fingerprints_are_what_they_are_defined_to_be(threads: int) -> None:
    """Of sizes that are no multiple of a word, or of a block; and of tensors that begin anywhere."""
    sizes = (0, 1, 2, 3, 4, 5, 4 * BLOCK - 1, 4 * BLOCK, 4 * BLOCK + 1, 4 * BLOCK * 70 + 12)
    rows = [random_bits(size) for size in sizes]
    rows += [random_bits(100)[1:], random_bits(200).view(torch.float16)[1:7], random_bits(800).view(torch.float64)]
    rows += [random_bits(30).view(torch.bfloat16), random_bits(80).view(torch.float32)[3:]]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    for given in (rows, rows[::-1], rows[:1], [], *([row] for row in rows)):
        found = fingerprint(given, Key(SECRET))
        assert found.dtype == torch.int64
        assert (int(found) - defined(given)) % 2**64 == 0
    torch.set_num_threads(before)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("size", [2**22 + 5, 2**22, 4 * BLOCK * 64 * 17 + 1])
def test_native_fingerprints_of_what_is_shared_out_are_those_by_torch(
    size: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    row, before = random_bits(size), torch.get_num_threads()
    torch.set_num_threads(threads)
    found = fingerprint([row, row[7:]], Key(SECRET))
    torch.set_num_threads(before)
    monkeypatch.setattr(native, "kernels", None)
    assert torch.equal(found, fingerprint([row, row[7:]], Key(SECRET)))


def test_fingerprints_of_two_keys_have_nothing_to_do_with_each_other() -> None:
    row = random_bits(100)
    keys = Key(SECRET), Key(SECRET[::-1])
    assert not torch.equal(*(fingerprint([row], key) for key in keys))
    assert int(keys[0].outer(row.device, 5000)[7]) % 2**64 == key_words(b"outer", 8)[7]


# --- parameters ---


def exchanged(weight: Tensor) -> None:
    """Entries 0 and 7, of which each makes a word of 64 bits with another: 0 and 6, 1 and 7."""
    pairs = weight.view(-1)
    pairs[[0, 1, 6, 7]] = pairs[[6, 7, 0, 1]]


def turned(weight: Tensor) -> None:
    weight.copy_(weight.flip(0))


def moved(weight: Tensor) -> None:
    weight.copy_(weight.view(-1).roll(2 * BLOCK).view(weight.shape))


@pytest.mark.parametrize("change", [exchanged, turned, moved, lambda weight: weight.mul_(-1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
@pytest.mark.usefixtures("passes")
def test_words_that_change_places_are_seen(change: Callable[[Tensor], None], dtype: torch.dtype) -> None:
    """A sum of words stays the same under all but the last, and in float64 under that."""
    layer = nn.Linear(64, 64).to(dtype)
    before = contents_of(layer)
    assert before.same(contents_of(layer, before))
    change(layer.weight.data)
    assert not before.same(contents_of(layer, before))


def test_parameters_that_exchange_what_they_hold_are_seen() -> None:
    pair = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    before = contents_of(pair)
    one, other = (part.weight for part in pair)
    one.data, other.data = other.data, one.data
    assert not before.same(contents_of(pair, before))


def test_a_parameter_that_lies_otherwise_is_another() -> None:
    """The same memory read along other axes, with zeros at its end, or as numbers of another kind."""
    layer = nn.Linear(8, 8, bias=False)
    original = layer.weight.data
    before = contents_of(layer)
    for other in (original.T, torch.cat([original, torch.zeros(1, 8)]), original.view(16, 4)):
        layer.weight.data = other
        assert not before.same(contents_of(layer, before))
    layer.weight.data = original
    assert before.same(contents_of(layer, before))


def test_views_are_made_again_only_where_memory_is_another() -> None:
    layer = nn.Linear(8, 8)
    before = contents_of(layer)
    layer.weight.data = layer.weight.data.clone()
    after = contents_of(layer, before)
    assert before.same(after)
    assert after.views["bias"] is before.views["bias"]
    assert after.views["weight"].data_ptr() == layer.weight.data_ptr() != before.views["weight"].data_ptr()


def test_a_parameter_that_is_negated_without_a_copy_is_seen() -> None:
    layer = nn.Linear(8, 8)
    before = contents_of(layer)
    layer.weight.data = torch._neg_view(layer.weight.data)
    assert not before.same(contents_of(layer, before))


def test_frozen_parameters_are_among_them() -> None:
    layer = nn.Linear(8, 8).requires_grad_(requires_grad=False)
    before = contents_of(layer)
    layer.weight.data[0, 0] += 1
    assert not before.same(contents_of(layer, before))


@pytest.mark.usefixtures("passes")
def test_every_bit_of_a_parameter_is_in_its_fingerprint_however_it_lies() -> None:
    chance = random.Random(5)
    whole = torch.randn(6, 4, 10, generator=torch.Generator().manual_seed(0))
    cuts = whole[:, :, :5], whole[:, 1:2, ::2], whole[0, :2, :1], whole[0, 0, :7], whole.half()[..., :3]
    for given in (whole, whole.mT, *cuts):
        holder = nn.ParameterList([nn.Parameter(given)])
        before = contents_of(holder)
        assert before.same(contents_of(holder, before))
        for _ in range(5):
            place = tuple(chance.randrange(size) for size in given.shape)
            bits = holder[0].data.view(torch.int32 if given.element_size() == 4 else torch.int16)
            bits[place] ^= 1 << chance.randrange(8 * given.element_size() - 1)
            after = contents_of(holder, before)
            assert not before.same(after)
            before = after


def test_what_has_no_memory_of_the_processors_is_left_to_torch() -> None:
    assert not native.has_words(torch.zeros(4, device="meta"))
    assert fingerprint([torch.zeros(4, device="meta")], Key(SECRET)).device.type == "meta"
    gaps = torch.zeros(4, 4)[:, :2]
    assert in_memory(gaps).is_contiguous()


class OneOfTwo(World):
    """Stands for a process that is told the key."""

    size = 2

    def first(self, doing: str, compute: Callable[[], Any]) -> Any:
        assert doing == "share a key"
        assert len(compute()) == len(SECRET)
        return SECRET


def test_processes_compare_weights_by_one_key_whatever_the_order_of_axes() -> None:
    weights = []
    for memory_format in (torch.contiguous_format, torch.channels_last):
        torch.manual_seed(0)
        convolution = nn.Conv2d(3, 4, 3, bias=False)
        convolution.weight.data = convolution.weight.data.to(memory_format=memory_format)
        reduction = Reduction(convolution, OneOfTwo())
        reduction.share_weights_()
        weights.append(reduction.weights())
        assert (weights[-1][0] - defined([convolution.weight.detach()])) % 2**64 == 0
    assert weights[0] == weights[1]
