"""Where independent standard normals come from: the noise of a step is these, scaled."""

from __future__ import annotations

import os
from typing import Protocol

import torch
from torch import Tensor


class Normals(Protocol):
    """A source of independent standard normals.

    What draws between two calls of `refresh` share, if anything, is no more than a generator's state; a source
    without a seed takes new entropy from the operating system at every `refresh`.
    """

    def refresh(self) -> None:
        """Take new entropy for the next step; without effect on a seeded source."""

    def draw(self, shape: torch.Size, device: torch.device) -> Tensor:
        """Return independent standard normals of a shape, in float64 on a device."""
        ...  # pragma: no cover


class TorchNormals:
    """Normals of torch's own generators, from the operating system's entropy unless a seed is given.

    On the CPU a seed fills only 32 bits of torch's generator (seeds 5 and 5 + 2^40 give the same numbers), few
    enough to try them all, so its whole state of 19,968 bits is drawn afresh for every step; on other devices
    64 bits are. A seed makes a run repeatable, and its noise known to whoever knows the seed: NOT private.

    Torch's float64 normals stop at √(2·53·ln 2) = 8.57; its float32 ones would stop at √(2·24·ln 2) = 5.77 standard
    deviations, within reach of a large network's training run.
    """

    def __init__(self, seed: int | None = None) -> None:
        self._seed = seed
        self._generators: dict[torch.device, torch.Generator] = {}

    def refresh(self) -> None:
        """Take new entropy for the next step; without effect on a seeded source."""
        if self._seed is None:
            for generator in self._generators.values():
                _take_entropy(generator)

    def draw(self, shape: torch.Size, device: torch.device) -> Tensor:
        """Return independent standard normals of a shape, in float64 on a device."""
        return torch.randn(shape, dtype=torch.float64, device=device, generator=self._generator(device))

    def _generator(self, device: torch.device) -> torch.Generator:
        if device not in self._generators:
            generator = torch.Generator(device)
            if self._seed is None:
                _take_entropy(generator)
            else:
                generator.manual_seed(self._seed)
            self._generators[device] = generator
        return self._generators[device]


def fresh_generator() -> torch.Generator:
    """Return a CPU generator whose whole state comes from the operating system's entropy."""
    generator = torch.Generator()
    _take_entropy(generator)
    return generator


_WORDS = 624  # of the Mersenne twister


def _take_entropy(generator: torch.Generator) -> None:
    generator.manual_seed(int.from_bytes(os.urandom(8), "little"))
    if generator.device.type != "cpu":
        return
    # Layout of the state: seed, flags, position, then one 32-bit word in each of 624 64-bit slots. After
    # `manual_seed` the position asks for the next block, which is computed from all the words.
    state = generator.get_state()
    words = torch.frombuffer(bytearray(os.urandom(4 * _WORDS)), dtype=torch.int32).to(torch.int64) & 0xFFFFFFFF
    state.view(torch.int64)[3 : 3 + _WORDS] = words
    generator.set_state(state)
