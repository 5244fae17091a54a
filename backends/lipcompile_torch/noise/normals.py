"""Where independent standard normals come from: the noise of a step is these, scaled.

Use, for a gradient g whose noise has standard deviation s:

    released = s·(normals.prepare(g / s) + normals.draw(g.shape, g.device))

or, for many gradients at once and in place, `normals.perturb_`; with every s times `normals.widening(σ, entries)`
beforehand. For `PlainNormals` preparing and widening do nothing;
`SecureNormals` rounds to its grid, so that sum and noise are integers times 2^-40 and no bit of the sum tells
more than the Gaussian mechanism does, and widens by what the rounding may add to the sensitivity.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from lipcompile_privacy.ledger import CHACHA, PHILOX
from numpy.typing import NDArray
from torch import Tensor

from ..certify.rounding import UP
from ..devices import is_processor
from ..native.memory_rows import Part, add_scaled_, by_device, entries, in_threads, stretches, with_values
from . import processor
from .discrete_gaussian import GRID_BITS, Words, draw
from .processor import Generators


class Normals(Protocol):
    """A source of independent standard normals.

    What draws between two calls of `refresh` share, if anything, is no more than a generator's state; a source
    without a seed takes new entropy from the operating system at every `refresh`.
    """

    def prepare(self, scaled: Tensor) -> Tensor:
        """Return a float64 tensor as it must be for a draw to be added to it: gradient over noise scale."""

    def widening(self, noise_multiplier: float, entries: int) -> float:
        """Return the factor, at least 1, by which all scales grow to make up for `prepare`.

        Args:
            noise_multiplier: σ of the step.
            entries: over how many entries, of all parameters, noise is spread.

        Raises:
            ValueError: no factor makes up for it.
        """

    def generator(self, device: torch.device) -> str:
        """Return the name of the generator that draws on a device come from, see `generators`."""

    def refresh(self) -> None:
        """Take new entropy for the next step; without effect on a seeded source."""

    def draw(self, shape: torch.Size, device: torch.device) -> Tensor:
        """Return independent standard normals of a shape, in float64 on a device."""

    def perturb_(self, parts: Sequence[Part]) -> None:
        """Turn each entry g of flat tensors into s·(prepare(g/s) + normal), in float64, rounded to their dtype.

        Args:
            parts: tensors [n], floating point, on any device, with the scale s > 0 of each.
        """


class PlainNormals:
    """Normals of fast generators, from the operating system's entropy unless a seed is given.

    On the CPU see `processor`: a cryptographic generator, fresh entropy for each of up to 16 at every step,
    normals up to 9.346 standard deviations. On other devices they are torch's, of Philox with a new seed of 64
    bits at every step. Philox is not cryptographic. Its float64 normals stop at √(2·53·ln 2) = 8.57 or further
    out. (Float32 ones would at √(2·24·ln 2) = 5.77, within reach of a large network's training run.) A seed makes
    a run repeatable, whatever the number of threads, and its noise known to whoever knows the seed: NOT private.
    """

    def __init__(self, seed: int | None = None) -> None:
        self._seed = seed
        self._on_cpu = Generators(seed)
        self._generators: dict[torch.device, torch.Generator] = {}

    def generator(self, device: torch.device) -> str:
        """See `Normals.generator`."""
        return processor.generator(self._seed) if is_processor(device) else PHILOX

    def refresh(self) -> None:
        """Take new entropy for the next step; without effect on a seeded source."""
        self._on_cpu.refresh()
        if self._seed is None:
            for generator in self._generators.values():
                _take_entropy(generator)

    def prepare(self, scaled: Tensor) -> Tensor:
        """Return the tensor itself."""
        return scaled

    def widening(self, noise_multiplier: float, entries: int) -> float:  # noqa: ARG002
        """Return 1."""
        return 1.0

    def draw(self, shape: torch.Size, device: torch.device) -> Tensor:
        """Return independent standard normals of a shape, in float64 on a device."""
        if not is_processor(device):
            return torch.randn(shape, dtype=torch.float64, device=device, generator=self._generator(device))
        normals = torch.empty(shape, dtype=torch.float64, device="cpu")
        self._on_cpu.fill_(normals.view(-1))
        return normals

    def perturb_(self, parts: Sequence[Part]) -> None:
        """See `Normals.perturb_`."""
        for device, there in by_device(parts).items():
            if is_processor(device):
                self._on_cpu.perturb_(there)
                continue
            for stretch in stretches(there, _DEVICE_STRETCH):
                add_scaled_(stretch, self.draw(torch.Size([entries(stretch)]), device))

    def _generator(self, device: torch.device) -> torch.Generator:
        if device not in self._generators:
            generator = torch.Generator(device)
            if self._seed is None:
                _take_entropy(generator)
            else:
                generator.manual_seed(self._seed)
            self._generators[device] = generator
        return self._generators[device]


_DEVICE_STRETCH = 1 << 22  # 32 MiB of doubles


class SecureNormals:
    """Normals that neither prediction of the generator nor floating point gives away; `secure=True` of the engine.

    The bits are ChaCha20's (RFC 8439, of the package cryptography), under a new 256-bit key
    from the operating system for every 32,768 draws at most. Nothing is kept from one draw to the next, so
    there is no counter to repeat, no state to find in a checkpoint, and a forked process shares nothing. The
    normals are integers times 2^-40, see `discrete_gaussian`; none exceeds 13.05.

    Formal guarantees, taking the bits for random ones: for a tensor u that `prepare` returned, u + draw is
    within total variation 2^-84 an entry of round(u + Z), Z standard normal and the rounding to multiples of
    2^-40: of post-processing of a Gaussian mechanism. So over a run of N noisy entries (parameters times steps)
    δ grows by at most (1 + e^ε)·N·2^-84: for 10^7 parameters and 10^6 steps, by 6e-13·(1 + e^ε). Where the sum
    is rounded to doubles, or to the parameter's dtype, that is post-processing again. It does not cover noise
    that mixes draws of several steps (correlated streams), timing, nor rounding in the gradients themselves,
    for which there is `certify.precision`.
    """

    def generator(self, device: torch.device) -> str:  # noqa: ARG002
        """See `Normals.generator`."""
        return CHACHA

    def refresh(self) -> None:
        """Nothing to do: every draw has its own key."""

    def prepare(self, scaled: Tensor) -> Tensor:
        """Return the tensor rounded to multiples of 2^-40, which moves each entry by 2^-41 at most."""
        return scaled.mul(2.0**GRID_BITS).round_().mul_(2.0**-GRID_BITS)

    def widening(self, noise_multiplier: float, entries: int) -> float:
        """Return 1/(1 - σ·2^-40·√n): rounding n entries of two neighbouring sums adds 2^-40·√n to their distance.

        With scales that much larger the distance is at most (1 - σ·2^-40·√n)/σ + 2^-40·√n = 1/σ.

        Raises:
            ValueError: σ·√n is 2^40 or more.
        """
        added = noise_multiplier * 2.0**-GRID_BITS * math.sqrt(entries)
        if not added < 1:
            raise ValueError(
                f"noise multiplier {noise_multiplier:g} over {entries} entries is too large for secure "
                "noise, which is rounded to multiples of 2^-40 of its scale: use a smaller noise "
                "multiplier"
            )
        return 1 / (1 - added) * UP

    def draw(self, shape: torch.Size, device: torch.device) -> Tensor:
        """Return independent standard normals of a shape, in float64 on a device."""
        draws = np.empty(math.prod(shape))
        for start in range(0, draws.size, _DRAWS_PER_KEY):
            part = draws[start : start + _DRAWS_PER_KEY]
            part[:] = draw(part.size, _keystream())
        return torch.from_numpy(draws).reshape(shape).to(device)

    def perturb_(self, parts: Sequence[Part]) -> None:
        """See `Normals.perturb_`."""
        for device, there in by_device(parts).items():
            cut = list(stretches(there, _DRAWS_PER_KEY))
            if is_processor(device):
                in_threads(self._perturb, cut)
                continue
            for stretch in cut:  # other threads would not be in the stream of work of this one
                self._perturb(stretch)

    def _perturb(self, stretch: Sequence[Part]) -> None:
        normals = self.draw(torch.Size([entries(stretch)]), stretch[0][0].device)
        for tensor, scale, part in with_values(stretch, normals):
            tensor.copy_(part.add_(self.prepare(tensor.double() / scale)).mul_(scale))


_DRAWS_PER_KEY = 1 << 15  # what is worked on at once fits the processor's cache
_ZEROS = bytes(16 * _DRAWS_PER_KEY)


def _keystream() -> Words:
    """Return a source of random words under a new key."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

    # The key is used for this stream alone, so counter and nonce may start at zero.
    encryptor = Cipher(algorithms.ChaCha20(os.urandom(32), bytes(16)), mode=None).encryptor()

    def words(count: int) -> NDArray[np.uint64]:
        found = np.empty(count, np.uint64)
        encryptor.update_into(memoryview(_ZEROS)[: found.nbytes], found.view(np.uint8).data)
        return found

    return words


def _take_entropy(generator: torch.Generator) -> None:
    generator.manual_seed(int.from_bytes(os.urandom(8), "little"))
