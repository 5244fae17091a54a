"""Canaries: pairs of examples whose gradients differ as much as the bounds allow, and what betrays which is there.

The adversary chooses everything that a privacy guarantee leaves open: the weights before training, the optimizer,
and the examples, from the inputs and targets that the module was compiled for.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import cycle, islice, product

import torch
from torch import Tensor

from ..clip.clipping import as_clipped
from ..train.module import LipschitzModule
from .points import STARTS, Admissible, Point, Terrain, clipped_gradient, draw
from .search import climb

_LARGEST = 2**28  # entries of the gradients of all canaries: a gigabyte
_TARGETS = 4  # tried with each input
_STEPS = 60  # of an ascent
_FILLERS = 8  # pools to choose a filler from
_ENOUGH = 0.99  # of the largest distance: no ascent goes on from there


class CanaryError(ValueError):
    """Canaries that cannot be had: too many for the memory, or for the network."""


Example = tuple[Tensor, Tensor, Tensor]
"""Input [1, …], target [1, …], gradient [P]."""


@dataclass(frozen=True)
class Canaries:
    """m pairs of examples, and their gradients.

    Args:
        inputs: of the second and the first example of each pair, [2, m, …].
        targets: likewise.
        gradients: each parameter's divided by its noise, and flattened, [2, m, P].
        filler: input [1, …], target [1, …] and gradient [P] of the example that a data set is filled up with.
    """

    inputs: Tensor
    targets: Tensor
    gradients: Tensor
    filler: Example

    def __len__(self) -> int:
        """Return m."""
        return self.gradients.shape[1]

    @property
    def separation(self) -> float:
        """Mean distance of the gradients of a pair, in standard deviations of the noise."""
        return float((self.gradients[1] - self.gradients[0]).norm(dim=1).mean())

    def examples(self, coins: Tensor, size: int) -> tuple[Tensor, Tensor]:
        """Return a data set of this size: of every pair the one that its coin [m] names, and copies to fill up."""
        chosen, order = coins.long(), torch.arange(len(self))
        fill = size - len(self)
        x, y, _ = self.filler
        return torch.cat((self.inputs[chosen, order], *[x] * fill)), torch.cat(
            (self.targets[chosen, order], *[y] * fill)
        )


def choose(
    module: LipschitzModule,
    admissible: Admissible,
    stds: Mapping[str, float],
    count: int,
    generator: torch.Generator,
    ascents: int,
) -> Canaries:
    """Put the module's weights where a gradient is largest, and return pairs of examples that differ most there.

    The weights are certified to lie in their constraint sets. Which pairs are found decides how much an audit
    finds, never whether it is right.

    Args:
        stds: s_p, the noise of each parameter on the sum of the gradients.
        count: m. Canaries that share a training get inputs as orthogonal as the input allows.
        ascents: to the weights, each from another start.

    Raises:
        CanaryError: m gradients do not fit into memory.
    """
    entries = 2 * count * sum(p.numel() for name, p in module.named_parameters() if name in stds)
    if entries > _LARGEST:
        raise CanaryError(
            f"the gradients of {count} canaries in one run have {entries:.3g} entries, more than "
            f"{_LARGEST:.3g}: use more runs, with fewer canaries each"
        )
    terrain = PairTerrain(deepcopy(module).double(), admissible, generator, stds)
    pair = furthest(terrain, ascents, _STEPS)
    terrain.settle(pair)
    module.load_state_dict(terrain.module.state_dict())
    gradients = _Gradients(module, terrain.single, stds)
    pools = _pools(terrain.single, pair, count)
    pairs = [_both(gradients, pair)] if count == 1 else [_pair(gradients, pool) for pool in pools]
    harmless = _harmless(gradients, _pools(terrain.single, pair, _FILLERS), pairs[0])
    return _stacked(pairs, harmless)


def scores(canaries: Canaries, released: Sequence[Tensor], sampling_rate: float, size: int) -> Tensor:
    """Return for every canary how much likelier its first example is than its second, [m], as a log-ratio.

    What the others add in the direction in which a pair differs is taken for more noise.

    Args:
        released: of every step the noisy sum of gradients, divided by its noise and flattened, [P].
        sampling_rate: q, of every step.
        size: of the data set; what is no canary is the filler.
    """
    apart = canaries.gradients[1] - canaries.gradients[0]
    directions = apart / apart.norm(dim=1, keepdim=True).clamp_min(1e-30)
    along = canaries.gradients @ directions.T  # [2, from, towards]
    own = along.diagonal(dim1=1, dim2=2)
    fill, q = size - len(canaries), sampling_rate
    mean, square = along.mean(0), along.square().mean(0)
    spread = q * square - (q * mean).square()
    copies = directions @ canaries.filler[2]
    offset = q * (mean.sum(0) - mean.diagonal() + fill * copies)
    variance = 1 + spread.sum(0) - spread.diagonal() + fill * q * (1 - q) * copies.square()
    total = torch.zeros(len(canaries))
    for step in released:
        total += _log_ratio((directions @ step - offset) / variance.sqrt(), own / variance.sqrt(), q)
    return total


def _log_ratio(seen: Tensor, means: Tensor, q: float) -> Tensor:
    """Return the log-ratio of two mixtures: noise alone, and with probability q noise around a mean [2, m]."""
    shift = means * seen - means.square() / 2
    absent = torch.full_like(shift, math.log(1 - q) if q < 1 else -math.inf)
    second, first = torch.logaddexp(absent, math.log(q) + shift)
    return torch.sub(first, second)


def _pools(terrain: Terrain, pair: Point, count: int) -> Iterator[list[Tensor]]:
    """Yield for each canary the inputs [1, …] that its examples may have."""
    if terrain.admissible.vocabulary is not None:
        tokens = terrain.admissible.tokens((count, 2, *pair.x.shape[1:]), terrain.generator)
        yield from (list(torch.split(drawn, 1)) for drawn in tokens)
        return
    size = math.prod(terrain.module.input_shape)
    noise = torch.randn(count, size, generator=terrain.generator, dtype=torch.float64)
    for rows in torch.split(noise, size):
        for row in torch.linalg.qr(rows.T)[0].T:
            x = terrain.bounded_input(row.reshape(1, *terrain.module.input_shape))
            yield [x, -x]


class _Gradients:
    """Gradients of single examples at the weights of a module, in units of the noise."""

    def __init__(self, module: LipschitzModule, terrain: Terrain, stds: Mapping[str, float]) -> None:
        self.module, self.terrain, self.stds = module, terrain, stds
        self.dtype = next(module.parameters()).dtype

    def examples(self, x: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield input, target and gradient [P], for several targets of an input."""
        inputs = x.to(self.dtype) if x.is_floating_point() else x
        with torch.no_grad():
            output = self.module(inputs)
        for target in self.terrain.targets(output, _TARGETS):
            yield inputs, target, self.at(inputs, target)

    def at(self, x: Tensor, target: Tensor) -> Tensor:
        """Return the gradient [P] of one example."""
        return flattened(clipped_gradient(self.module, self.stds, x, target), self.stds)


