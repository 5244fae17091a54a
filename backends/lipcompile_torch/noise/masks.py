"""Torch's own generators, from which forward passes draw masks of dropout, are seeded anew for every batch.

A mask is drawn by the place of an example in its batch, which depends on the examples before it. The distribution
of masks does not. So nothing is lost while the seed is secret: given a mask for each example, one moves the
sum by its own gradient. With a seed that somebody knows, as after `torch.manual_seed(0)`, it would move all that
come behind it to other masks, and the sum by as many gradients.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from lipcompile_privacy.errors import PrivacyError

_OURS: dict[torch.device, int] = {}
"""The seeds that generators got here last, whoever asked for it."""


class Masks:
    """Secret seeds for what a training draws from the generators of its devices, and that of processors.

    Args:
        wanted: False for a run that is repeatable and not private, and for a module that draws nothing.
        parameters: on these devices.
    """

    def __init__(self, wanted: bool, parameters: Iterable[torch.Tensor] = ()) -> None:
        self._wanted, self._parameters = wanted, list(parameters)

    def begin(self) -> None:
        """Seed the generators by the operating system's entropy."""
        if self._wanted:
            _OURS.update((device, generator.seed()) for device, generator in self._generators().items())

    def check(self) -> None:
        """Refuse generators that somebody else has seeded since."""
        if self._wanted and any(_OURS.get(at) != one.initial_seed() for at, one in self._generators().items()):
            raise PrivacyError(
                "torch.manual_seed() or set_rng_state() was called after the batch was drawn, so masks of dropout "
                "are known, and each depends on the examples before its own: remove the call; the argument seed "
                "of make_private makes a run repeatable, and not private"
            )

    def _generators(self) -> dict[torch.device, torch.Generator]:
        devices = {parameter.device for parameter in self._parameters if parameter.device.type == "cuda"}
        found = {device: torch.cuda.default_generators[device.index] for device in devices}
        return {torch.device("cpu"): torch.default_generator, **found}
