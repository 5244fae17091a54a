"""What is recorded at the end of a module: the engine checks by it that nothing but the criterion flowed back."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class GateRecord:
    """What flowed back through the end of a module since the last reset.

    Args:
        examples: number of examples, over all backward passes.
        largest: largest norm of the cotangent of one example, times the normaliser: at most L if the
            criterion was the module's own. A 0-dim tensor, so that nobody waits for the device; NaN if a
            cotangent was. None if nothing flowed back.
        foreign: how far what flowed back is from what the module's own criterion, unscaled, sends back into
            that forward pass: 0 if it was nothing else. None if nothing flowed back.
        slack: relative rounding slack of the lowest precision of a forward pass that anything flowed back into.
        running: how many forward passes of the module are under way.
        within_clip: number of examples whose cotangent was within the clip, 0-dim; None if nothing was clipped.
        batch: stands for the batch that was drawn last.
        aside: outputs pass by the gate: what computes them one example at a time lets them through it together.
    """

    examples: int = 0
    largest: Tensor | None = None
    foreign: Tensor | None = None
    slack: float = 0.0
    running: int = 0
    within_clip: Tensor | None = None
    batch: object = None
    aside: bool = False

    @contextmanager
    def bypassed(self) -> Iterator[None]:
        """Set ``aside`` meanwhile."""
        self.aside = True
        try:
            yield
        finally:
            self.aside = False

    def reset(self) -> None:
        """Forget what flowed back."""
        self.examples, self.largest, self.foreign, self.slack = 0, None, None, 0.0
        self.within_clip = None

    def record(self, cotangent: Tensor, normaliser: float, sent: Tensor | None) -> None:
        """Note a cotangent [B, …] at the end of a forward pass, and what the criterion sent there."""
        self.examples += len(cotangent)
        rows = cotangent.detach().reshape(len(cotangent), math.prod(cotangent.shape[1:]))
        norms = torch.linalg.vector_norm(rows, dim=1, dtype=torch.promote_types(rows.dtype, torch.float32))
        self.largest = _largest(norms * normaliser, self.largest)
        self.note_foreign(norms.new_full((1,), math.inf) if sent is None else (cotangent - sent).abs())

    def note_within_clip(self, count: Tensor) -> None:
        """Note how many more examples were within the clip."""
        self.within_clip = count if self.within_clip is None else self.within_clip + count.to(self.within_clip)

    def note_foreign(self, difference: Tensor) -> None:
        """Note a difference from what the criterion would have sent."""
        self.foreign = _largest(difference.detach().flatten(), self.foreign)


def _largest(values: Tensor, known: Tensor | None) -> Tensor:
    before = values.new_zeros(1) if known is None else known.reshape(1).to(values)
    return torch.cat((values, before)).amax()
