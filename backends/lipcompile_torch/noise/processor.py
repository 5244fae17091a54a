"""Standard normals on processors, in doubles: random words, Box–Muller, and generators side by side.

Words are those of AES in counter mode by the operating system's entropy, or of SFC64 by a seed. Of two words of
64 bits the first gives a radius and a sign, the second an angle φ of ±π/2:

    r = √(-2·ln U),    the normals are ±r·cos φ and ±r·sin φ.

For ±(cos φ, sin φ) is uniform on the circle, and √(-2·ln U) is the norm of two normals (Box and Muller, Ann. Math.
Stat. 29, 1958). U is an odd multiple of 2^-63, less its 2^-53th part: no normal exceeds √(2·63·ln 2) = 9.346, and
1e-20 of the mass lies beyond.

Native code does it in one pass, where it is there. Torch's operations compute q = ±√(-2·ln U / (1 + tan²φ)) and
q·tan φ, the same numbers: one tangent does for a sine and a cosine. Both are within 2^-51·(r + 1/r) of what their
words say (measured): rounding a word to a double turns φ, and moves r² = -2·ln U, which is all rounding where U is
next to 1. So a seed gives the same noise but for that.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from lipcompile_privacy.ledger import AES, SFC
from numpy.random import SFC64
from numpy.typing import NDArray
from torch import Tensor

from .. import native
from ..native.memory_rows import Part, add_scaled_, entries, in_threads, stretches

Words = NDArray[np.uint64]

BLOCK = 1 << 17
"""Entries that share pairs of words."""

KEY_BYTES = 32
"""Bytes that start a generator of `keyed`: a key of 128 bits, and a counter of as many."""

GENERATORS = 16
"""How many generators there are, and so the most threads that draw."""

STRETCH = 4 * BLOCK
"""Entries that one generator draws for at a time."""

_FEW = 4  # threads of torch
_ALONE = 1 << 15  # entries that torch deals with in the thread that asks
_WARM_UP = 16  # draws of a seeded generator


class Bits(Protocol):
    """A source of random words."""

    def fill_(self, words: Words) -> None:
        """Replace an even number of words by the next ones."""


def generator(seed: int | None) -> str:
    """Return the name of what :func:`started` starts: without a seed a cryptographic generator."""
    return AES if seed is None else SFC


def started(seed: int | None, number: int) -> Bits:
    """Return a generator at its start, see `Generators`.

    Args:
        seed: None: the operating system's entropy.
        number: of the generator.
    """
    if seed is None:
        return keyed(os.urandom(KEY_BYTES))
    source = SFC64(0)
    state: Any = {"state": np.array([seed % 2**64, number, 0, 1], np.uint64)}
    source.state = {"bit_generator": "SFC64", "state": state, "has_uint32": 0, "uinteger": 0}
    source.random_raw(_WARM_UP, output=False)
    return _Chaotic(source)


def keyed(entropy: bytes) -> Bits:
    """Return AES-128 in counter mode; the same words wherever it runs, if their numbers are even.

    Args:
        entropy: `KEY_BYTES` bytes, the key and the first counter.
    """
    key, counter = entropy[:16], entropy[16:]
    return KeyStream(key, counter) if native.has_aes() else _Cipher(key, counter)


class _Chaotic:
    """SFC64."""

    def __init__(self, generator: SFC64) -> None:
        self._generator = generator

    def fill_(self, words: Words) -> None:
        """Replace the words by the next ones."""
        words[:] = self._generator.random_raw(len(words))


class KeyStream:
    """AES-128 in counter mode, by native code.

    Args:
        key, counter: 16 bytes each, the counter that of the first block.
    """

    def __init__(self, key: bytes, counter: bytes) -> None:
        self._start = key + counter
        self._blocks = 0

    def take(self, words: int) -> native.StreamPlace:
        """Return where in the stream the next words are, one more if their number is odd; they are not given
        again.
        """
        first, self._blocks = self._blocks, self._blocks + (words + 1) // 2
        return self._start, first

    def fill_(self, words: Words) -> None:
        """Replace an even number of words by the next ones."""
        native.fill_(words, self.take(len(words)))


class _Cipher:
    """As `KeyStream`, of the package cryptography; it takes 0.4 of the time of SFC64."""

    def __init__(self, key: bytes, counter: bytes) -> None:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

        self._encryptor = Cipher(algorithms.AES(key), modes.CTR(counter)).encryptor()

    def fill_(self, words: Words) -> None:
        """Replace the words by the next ones."""
        words[:] = 0
        written = self._encryptor.update_into(words.view(np.uint8).data, words.view(np.uint8).data)
        if written != words.nbytes:  # the others would be zeros
            raise RuntimeError(
                f"only {written} of {words.nbytes} random bytes were generated: no gradient may be released"
            )


# --- normals ---


def adder(parts: Sequence[Part], threads: int, at_once: int) -> Callable[[Sequence[Part], Bits], None]:
    """Return what adds scale·normal to entries of cuts of these parts, in float64, rounded once.

    Of each BLOCK of entries, the last of them shorter: of 2n words, n half as many as entries, rounded up, words i
    and n + i give the normals of entries i and n + i.

    Args:
        parts: flat tensors, with the scales of their normals.
        threads: for native code.
        at_once: so many entries are dealt with by one operation of torch.
    """
    if native.adds_normals(parts):
        return partial(_add_by_native, threads)
    room = torch.empty(2, BLOCK, dtype=torch.int64, device="cpu")  # whatever torch's default device is
    return partial(_add_by_torch, room, at_once)


def _add_by_native(threads: int, parts: Sequence[Part], bits: Bits) -> None:
    """One pass; of AES, words are made as they are used."""
    if isinstance(bits, KeyStream):
        native.add_normals_(parts, BLOCK, bits.take(entries(parts)), threads)
        return
    for piece in stretches(parts, BLOCK):
        words = np.empty(2 * _half(piece), np.uint64)
        bits.fill_(words)
        native.add_normals_(piece, BLOCK, words, threads)


def _add_by_torch(room: Tensor, at_once: int, parts: Sequence[Part], bits: Bits) -> None:
    """An operation after the other, in room for words and normals, int64 [2, BLOCK]."""
    for block in stretches(parts, BLOCK):
        half = _half(block)
        words, normals = room[0, : 2 * half], room[1, : 2 * half].view(torch.float64)
        bits.fill_(words.numpy().view(np.uint64))
        rows = words[:half], words[half:], normals[:half], normals[half:]
        for pairs in zip(*(torch.split(row, at_once) for row in rows), strict=True):
            _compute(*pairs)
        values = torch.split(normals[: entries(block)], at_once)
        for piece, share in zip(stretches(block, at_once), values, strict=True):
            add_scaled_(piece, share, words.view(torch.float64))


def _half(parts: Sequence[Part]) -> int:
    return (entries(parts) + 1) // 2


def _compute(first: Tensor, second: Tensor, radius: Tensor, ratio: Tensor) -> None:
    """Write the pairs of normals that pairs of words give to radius and ratio; words are overwritten; all [n]."""
    square = second.view(torch.float64)  # memory that is done with, by then
    ratio.copy_(second).mul_(math.pi * 2.0**-64)
    np.tan(ratio.numpy(), out=ratio.numpy()) if _BY_NUMPY else ratio.tan_()
    first.bitwise_or_(1)  # so never 0
    radius.copy_(first).abs_().mul_(_UNIT)
    np.log(radius.numpy(), out=radius.numpy()) if _BY_NUMPY else radius.log_()
    torch.addcmul(_MINUS_HALF, ratio, ratio, value=-0.5, out=square)
    torch.div(square, radius, out=radius).rsqrt_()
    radius.view(torch.int64).bitwise_or_(first.bitwise_and_(_SIGN))
    ratio.mul_(radius)


_UNIT = 2.0**-63 * (1 - 2.0**-53)  # U < 1, so that -ln U > 0
_MINUS_HALF = torch.tensor(-0.5, dtype=torch.float64, device="cpu")
_SIGN = -(2**63)  # the highest bit is that of a word and of a double alike

# numpy's vector code for AVX-512, which wheels for Linux have, takes a fifth of the time of torch's.
_BY_NUMPY = sys.platform == "linux" and torch.backends.cpu.get_cpu_capability() == "AVX512"


# --- generators ---


class Generators:
    """Generators that share out the draws of a step: stretch i is drawn from generator i mod 16.

    So what is drawn does not depend on the number of threads. Without a seed a generator begins anew, from the
    operating system's entropy, at its first use after each `refresh`. It is AES-128 in counter mode (NIST SP
    800-38A), with a key and a first counter of 128 bits each, by native code or by the package cryptography. With
    a seed it is numpy's SFC64, whose words are the seed modulo 2^64, the number of the generator, and 0, with a
    counter from 1, and the first 16 draws are dropped. That is not cryptographic. Its steps are invertible and
    counted, so generators that start apart, of one seed or of several, are never in the same state within 2^64
    draws.

    Native code gives the work on one generator after the other to torch's threads. Without it, where torch has few
    threads, one draws and torch shares out what is computed of the words: torch's other threads keep their
    processors busy for milliseconds after each operation of theirs, and threads of Python would have to take turns
    with them. Where it has many, each generator has a thread of Python.

    Args:
        seed: None: the operating system's entropy.
    """

    def __init__(self, seed: int | None = None) -> None:
        self._seed = seed
        self._generators: list[Bits] = []
        self._stale: set[int] = set()

    def refresh(self) -> None:
        """Take new entropy for what follows; without effect on a seeded source."""
        if self._seed is None:
            self._stale.update(range(len(self._generators)))

    def fill_(self, normals: Tensor) -> None:
        """Replace the entries of a flat float64 tensor by independent standard normals."""
        self.perturb_([(normals.zero_(), 1.0)])

    def perturb_(self, parts: Sequence[Part]) -> None:
        """Add scale·normal to each entry of flat tensors, computed in float64 and rounded to their dtype."""
        cut = list(stretches(parts, STRETCH))
        generators = [self._generator(number) for number in range(min(GENERATORS, len(cut)))]
        threads = torch.get_num_threads()
        if threads <= _FEW or native.adds_normals(parts):
            _perturb(generators, cut, threads, BLOCK)
            return

        def work(number: int) -> None:
            _perturb([generators[number]], cut[number::GENERATORS], 1, _ALONE)

        in_threads(work, range(len(generators)))

    def _generator(self, number: int) -> Bits:
        if number == len(self._generators):
            self._generators.append(started(self._seed, number))
        elif number in self._stale:
            self._generators[number] = started(self._seed, number)
        self._stale.discard(number)
        return self._generators[number]


def _perturb(generators: Sequence[Bits], cut: Sequence[Sequence[Part]], threads: int, at_once: int) -> None:
    """Add noise to stretches, from generators in turn."""
    noise = adder([part for stretch in cut for part in stretch], threads, at_once)
    for number, stretch in enumerate(cut):
        noise(stretch, generators[number % len(generators)])
