"""Pairs of examples for an adversary that tells them apart: how far can their gradients differ?"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import cycle, islice, product

import torch
from torch import Tensor

from .audit import climb
from .audit_points import Admissible, Point, Terrain
from .audit_starts import STARTS, draw
from .module import LipschitzModule


class PairTerrain(Terrain):
    """As `Terrain`, over two examples: points have a batch axis of length 2, the objective is the norm of the
    difference of their gradients, in units of the noise.
    """

    def __init__(
        self,
        module: LipschitzModule,
        admissible: Admissible,
        generator: torch.Generator,
        stds: Mapping[str, float],
    ) -> None:
        super().__init__(module, admissible, generator)
        self.single = Terrain(module, admissible, generator)
        self.stds = {name: stds.get(name, math.inf) for name in self.bounds}

    def gradients(self, point: Point, curved: bool) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the output, and the difference of the two gradients."""
        output = self.output(point)
        losses = self.module.per_example_loss(output, point.target)
        trained = [point.weights[name] for name in self.bounds]
        found = torch.autograd.grad(
            losses[0] - losses[1], trained, create_graph=curved, allow_unused=True, materialize_grads=True
        )
        return output, {name: g / self.stds[name] for name, g in zip(self.bounds, found, strict=True)}

    def bounded_input(self, direction: Tensor) -> Tensor:
        """Return both inputs at the largest norm."""
        return torch.cat([self.single.bounded_input(row) for row in torch.split(direction, 1)])

    def bounded_target(self, target: Tensor) -> Tensor:
        """Return both targets within their norm."""
        return torch.cat([self.single.bounded_target(row) for row in torch.split(target, 1)])

    def targets(self, output: Tensor, count: int) -> Iterator[Tensor]:
        """Yield pairs of promising targets."""
        first, second = (self.single.targets(row, count) for row in torch.split(output, 1))
        yield from (torch.cat(pair) for pair in product(first, second))

    def start(self, point: Point) -> Point:
        """Return a pair of an example and of its opposite, of itself if examples are tokens."""
        tokens = self.admissible.vocabulary is not None
        x = torch.cat((point.x, point.x if tokens else -point.x))
        with torch.no_grad():
            output = self.output(replace(point, x=x))
        return replace(point, x=x, target=next(self.targets(output, 1)))


def furthest(terrain: PairTerrain, ascents: int, steps: int) -> Point:
    """Return the pair whose gradients differ most of those that a few ascents find."""
    names = tuple(terrain.bounds)
    starts = (terrain.start(draw(terrain.single, start)) for start in islice(cycle(STARTS), ascents))
    looks = (found for start in starts for found in climb(terrain, start, names, steps))
    return max(looks, key=lambda found: found[1].value if math.isfinite(found[1].value) else 0.0)[0]
