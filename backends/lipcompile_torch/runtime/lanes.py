"""Standard normals in doubles on processors: Box–Muller over generators that stand side by side.

Of two words of 64 bits the first gives a radius and a sign, the second an angle φ of ±π/2:

    q = ±√(-2·ln U / (1 + tan²φ)),    the normals are q and q·tan φ.

For ±(cos φ, sin φ) = ±(1, tan φ)/√(1 + tan²φ) is uniform on the circle, and √(-2·ln U) is the norm of two normals
(Box and Muller, Ann. Math. Stat. 29, 1958). U is an odd multiple of 2^-63: no normal exceeds √(2·63·ln 2) = 9.346,
and 1e-20 of the mass lies beyond. One tangent takes the place of a sine and a cosine.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from numpy.random import SFC64
from numpy.typing import NDArray
from torch import Tensor

from .flat import Part, add_scaled_, entries, in_threads, stretches

Item = TypeVar("Item")

LANES = 16
"""How many generators there are, and so the most threads that draw."""

STRETCH = 1 << 15
"""Entries that one thread works on at once: about a megabyte."""

_WARM_UP = 16


class Lanes:
    """Generators that share out the draws of a step: stretch i is drawn from lane i mod 16.

    So what is drawn does not depend on the number of threads. Without a seed a lane begins anew, from the
    operating system's entropy, at its first use after each `refresh`. It is AES-128 in counter mode (NIST SP
    800-38A) where the package cryptography is there, with a key and a first counter of 128 bits each; else numpy's
    SFC64: three words of state, 192 bits of entropy, and a counter from 1. With a seed it is always SFC64, its
    words are the seed modulo 2^64, the number of the lane, and 0, and the first 16 draws are dropped. Steps of
    that generator are invertible and counted, so lanes that start apart, of one seed or of several, are never in
    the same state within 2^64 draws.

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
        self._share_out([part.numpy() for part in torch.split(normals, STRETCH)], _fill)

    def perturb_(self, parts: Sequence[Part]) -> None:
        """Add scale·normal to each entry of flat tensors, computed in float64 and rounded to their dtype."""
        self._share_out(list(stretches(parts, STRETCH)), _perturb)

    def _share_out(self, items: Sequence[Item], work: Callable[[Bits, Item], None]) -> None:
        lanes = [self._lane(number) for number in range(min(LANES, len(items)))]

        def run(number: int) -> None:
            for item in items[number::LANES]:
                work(lanes[number], item)

        in_threads(run, range(len(lanes)))

    def _lane(self, number: int) -> Bits:
        if number == len(self._lanes):
            self._lanes.append(_started(self._seed, number))
        elif number in self._stale:
            self._lanes[number] = _started(self._seed, number)
        self._stale.discard(number)
        return self._lanes[number]


class Bits(Protocol):
    """A source of random words."""

    def random_raw(self, size: int) -> NDArray[np.uint64]:
        """Return the next words."""
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
    return lane


class _KeyStream:
    """AES-128 in counter mode under a fresh key; it takes 0.4 of the time of SFC64."""

    def __init__(self, encryptor: Callable[[bytes, bytes], Any]) -> None:
        self._encryptor = encryptor(os.urandom(16), os.urandom(16))

    def random_raw(self, size: int) -> NDArray[np.uint64]:
        """Return the next words, STRETCH at most."""
        words = np.empty(size, np.uint64)
        self._encryptor.update_into(_ZEROS[: words.nbytes], words.view(np.uint8).data)
        return words


_ZEROS = memoryview(bytes(8 * STRETCH))


@cache
def _aes() -> Callable[[bytes, bytes], Any] | None:
    """Return what makes an encryptor of a key and the first counter; None without the package cryptography."""
    try:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
    except ImportError:
        return None
    return lambda key, counter: Cipher(algorithms.AES(key), modes.CTR(counter)).encryptor()


def _fill(lane: Bits, normals: NDArray[np.float64]) -> None:
    normals[:] = draw(lane, len(normals))


def _perturb(lane: Bits, parts: Sequence[Part]) -> None:
    add_scaled_(parts, torch.from_numpy(draw(lane, entries(parts))))


def draw(lane: Bits, count: int) -> NDArray[np.float64]:
    """Return independent standard normals, [count]."""
    half = (count + 1) // 2
    words, normals = lane.random_raw(2 * half).view(np.int64), np.empty(2 * half)
    first, radius, ratio = words[:half], normals[:half], normals[half:]
    ratio[:] = words[half:]
    ratio *= math.pi * 2.0**-64
    np.tan(ratio, out=ratio)
    first |= 1  # so never 0
    radius[:] = first
    radius *= 2.0**-63
    np.abs(radius, out=radius)
    np.log(radius, out=radius)
    radius *= -2.0
    square = words[half:].view(np.float64)  # memory that is done with
    np.multiply(ratio, ratio, out=square)
    square += 1.0
    radius /= square
    np.sqrt(radius, out=radius)
    radius.view(np.int64)[...] |= first & _SIGN
    ratio *= radius
    return normals[:count]


_SIGN = np.int64(-(2**63))  # the highest bit is that of a word and of a double alike
