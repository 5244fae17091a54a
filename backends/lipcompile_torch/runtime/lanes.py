"""Standard normals in doubles on processors: Box–Muller over generators that stand side by side.

Of two words of 64 bits the first gives a radius and a sign, the second an angle φ of ±π/2:

    q = ±√(-2·ln U / (1 + tan²φ)),    the normals are q and q·tan φ.

For ±(cos φ, sin φ) = ±(1, tan φ)/√(1 + tan²φ) is uniform on the circle, and √(-2·ln U) is the norm of two normals
(Box and Muller, Ann. Math. Stat. 29, 1958). U is an odd multiple of 2^-63, less its 2^-53th part: no normal
exceeds √(2·63·ln 2) = 9.346, and 1e-20 of the mass lies beyond. One tangent does for a sine and a cosine.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Protocol

import numpy as np
import torch
from numpy.random import SFC64
from numpy.typing import NDArray
from torch import Tensor

from .flat import Part, add_scaled_, entries, in_threads, stretches

LANES = 16
"""How many generators there are, and so the most threads that draw."""

BLOCK = 1 << 17
"""Normals that are computed together: a megabyte."""

STRETCH = 4 * BLOCK
"""Entries that one generator draws for at a time."""

_WARM_UP = 16
_FEW = 4  # threads of torch
_ALONE = 1 << 15  # entries that torch deals with in the thread that asks


class Lanes:
    """Generators that share out the draws of a step: stretch i is drawn from lane i mod 16.

    So what is drawn does not depend on the number of threads. Without a seed a lane begins anew, from the
    operating system's entropy, at its first use after each `refresh`. It is AES-128 in counter mode (NIST SP
    800-38A) where the package cryptography is there, with a key and a first counter of 128 bits each; else numpy's
    SFC64: three words of state, 192 bits of entropy, and a counter from 1. With a seed it is always SFC64, its
    words are the seed modulo 2^64, the number of the lane, and 0, and the first 16 draws are dropped. Steps of
    that generator are invertible and counted, so lanes that start apart, of one seed or of several, are never in
    the same state within 2^64 draws.

    Where torch has few threads, one draws and torch shares out what is computed of the words: torch's other
    threads keep their processors busy for milliseconds after each operation of theirs, and threads of Python would
    have to take turns with them. Where it has many, each lane has a thread.

    Args:
        seed: None: the operating system's entropy.
    """

    def __init__(self, seed: int | None = None) -> None:
        self._seed = seed
        self._lanes: list[Bits] = []
        self._stale: set[int] = set()

    def refresh(self) -> None:
        """Take new entropy for what follows; without effect on a seeded source."""
        if self._seed is None:
            self._stale.update(range(len(self._lanes)))

    def fill_(self, normals: Tensor) -> None:
        """Replace the entries of a flat float64 tensor by independent standard normals."""
        self.perturb_([(normals.zero_(), 1.0)])

    def perturb_(self, parts: Sequence[Part]) -> None:
        """Add scale·normal to each entry of flat tensors, computed in float64 and rounded to their dtype."""
        cut = list(stretches(parts, STRETCH))
        lanes = [self._lane(number) for number in range(min(LANES, len(cut)))]
        if torch.get_num_threads() <= _FEW:
            _perturb(lanes, cut, BLOCK)
            return
        in_threads(lambda number: _perturb([lanes[number]], cut[number::LANES], _ALONE), range(len(lanes)))

    def _lane(self, number: int) -> Bits:
        if number == len(self._lanes):
            self._lanes.append(_started(self._seed, number))
        elif number in self._stale:
            self._lanes[number] = _started(self._seed, number)
        self._stale.discard(number)
        return self._lanes[number]


class Bits(Protocol):
    """A source of random words."""

    def fill_(self, words: NDArray[np.uint64]) -> None:
        """Replace BLOCK words at most by the next ones."""
        ...  # pragma: no cover


def _started(seed: int | None, number: int) -> Bits:
    if seed is None and (aes := _aes()) is not None:
        return _KeyStream(aes)
    lane = SFC64(0)
    words = np.frombuffer(os.urandom(24), np.uint64) if seed is None else [seed % 2**64, number, 0]
    state: Any = {"state": np.array([*words, 1], np.uint64)}
    lane.state = {"bit_generator": "SFC64", "state": state, "has_uint32": 0, "uinteger": 0}
    if seed is not None:
        lane.random_raw(_WARM_UP, output=False)
    return _Chaotic(lane)


class _Chaotic:
    """SFC64."""

    def __init__(self, generator: SFC64) -> None:
        self._generator = generator

    def fill_(self, words: NDArray[np.uint64]) -> None:
        """Replace the words by the next ones."""
        words[:] = self._generator.random_raw(len(words))


class _KeyStream:
    """AES-128 in counter mode under a fresh key; it takes 0.4 of the time of SFC64."""

    def __init__(self, encryptor: Callable[[bytes, bytes], Any]) -> None:
        self._encryptor = encryptor(os.urandom(16), os.urandom(16))

    def fill_(self, words: NDArray[np.uint64]) -> None:
        """Replace BLOCK words at most by the next ones."""
        written = self._encryptor.update_into(_ZEROS[: words.nbytes], words.view(np.uint8).data)
        if written != words.nbytes:  # the others would be what the memory held before
            raise RuntimeError(f"{written} random bytes of {words.nbytes} were made: nothing may be released")


_ZEROS = memoryview(bytes(8 * BLOCK))


@cache
def _aes() -> Callable[[bytes, bytes], Any] | None:
    """Return what makes an encryptor of a key and the first counter; None without the package cryptography."""
    try:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
    except ImportError:
        return None
    return lambda key, counter: Cipher(algorithms.AES(key), modes.CTR(counter)).encryptor()


def _perturb(lanes: Sequence[Bits], cut: Sequence[Sequence[Part]], at_once: int) -> None:
    """Add noise to stretches, from lanes in turn, by operations on so many entries at most."""
    room, blocks = _room(BLOCK), dict[int, Block]()
    for number, stretch in enumerate(cut):
        for parts in stretches(stretch, BLOCK):
            count = entries(parts)
            block = blocks[count] = blocks.get(count) or Block(count, room, at_once)
            normals = block.draw(lanes[number % len(lanes)])
            for piece, values in zip(stretches(parts, at_once), torch.split(normals, at_once), strict=True):
                add_scaled_(piece, values, block.spare)


def _room(count: int) -> Tensor:
    return torch.empty(2, count, dtype=torch.int64, device="cpu")  # whatever torch's default device is


class Block:
    """Room for words, and for the normals that are computed of them.

    Args:
        count: of normals.
        room: int64 [2, count or more], which draws overwrite; None: of its own.
        at_once: so many pairs are computed together.

    Attributes:
        spare: float64 [count], of which nothing is needed from one draw to the next.
    """

    def __init__(self, count: int, room: Tensor | None = None, at_once: int = BLOCK) -> None:
        half = (count + 1) // 2
        words, normals = (_room(2 * half) if room is None else room)[:, : 2 * half]
        self._words: NDArray[np.uint64] = words.numpy().view(np.uint64)
        self.spare = words.view(torch.float64)[:count]
        self._normals: Tensor = normals.view(torch.float64)[:count]
        rows = (words.view(2, half), normals.view(torch.float64).view(2, half))
        pieces = zip(*(torch.split(row, at_once, 1) for row in rows), strict=True)
        self._pairs = [_Pairs(*some_words, *some_normals) for some_words, some_normals in pieces]

    def draw(self, lane: Bits) -> Tensor:
        """Return independent standard normals [count], float64; the next draw overwrites them."""
        lane.fill_(self._words)
        for pairs in self._pairs:
            pairs.compute()
        return self._normals


class _Pairs:
    """Pairs of words, which are overwritten, and the pairs of normals that they give; all [n]."""

    def __init__(self, first: Tensor, second: Tensor, radius: Tensor, ratio: Tensor) -> None:
        self._first, self._second, self._radius, self._ratio = first, second, radius, ratio
        self._square = second.view(torch.float64)  # memory that is done with, by then
        self._bits = radius.view(torch.int64)
        self._arrays = radius.numpy(), ratio.numpy()

    def compute(self) -> None:
        """Compute the normals."""
        first, radius, ratio, square = self._first, self._radius, self._ratio, self._square
        radii, ratios = self._arrays
        ratio.copy_(self._second).mul_(math.pi * 2.0**-64)
        np.tan(ratios, out=ratios) if _BY_NUMPY else ratio.tan_()
        first.bitwise_or_(1)  # so never 0
        radius.copy_(first).abs_().mul_(_UNIT)
        np.log(radii, out=radii) if _BY_NUMPY else radius.log_()
        torch.addcmul(_MINUS_HALF, ratio, ratio, value=-0.5, out=square)
        torch.div(square, radius, out=radius).rsqrt_()
        self._bits.bitwise_or_(first.bitwise_and_(_SIGN))
        ratio.mul_(radius)


_UNIT = 2.0**-63 * (1 - 2.0**-53)  # U < 1, so that -ln U > 0
_MINUS_HALF = torch.tensor(-0.5, dtype=torch.float64, device="cpu")
_SIGN = -(2**63)  # the highest bit is that of a word and of a double alike

# numpy's vector code for AVX-512, which wheels for Linux have, takes a fifth of the time of torch's.
_BY_NUMPY = sys.platform == "linux" and torch.backends.cpu.get_cpu_capability() == "AVX512"
