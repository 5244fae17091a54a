"""Where random words come from on processors: generators that stand side by side, and share out a step's noise."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .. import native
from ..native.memory_rows import Part, in_threads, stretches
from .bits import Bits, started
from .box_muller import BLOCK, adder

GENERATORS = 16
"""How many generators there are, and so the most threads that draw."""

STRETCH = 4 * BLOCK
"""Entries that one generator draws for at a time."""

_FEW = 4  # threads of torch
_ALONE = 1 << 15  # entries that torch deals with in the thread that asks


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
        noise.add_(stretch, generators[number % len(generators)])
