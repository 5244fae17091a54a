"""Adversarial examples by projected gradient descent on the margin, within balls of the 2-norm.

Madry et al., ICLR 2018: steps along the normalised gradient, each followed by projection on the ball, from the
example and from random points. Every example that it finds is a true adversarial example; a failure to find one
proves nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..certify.sums import example_norms, per_example
from ..train.module import LipschitzModule
from .robustness import evaluating, margins

_STEP = 2.5  # all steps together reach this many radii


@dataclass(frozen=True)
class AttackConfig:
    """How hard the adversary tries.

    Args:
        steps: of each descent.
        restarts: descents of each example at each radius, the first one from the example itself.
        seed: of the other starts.
    """

    steps: int = 10
    restarts: int = 2
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse an attack that would try nothing."""
        if self.steps < 1 or self.restarts < 1:
            raise ValueError("an attack needs at least one restart of one step")


def attack(
    module: LipschitzModule,
    inputs: Tensor,
    targets: Tensor,
    radius: Tensor,
    config: AttackConfig,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Look for wrongly predicted inputs near each example; return the distance of the nearest that was found.

    Args:
        module: a classifier, see `robustness.certified_radii`; it runs as it is, in its own dtype.
        inputs, targets: [B, *input_shape] in the module's dtype, [B].
        radius: [B], float64: how far each example may be moved; within the module's ball if it trusts its input.

    Returns:
        distances [B], float64, at most the radius; infinite where nothing was found, 0 where the prediction is
        wrong.
    """
    generator = generator or torch.Generator().manual_seed(config.seed)
    search = _Search(module, inputs, targets, radius)
    with evaluating(module):
        for restart in range(config.restarts):
            moved = search.shifted(_random(inputs, generator)) if restart else inputs
            for _ in range(config.steps):
                slopes = search.look(moved)
                if bool((search.nearest < torch.inf).all()):
                    return search.nearest
                away = moved.double() - inputs - _unit(slopes) * per_example(_STEP / config.steps * radius, inputs)
                moved = search.shifted(away)
            search.look(moved)
    return search.nearest


class _Search:
    """What is known of a batch so far."""

    def __init__(self, module: LipschitzModule, inputs: Tensor, targets: Tensor, radius: Tensor) -> None:
        self.module, self.inputs, self.targets, self.radius = module, inputs, targets, radius
        self.nearest = torch.full_like(radius, torch.inf)
        # Rounding of the sum of an example and its change must not lead out of the ball.
        unit = torch.finfo(inputs.dtype).eps
        self.room = (radius * (1 - 2 * unit) - unit * example_norms(inputs)).clamp_min(0)

    def look(self, moved: Tensor) -> Tensor:
        """Return the gradients of the margins; note what is wrong and within the radius."""
        moved = moved.detach().requires_grad_()
        found = margins(self.module(moved), self.targets)
        (slopes,) = torch.autograd.grad(found.sum(), moved)
        distances = example_norms(moved.detach().double() - self.inputs.double())
        wrong = ~(found > 0) & (distances <= self.radius) & self._allowed(moved)
        self.nearest = torch.where(wrong, torch.minimum(self.nearest, distances), self.nearest)
        return slopes.double()

    def shifted(self, change: Tensor) -> Tensor:
        """Return the examples moved by `change`, projected on their balls, in their dtype."""
        moved = self.inputs.double() + _shortened(change, self.room)
        if self.module.input_trusted:
            moved = _shortened(moved, self._limit())
        return moved.to(self.inputs.dtype)

    def _limit(self) -> float:
        return self.module.input_norm * (1 - 2 * torch.finfo(self.inputs.dtype).eps)

    def _allowed(self, moved: Tensor) -> Tensor:
        """Whether the promise of a trusted input is kept."""
        norms = example_norms(moved.detach())
        return norms <= self.module.input_norm if self.module.input_trusted else norms >= 0


def _shortened(x: Tensor, limit: Tensor | float) -> Tensor:
    """Return examples scaled to a norm of at most the limit."""
    return x * per_example((limit / example_norms(x).clamp_min(1e-300)).clamp_max(1), x)


def _unit(x: Tensor) -> Tensor:
    return x / per_example(example_norms(x).clamp_min(1e-300), x)


def _random(inputs: Tensor, generator: torch.Generator) -> Tensor:
    """Return random directions, longer than any radius."""
    return (1e9 * torch.randn(inputs.shape, generator=generator, dtype=torch.float64)).to(inputs.device)