def flattened(gradients: Mapping[str, Tensor], stds: Mapping[str, float]) -> Tensor:
    """Return gradients by name, each divided by its noise, as one vector [P] in single precision."""
    return torch.cat([(gradients[name].detach().double() / std).flatten() for name, std in stds.items()]).float()


def _both(gradients: _Gradients, pair: Point) -> tuple[Example, Example]:
    """Return the examples of a pair, the second one first."""
    inputs = pair.x.to(gradients.dtype) if pair.x.is_floating_point() else pair.x
    targets = pair.target.to(gradients.dtype) if pair.target.is_floating_point() else pair.target
    first, second = (
        (x, y, gradients.at(x, y)) for x, y in zip(torch.split(inputs, 1), torch.split(targets, 1), strict=True)
    )
    return second, first


def _pair(gradients: _Gradients, pool: Sequence[Tensor]) -> tuple[Example, Example]:
    """Return the two examples whose gradients are furthest apart, the second one first."""
    found = [example for x in pool for example in gradients.examples(x)]
    vectors = torch.stack([gradient for _, _, gradient in found])
    second, first = divmod(int(torch.cdist(vectors, vectors).argmax()), len(found))
    return found[second], found[first]


def _harmless(gradients: _Gradients, pools: Iterable[list[Tensor]], pair: tuple[Example, Example]) -> Example:
    """Return an example whose gradient does not lie in the direction in which a pair differs."""
    found = [example for pool in pools for x in pool for example in gradients.examples(x)]
    apart = pair[1][2] - pair[0][2]
    return min(found, key=lambda example: abs(float(example[2] @ apart)))


def _stacked(pairs: Sequence[tuple[Example, Example]], filler: Example) -> Canaries:
    sides = [tuple(zip(*side, strict=True)) for side in zip(*pairs, strict=True)]
    inputs, targets = (torch.stack([torch.cat(side[part]) for side in sides]) for part in (0, 1))
    return Canaries(inputs, targets, torch.stack([torch.stack(side[2]) for side in sides]), filler)


# --- pairs whose gradients differ most ---


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
        apart = self._difference(losses, point, curved)
        return output, {name: gradient / self.stds[name] for name, gradient in apart.items()}

    def _difference(self, losses: Tensor, point: Point, curved: bool) -> dict[str, Tensor]:
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
