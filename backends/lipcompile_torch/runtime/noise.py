"""How much noise each parameter gets, and drawing it.

A step releases, for every trainable parameter p, the sum of per-example gradients plus N(0, s_p²·I). One example
moves p's part of the sum by at most K_p, so after scaling part p by 1/s_p the whole step is ONE Gaussian mechanism
of sensitivity √Σ(K_p/s_p)²: its noise multiplier is σ = (Σ K_p²/s_p²)^(-1/2), however the s_p are chosen.
Subsampling amplifies that one mechanism, never each parameter by itself.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Literal, get_args

import torch
from torch import Tensor

from .precision import rounding_slack

Allocation = Literal["global", "per_layer", "optimal"]

_OUTWARD = 1e-12  # covers the rounding of the formulas below, which is some 1e-15 per parameter


def allocate(
    allocation: Allocation, bounds: Mapping[str, float], sizes: Mapping[str, int], noise_multiplier: float
) -> dict[str, float]:
    """Return s_p, the noise standard deviation on the SUM of per-example gradients, for every K_p > 0.

    ============  ================================================  ======================================
    `global`      s_p = σ·√ΣK²                                      the same everywhere
    `per_layer`   s_p = σ·√P·K_p, P parameters with K_p > 0         proportional to each bound
    `optimal`     s_p² = σ²·(K_p/√n_p)·Σ_j K_j·√n_j                  least total noise energy Σ n_p·s_p²
    ============  ================================================  ======================================

    Formal guarantees: `effective_multiplier` of the result is at least σ and exceeds it by less than 1e-9.
    A parameter with K_p = 0 has no entry: its gradient is zero, and must be set to zero since rounding may differ.

    Args:
        bounds: K_p, per example, by parameter name.
        sizes: n_p, number of entries, by the same names.
        noise_multiplier: σ > 0.

    Raises:
        ValueError: a bound that is negative or not finite, an unknown allocation, or a result out of range.
    """
    _check_bounds(bounds)
    active = {name: bound for name, bound in bounds.items() if bound > 0}
    stds = {name: noise_multiplier * share for name, share in _shares(allocation, active, sizes).items()}
    if not active:
        return stds
    inward = max(1.0, noise_multiplier / effective_multiplier(active, stds))
    stds = {name: std * inward * (1 + _OUTWARD) for name, std in stds.items()}
    achieved = effective_multiplier(active, stds)
    if not noise_multiplier <= achieved <= noise_multiplier * (1 + 1e-9):
        raise ValueError(f"noise allocation missed its multiplier: {achieved!r} for {noise_multiplier!r}")
    return stds


def effective_multiplier(bounds: Mapping[str, float], stds: Mapping[str, float]) -> float:
    """Return σ = (Σ K_p²/s_p²)^(-1/2) of the whole step; `inf` if every bound is 0."""
    distance = math.hypot(*(bound / stds[name] for name, bound in bounds.items() if bound > 0))
    return 1 / distance if distance else math.inf


def _shares(allocation: Allocation, bounds: Mapping[str, float], sizes: Mapping[str, int]) -> dict[str, float]:
    """Return s_p/σ."""
    if allocation == "global":
        total = math.hypot(*bounds.values())
        return dict.fromkeys(bounds, total)
    if allocation == "per_layer":
        return {name: math.sqrt(len(bounds)) * bound for name, bound in bounds.items()}
    if allocation == "optimal":
        total = math.fsum(bound * math.sqrt(sizes[name]) for name, bound in bounds.items())
        # The root of each factor: their product may leave the range of doubles.
        factor = math.sqrt(total)
        return {name: math.sqrt(bound / math.sqrt(sizes[name])) * factor for name, bound in bounds.items()}
    raise ValueError(f"unknown noise allocation {allocation!r}: use one of {', '.join(get_args(Allocation))}")


def _check_bounds(bounds: Mapping[str, float]) -> None:
    for name, bound in bounds.items():
        if not 0 <= bound < math.inf:
            raise ValueError(f"the gradient bound of {name} is {bound}: noise needs a finite bound >= 0")


class NoiseSource:
    """Gaussian noise on every device, from the operating system's entropy unless a seed is given.

    On the CPU a seed fills only 32 bits of torch's generator (seeds 5 and 5 + 2^40 give the same numbers), few
    enough to try them all, so its whole state of 19,968 bits is drawn afresh for every step; on other devices
    64 bits are. A seed makes a run repeatable, and its noise known to whoever knows the seed: NOT private.
    """

    def __init__(self, seed: int | None = None) -> None:
        self._seed = seed
        self._generators: dict[torch.device, torch.Generator] = {}

    def refresh(self) -> None:
        """Take new entropy for the next step; without effect on a seeded source."""
        if self._seed is None:
            for generator in self._generators.values():
                _take_entropy(generator)

    def perturb_(self, parameter: Tensor, std: float, normaliser: float) -> None:
        """Add N(0, (std·(1 + slack)/normaliser)²) to the gradient of a parameter, in place.

        A missing gradient counts as zero and a sparse one is made dense: they get their noise all the same. The
        noise is drawn and added in float64 and the sum rounded to the parameter's dtype, which is post-processing.
        Torch's float32 normals stop at √(2·24·ln 2) = 5.77 standard deviations, within reach of a large network's
        training run; float64's at √(2·53·ln 2) = 8.57.

        Args:
            parameter: trainable tensor of any shape; its `.grad` is replaced.
            std: s_p, on the sum of per-example gradients.
            normaliser: b, what the gradient is already divided by.
        """
        scale = std * (1 + rounding_slack(parameter.dtype)) / normaliser
        device = parameter.device
        noise = torch.randn(
            parameter.shape, dtype=torch.float64, device=device, generator=self._generator(device)
        ).mul_(scale)
        if parameter.grad is not None:
            noise.add_(_dense(parameter.grad))
        parameter.grad = noise.to(parameter.dtype)

    def _generator(self, device: torch.device) -> torch.Generator:
        if device not in self._generators:
            generator = torch.Generator(device)
            if self._seed is None:
                _take_entropy(generator)
            else:
                generator.manual_seed(self._seed)
            self._generators[device] = generator
        return self._generators[device]


def zero_gradient_(parameter: Tensor) -> None:
    """Set a gradient whose bound is 0 to exactly zero: rounding may have left something there."""
    parameter.grad = torch.zeros_like(parameter)


def fresh_generator() -> torch.Generator:
    """Return a CPU generator whose whole state comes from the operating system's entropy."""
    generator = torch.Generator()
    _take_entropy(generator)
    return generator


def _dense(gradient: Tensor) -> Tensor:
    return gradient.to_dense() if gradient.layout is not torch.strided else gradient


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
