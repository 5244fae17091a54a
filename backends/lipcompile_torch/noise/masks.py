"""Generators that everyone knows (torch's own, Python's and numpy's) are seeded anew for every batch.

Forward passes draw masks of dropout from them; data sets and training loops draw what augments examples.

A mask is drawn by the place of an example in its batch, which depends on the examples before it. The distribution
of masks does not. So nothing is lost while the seed is secret: given a mask for each example, one moves the
sum by its own gradient. With a seed that somebody knows, as after `torch.manual_seed(0)`, it would move all that
come behind it to other masks, and the sum by as many gradients. The same is true of random crops and flips.

Generators that a module or a data set made for itself are not seen, nor are seeds within `torch.random.fork_rng`,
or, in a loop, of Python and numpy.
"""

from __future__ import annotations

import random

import numpy as np
import torch
from lipcompile_privacy.errors import PrivacyError

_OURS: dict[torch.Generator, int] = {}
"""The seeds that torch's generators got here last, whoever asked for it."""


def seed_secretly() -> None:
    """Seed these generators by the operating system's entropy: torch's of processors and of GPUs in use, too."""
    on_gpus = torch.cuda.default_generators if torch.cuda.is_initialized() else ()  # type: ignore[no-untyped-call]
    _OURS.update((generator, generator.seed()) for generator in (torch.default_generator, *on_gpus))
    random.seed()
    np.random.seed()


class Masks:
    """Secret seeds for what a training draws from these generators.

    Args:
        wanted: False for a run that is repeatable and not private.
    """

    def __init__(self, wanted: bool) -> None:
        self._wanted = wanted

    def begin(self) -> None:
        """Seed the generators; see `seed_secretly`."""
        if self._wanted:
            seed_secretly()

    def check(self) -> None:
        """Refuse generators of torch that somebody else has seeded since."""
        if self._wanted and any(generator.initial_seed() != seed for generator, seed in _OURS.items()):
            raise PrivacyError(
                "torch.manual_seed() or set_rng_state() was called after the batch was drawn, so masks of dropout "
                "and random changes to inputs are known, and each depends on the examples before its own: remove "
                "the call; the argument seed of make_private makes a run repeatable, and not private"
            )
