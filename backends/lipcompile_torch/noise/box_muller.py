"""Standard normals of random words, in doubles, on processors: Box–Muller.

Of two words of 64 bits the first gives a radius and a sign, the second an angle φ of ±π/2:

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
import sys
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from .. import native
from ..native.memory_rows import Part, add_scaled_, entries, stretches
from .bits import Bits, KeyStream, Words

BLOCK = 1 << 17
"""Entries that share pairs of words."""


class Adder(Protocol):
    """What adds normals to flat tensors."""

    def add_(self, parts: Sequence[Part], bits: Bits) -> None:
        """Add scale·normal to the entries, each sum computed in float64 and rounded to its dtype.

        Of each BLOCK of entries, the last of them shorter: of 2n words, n half as many as entries, rounded up,
        words i and n + i give the normals of entries i and n + i.
        """
        ...  # pragma: no cover


def adder(parts: Sequence[Part], threads: int, at_once: int) -> Adder:
    """Return what adds normals to cuts of these parts.

    Args:
        threads: for native code.
        at_once: so many entries are dealt with by one operation of torch.
    """
    return ByNative(threads) if native.adds_normals(parts) else ByTorch(at_once)


class ByNative:
    """One pass; of AES, words are made as they are used."""

    def __init__(self, threads: int) -> None:
        self._threads = threads

    def add_(self, parts: Sequence[Part], bits: Bits) -> None:
        """See `Adder.add_`."""
        if isinstance(bits, KeyStream):
            native.add_normals_(parts, BLOCK, bits.take(entries(parts)), self._threads)
            return
        for piece in stretches(parts, BLOCK):
            words = np.empty(_even(entries(piece)), np.uint64)
            bits.fill_(words)
            native.add_normals_(piece, BLOCK, words, self._threads)


class ByTorch:
    """An operation after the other."""

    def __init__(self, at_once: int) -> None:
        self._room = torch.empty(2, BLOCK, dtype=torch.int64, device="cpu")  # whatever torch's default device is
        self._at_once = at_once
        self._blocks: dict[int, _Block] = {}

    def add_(self, parts: Sequence[Part], bits: Bits) -> None:
        """See `Adder.add_`."""
        for whole in stretches(parts, BLOCK):
            count = entries(whole)
            block = self._blocks[count] = self._blocks.get(count) or _Block(count, self._room, self._at_once)
            normals = torch.split(block.draw(bits), self._at_once)
            for piece, values in zip(stretches(whole, self._at_once), normals, strict=True):
                add_scaled_(piece, values, block.spare)


def _even(count: int) -> int:
    return count + count % 2


class _Block:
    """Views of room for words, and for the normals [count] that are computed of them.

    Args:
        room: int64 [2, count or more].
        at_once: so many pairs are computed together.

    Attributes:
        spare: float64 [count], of which nothing is needed from one draw to the next.
    """

    def __init__(self, count: int, room: Tensor, at_once: int) -> None:
        half = _even(count) // 2
        words, normals = room[:, : 2 * half]
        self._words: Words = words.numpy().view(np.uint64)
        self.spare = words.view(torch.float64)[:count]
        self._normals: Tensor = normals.view(torch.float64)[:count]
        rows = (words.view(2, half), normals.view(torch.float64).view(2, half))
        pieces = zip(*(torch.split(row, at_once, 1) for row in rows), strict=True)
        self._pairs = [_Pairs(*some_words, *some_normals) for some_words, some_normals in pieces]

    def draw(self, bits: Bits) -> Tensor:
        """Return the normals of the next words; the next draw overwrites them."""
        bits.fill_(self._words)
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
