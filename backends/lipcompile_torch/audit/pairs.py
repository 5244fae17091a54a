"""Pairs of examples for an adversary that tells them apart: how far can their gradients differ?"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import cycle, islice, product

import torch
from torch import Tensor

from ..clip.clipping import as_clipped
from ..train.module import LipschitzModule
from .points import Admissible, Point, Terrain
from .search import climb
from .starts import STARTS, draw

_ENOUGH = 0.99  # of the largest distance: no ascent goes on from there


class PairTerrain(Terrain):
    """As `Terrain`, over two examples: points have a batch axis of length 2, the objective is the norm of the
    difference of their gradients, as clips scale them, in units of the noise.
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
        # How far gradients can be apart. A theorem may be wrong, but they are clipped here, not by the module.
        reach = (group.length / self.stds[group.parameters[0]] for group in module.clips)
        self.summit = 2 * math.hypot(*reach) if stds.keys() <= module.clipped_parameters else math.inf

    def gradients(self, point: Point, curved: bool) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the output, and the difference of the two gradients."""
        output = self.output(point)
        losses = self.module.per_example_loss(output, point.target)
        apart = self._apart(losses, point, curved)
        return output, {name: gradient / self.stds[name] for name, gradient in apart.items()}

    def _apart(self, losses: Tensor, point: Point, curved: bool) -> dict[str, Tensor]:
        if not self.module.clips:  # in one pass
            return self.in_weights(losses[0] - losses[1], point, curved)
        first, second = (
            as_clipped(self.in_weights(loss, point, curved), self.module.clips) for loss in losses.unbind()
        )
        return {name: first[name] - second[name] for name in self.bounds}

    def bounded_input(self, direction: Tensor) -> Tensor:
        """Return both inputs at the largest norm."""
        return torch.cat([self.single.bounded_input(row) for row in torch.split(direction, 1)])

    def bounded_target(self, target: Tensor) -> Tensor:
        """Return both targets within their norm."""
        return torch.cat([self.single.bounded_target(row) for row in torch.split(target, 1)])

    def targets(self, output: Tensor, count: int) -> Iterator[Tensor]:
        """Yield pairs of promising targets."""
        first, second = (self.single.targets(row, count) for row in torch.split(output, 1))
        pairs = (torch.cat(pair) for pair in product(first, second))
        if self.admissible.target == "vector":
            promising = next(pairs)
            yield from (promising, torch.cat((promising[:1], -promising[:1])))
        yield from pairs

    def starts(self, point: Point) -> Iterator[Point]:
        """Yield pairs of an example and of itself, whose clipped gradients other targets turn round, whatever the
        layers are; and of an example and of its opposite.
        """
        tokens = self.admissible.vocabulary is not None
        if tokens or self.module.clips:
            yield self._start(point, point.x)
        if not tokens:
            yield self._start(point, -point.x)

    def _start(self, point: Point, other: Tensor) -> Point:
        x = torch.cat((point.x, other))
        with torch.no_grad():
            output = self.output(replace(point, x=x))
        return replace(point, x=x, target=next(self.targets(output, 1)))


def furthest(terrain: PairTerrain, ascents: int, steps: int) -> Point:
    """Return the pair whose gradients differ most of those that a few ascents find."""
    names = tuple(terrain.bounds)
    drawn = (draw(terrain.single, start) for start in islice(cycle(STARTS), ascents))
    starts = (start for point in drawn for start in terrain.starts(point))
    looks = (found for start in starts for found in climb(terrain, start, names, steps))
    best: tuple[float, Point] | None = None
    for point, look in looks:
        value = look.value if math.isfinite(look.value) else 0.0
        if best is None or value > best[0]:
            best = value, point
        if best[0] >= (_ENOUGH * terrain.summit) ** 2:
            break
    assert best is not None
    return best[1]
