"""A fingerprint of tensors that depends on every bit and on its place: a keyed universal hash.

Let w_bj be the bits of the tensors as signed words of 32 bits, BLOCK of them to a block b; each tensor begins a
block and is filled up with zeros. Of a key that consists of k_j and K_b, all uniform modulo 2⁶⁴ and independent,

    F = Σ_b K_b·Σ_j k_j·w_bj  modulo 2⁶⁴.

Formal guarantees: let contents of the same sizes, chosen without regard to the key, differ in any way: in a bit,
or by two words that were exchanged. They have the same F with probability below 2⁻²⁸. Proof: let block b differ by
d_j = w_bj - w'_bj with |d_j| < 2³², and let 2ᵗ be the largest power of two that divides all d_j: t ≤ 31. Then
D_b = Σ_j k_j·d_j is 2ᵗ times a uniform number modulo 2⁶⁴⁻ᵗ. So 2ᵛ is the largest power that divides it with
probability 2ᵗ⁻ᵛ⁻¹, for t ≤ v < 64, and it is zero with probability 2ᵗ⁻⁶⁴. Given all D, Σ_b K_b·D_b is zero with
probability 2ᵛ⁻⁶⁴ at most, as K_b is uniform. The sum over v is (66 - t)·2ᵗ⁻⁶⁵ ≤ 35·2⁻³⁴ < 2⁻²⁸.

The words of a key are those of SHAKE-256 of a secret, which nobody tells from uniform ones who does not know it.
Native code reads memory once. Torch's operations give the same number, in a few passes over pieces.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from functools import cache, reduce
from hashlib import shake_256
from itertools import groupby

import torch
from torch import Tensor

from .. import native
from ..devices import at_once
from .memory_rows import flat, stretches

BLOCK = 1024
"""Words of a block: their keys stay in a cache."""

_AT_ONCE = 2**6, 2**13  # blocks whose products in 64 bits are there at a time


class Key:
    """The key of fingerprints; the fingerprints of two keys are independent.

    Args:
        secret: 32 random bytes.
    """

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._words: dict[tuple[str, torch.device], Tensor] = {}

    def inner(self, device: torch.device) -> Tensor:
        """Return k, int64 [BLOCK]."""
        return self._first("inner", BLOCK, device)

    def outer(self, device: torch.device, count: int) -> Tensor:
        """Return the first of K, int64 [count]."""
        return self._first("outer", count, device)

    def _first(self, name: str, count: int, device: torch.device) -> Tensor:
        known = self._words.get((name, device))
        if known is None or len(known) < count:
            size = 1 << max(count - 1, BLOCK - 1).bit_length()
            stream = shake_256(self._secret + name.encode()).digest(8 * size)
            known = self._words[name, device] = torch.frombuffer(bytearray(stream), dtype=torch.int64).to(device)
        return known[:count]


def new_secret() -> bytes:
    """Return what a key is made of."""
    return secrets.token_bytes(32)


@cache
def own_key() -> Key:
    """Return the key of this process, which nobody else knows."""
    return Key(new_secret())


def in_memory(tensor: Tensor) -> Tensor:
    """Return the entries [n] in the order of memory, a view if there are no gaps."""
    row = flat(tensor)
    return in_order(tensor) if row is None else row


def in_order(tensor: Tensor) -> Tensor:
    """Return the entries [n] in the order of axes, a view if memory has the same."""
    return tensor.contiguous().view(-1)


def fingerprint(rows: Sequence[Tensor], key: Key) -> Tensor:
    """Return F of tensors [n], each of entries side by side: 0-dim int64, on the device of the first."""
    sums: list[Tensor] = []
    first = 0
    for (is_native, device), alike in groupby(rows, lambda row: (native.has_words(row), row.device)):
        group = list(alike)
        count = sum(-(-row.nbytes // (4 * BLOCK)) for row in group)
        keys = key.inner(device), key.outer(device, first + count)[first:]
        sums.append(native.fingerprint_rows(group, *keys) if is_native else _by_torch(group, *keys))
        first += count
    if not sums:
        return torch.zeros((), dtype=torch.int64)
    return reduce(torch.add, (value.to(sums[0].device) for value in sums))


def _by_torch(rows: Sequence[Tensor], inner: Tensor, outer: Tensor) -> Tensor:
    """Return F of tensors on one device, whose blocks have the keys ``outer``."""
    # Entries of 32 bits are put together as they are, and read as words then: an operation for all of them.
    kind = torch.float32 if all(row.dtype == torch.float32 for row in rows) else torch.int32
    parts = [(part, 1.0) for row in rows for part in _whole_blocks(row, kind)]
    sums = [
        (torch.cat([piece for piece, _ in pieces]).view(torch.int32).view(-1, BLOCK) * inner).sum(dim=1)
        for pieces in stretches(parts, BLOCK * at_once(inner.device, *_AT_ONCE))
    ]
    return ((sums[0] if len(sums) == 1 else torch.cat(sums)) * outer).sum() if sums else inner.new_zeros(())


@cache
def _zeros(count: int, kind: torch.dtype, device: torch.device) -> Tensor:
    return torch.zeros(count, dtype=kind, device=device)


def _whole_blocks(row: Tensor, kind: torch.dtype) -> Iterator[Tensor]:
    """Yield the words of a tensor [n], and as many zeros as fill the last block."""
    words = row if row.dtype == kind else _words(row)
    yield words
    yield _zeros(-words.shape[0] % BLOCK, kind, row.device)


def _words(row: Tensor) -> Tensor:
    """Return the bits of a tensor [n] as words, int32, in a copy if they are no multiple of 32, or lie so."""
    if row.nbytes % 4 == 0 and row.storage_offset() * row.element_size() % 4 == 0:
        return row.view(torch.int32)
    padded = torch.zeros(-(-row.nbytes // 4) * 4, dtype=torch.uint8, device=row.device)
    padded[: row.nbytes] = row.view(torch.uint8)
    return padded.view(torch.int32)
