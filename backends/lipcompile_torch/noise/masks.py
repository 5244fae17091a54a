"""Torch's own generators, from which forward passes draw masks of dropout, are seeded anew for every batch.

A mask is drawn by the place of an example in its batch, which depends on the examples before it. The distribution
of masks does not. So nothing is lost while the seed is secret: given a mask for each example, one moves the
sum by its own gradient. With a seed that somebody knows, as after `torch.manual_seed(0)`, it would move all that
come behind it to other masks, and the sum by as many gradients.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

_OURS: dict[torch.device, int] = {}
"""The seeds that generators got here last, whoever asked for it."""


class Masks:
    """Secret seeds for what a training draws from the generators of its devices.

    Args:
        wanted: False for a run that is repeatable and not private, and for a module that draws nothing.
    """

    def __init__(self, wanted: bool) -> None:
        self._wanted = wanted

    def begin(self, devices: Iterable[torch.device]) -> None:
        """Seed the generators of these devices, and that of processors, by the operating system's entropy."""
        if self._wanted:
            _OURS.update((device, generator.seed()) for device, generator in _generators(devices).items())

    def are_ours(self, devices: Iterable[torch.device]) -> bool:
        """Whether nobody else has seeded these generators since."""
        if not self._wanted:
            return True
        return all(_OURS.get(device) == one.initial_seed() for device, one in _generators(devices).items())


def _generators(devices: Iterable[torch.device]) -> dict[torch.device, torch.Generator]:
    found = {device: torch.cuda.default_generators[device.index] for device in devices if device.type == "cuda"}
    return {torch.device("cpu"): torch.default_generator, **found}
