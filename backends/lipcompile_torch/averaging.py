"""The mean of the last weights of a training: less noise than the last have, at no cost of privacy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

__all__ = ["LastWeights"]


class LastWeights:
    """The mean of the trained weights after the last steps: post-processing of what was released.

    Constraint sets are convex, so the mean lies in them up to rounding.

    Args:
        steps: of the whole training.
        share: of the steps, from 0 to 1; the last one is always among them.
    """

    def __init__(self, module: nn.Module, steps: int, share: float) -> None:
        self.parameters = list(module.parameters())
        self.means = [torch.zeros_like(parameter) for parameter in self.parameters]
        self.first, self.taken = steps - max(1, round(share * steps)), 0

    def after(self, step: int) -> None:
        """Take in the weights as they are, if the step, counted from 0, is one of the last."""
        if step < self.first:
            return
        self.taken += 1
        for mean, parameter in zip(self.means, self.parameters, strict=True):
            mean += (parameter.detach() - mean) / self.taken

    def load(self) -> None:
        """Put the means in the place of the weights, once there are any."""
        if self.taken:
            with torch.no_grad():
                for mean, parameter in zip(self.means, self.parameters, strict=True):
                    parameter.copy_(mean)

    def state_dict(self) -> dict[str, Any]:
        """Return the means and how many weights they are of."""
        return {"taken": self.taken, "means": dict(enumerate(self.means))}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there.

        Raises:
            KeyError, RuntimeError: the means are of other parameters.
        """
        self.taken = int(state["taken"])
        for number, mean in enumerate(self.means):
            mean.copy_(state["means"][number])
