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
from .clipping import as_clipped
from .module import LipschitzModule

_NEARLY = 0.98  # of the largest value: no need to climb on


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
        first, second = (
            self._clipped(loss, point, curved) for loss in self.module.per_example_loss(output, point.target)
        )
        return output, {name: (first[name] - second[name]) / self.stds[name] for name in self.bounds}

    def _clipped(self, loss: Tensor, point: Point, curved: bool) -> dict[str, Tensor]:
        """Return the gradients of the loss of one example, as the clips of the module scale them."""
        trained = [point.weights[name] for name in self.bounds]
        found = torch.autograd.grad(
            loss, trained, retain_graph=True, create_graph=curved, allow_unused=True, materialize_grads=True
        )
        return as_clipped(dict(zip(self.bounds, found, strict=True)), self.module.clips)

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

    def most(self) -> float:
        """Return the largest value that the bounds allow: a pair at the ends of a diameter."""
        clips = self.module.clips
        proved = [
            self.bounds[name] / self.stds[name] for name in self.bounds.keys() - self.module.clipped_parameters
        ]
        return 4 * math.hypot(*proved, *(group.length / self.stds[group.parameters[0]] for group in clips)) ** 2

    def start(self, point: Point) -> Point:
        """Return a pair of an example and of its opposite, of itself if examples are tokens or a clip bounds them:
        two targets of one input have gradients that are opposite, and a clip makes them as long as it allows.
        """
        same = self.admissible.vocabulary is not None or bool(self.module.clips)
        x = torch.cat((point.x, point.x if same else -point.x))
        with torch.no_grad():
            output = self.output(replace(point, x=x))
        return replace(point, x=x, target=next(self.targets(output, 1)))


def furthest(terrain: PairTerrain, ascents: int, steps: int) -> Point:
    """Return the pair whose gradients differ most of those that a few ascents find."""
    names = tuple(terrain.bounds)
    starts = (terrain.start(draw(terrain.single, start)) for start in islice(cycle(STARTS), ascents))
    looks = (found for start in starts for found in climb(terrain, start, names, steps))
    best, highest = None, 0.0
    for pair, look in looks:
        if best is None or (math.isfinite(look.value) and look.value > highest):
            best, highest = pair, look.value if math.isfinite(look.value) else 0.0
        if highest >= _NEARLY * terrain.most():
            break
    assert best is not None  # there is at least one ascent, of at least one step
    return best
