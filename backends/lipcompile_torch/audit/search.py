"""An adversary against the bounds of a module: how much of each claimed gradient norm can really be attained?

The adversary chooses one example, its target and the weights, all within what the bounds were derived for, and
climbs the norm of the gradient of that example, in float64. The search attains a lower bound of the true supremum;
the claim must be an upper bound. So a ratio above 1 refutes the claim, and a ratio near 1 shows that no smaller
bound is possible. A low ratio shows little: a loose bound, or a weak adversary.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from typing import Protocol

import torch

from ..certify.precision import rounding_slack
from ..train.module import LipschitzModule
from .points import STARTS, Look, Point, Start, Terrain, draw, whole_bound
from .points import Admissible as Admissible

_STEEP, _FLAT = 8.0, 1e-3  # sizes of steps, in radii of the sets: the first one, and where an ascent gives up
_PATIENCE = 3  # steps that gain less than _GAIN before an ascent ends
_GAIN = 1e-6


@dataclass(frozen=True)
class AuditConfig:
    """How hard the adversary tries.

    Args:
        restarts: ascents of the whole gradient, each from another start.
        steps: most steps of an ascent.
        seed: of everything random.
        enough: a parameter whose ratio is below this afterwards is attacked by itself, from the best point found
            for it, and from other starts until its ratio is this.
    """

    restarts: int = 4
    steps: int = 60
    seed: int = 0
    enough: float = 0.95

    def __post_init__(self) -> None:
        """Refuse an audit that would try nothing."""
        if self.restarts < 1 or self.steps < 1:
            raise ValueError("an audit needs at least one restart of one step")


@dataclass(frozen=True)
class Attained:
    """A claimed bound and the largest norm that was found, with every weight certified to lie in its set."""

    claimed: float
    attained: float

    @property
    def ratio(self) -> float:
        """Attained over claimed; infinite if a bound of 0 was exceeded, 1 if it was attained."""
        if self.claimed == 0:
            return math.inf if self.attained > 0 else 1.0
        return self.attained / self.claimed

    @property
    def exceeded(self) -> bool:
        """Whether the claim is refuted: attained by more than float64 can round."""
        return self.ratio > 1 + rounding_slack(torch.float64)


@dataclass(frozen=True)
class Audit:
    """The result of an audit, by parameter and for the whole gradient."""

    parameters: Mapping[str, Attained]
    total: Attained

    @property
    def sound(self) -> bool:
        """Whether no claim was refuted."""
        return not any(found.exceeded for found in (*self.parameters.values(), self.total))


class Watch(Protocol):
    """Is told how an audit goes."""

    def planned(self, ascents: int) -> None:
        """There will be this many ascents altogether."""

    def climbed(self, objective: str, ratio: float) -> None:
        """An ascent of `objective`, a parameter or "total", ended; the best ratio so far."""


def audit(module: LipschitzModule, admissible: Admissible, config: AuditConfig, watch: Watch) -> Audit:
    """Attack the bounds of `module`, which must be in float64, as its `gradient_bounds` states them.

    The weights of `module` end anywhere in their constraint sets.

    Raises:
        ValueError: the module is not in float64.
    """
    if any(parameter.dtype != torch.float64 for parameter in module.parameters()):
        raise ValueError("an audit needs a module in float64: call module.double() first")
    generator = torch.Generator().manual_seed(config.seed)
    campaign = _Campaign(Terrain(module, admissible, generator), config)
    campaign.run(watch)
    return campaign.audit()


class _Campaign:
    """All ascents of one audit, and the best points they found."""

    def __init__(self, terrain: Terrain, config: AuditConfig) -> None:
        self.terrain, self.config = terrain, config
        self.best: dict[str, tuple[float, Point]] = {}
        self.names = tuple(terrain.bounds)
        self.claims = {**terrain.bounds, "": whole_bound(terrain.module)}

    def run(self, watch: Watch) -> None:
        """Climb the whole gradient, then each parameter's own that is not attained yet."""
        if not self.names:
            return
        watch.planned(self.config.restarts)
        for start in self._starts():
            self._climb(draw(self.terrain, start), self.names)
            watch.climbed("total", self._ratio(""))
        loose = [name for name in self.names if self._ratio(name) < self.config.enough]
        watch.planned(self.config.restarts + len(loose))
        for name in loose:
            self._climb_alone(name)
            watch.climbed(name, self._ratio(name))

    def _starts(self) -> Iterator[Start]:
        return islice(cycle(STARTS), self.config.restarts)

    def _climb_alone(self, name: str) -> None:
        self._climb(self.best[name][1], (name,))
        for start in self._starts():
            if self._ratio(name) >= self.config.enough:
                break
            self._climb(draw(self.terrain, start), (name,))

    def _climb(self, start: Point, objective: Sequence[str]) -> None:
        for point, look in climb(self.terrain, start, objective, self.config.steps):
            self._note(point, look)

    def _note(self, point: Point, look: Look) -> None:
        counted = self.terrain.counted(look.squares)
        for name, square in (*counted.items(), ("", math.fsum(counted.values()))):
            finite = square if math.isfinite(square) else 0.0
            if name not in self.best or self.best[name][0] < finite:
                self.best[name] = (finite, point)

    def _ratio(self, name: str) -> float:
        claim = self.claims[name]
        return math.sqrt(self.best[name][0]) / claim if claim > 0 else 1.0

    def audit(self) -> Audit:
        """Certify the best points and measure again: weights that lie in their sets only nearly prove nothing."""
        attained = dict.fromkeys(self.claims, 0.0)
        for point in {id(point): point for _, point in self.best.values()}.values():
            squares = self.terrain.certified_squares(point)
            for name, square in (*squares.items(), ("", math.fsum(squares.values()))):
                attained[name] = max(attained[name], math.sqrt(square))
        found = {name: Attained(claim, attained[name]) for name, claim in self.claims.items()}
        return Audit({name: found[name] for name in self.names}, found[""])


def climb(terrain: Terrain, point: Point, objective: Sequence[str], steps: int) -> Iterator[tuple[Point, Look]]:
    """Yield the points of an ascent of the gradient norm in the parameters of `objective`, each with its look."""
    ascent = _Ascent(terrain, objective)
    idle = 0
    for _ in range(steps):
        point, look = ascent.choose(point, terrain.look(point, objective))
        yield point, look
        point, value = ascent.step(point, look)
        idle = idle + 1 if value <= look.value * (1 + _GAIN) else 0
        if idle == _PATIENCE or ascent.exhausted:
            break
    yield point, terrain.look(point, objective)


class _Ascent:
    """Steps in all blocks of a point at once, or in one after the other where that fails."""

    def __init__(self, terrain: Terrain, objective: Sequence[str]) -> None:
        self.terrain, self.objective = terrain, objective
        self.sizes: dict[str, float] = {}

    @property
    def exhausted(self) -> bool:
        """Whether even small steps gained nothing."""
        return max(self.sizes.values(), default=0.0) < _FLAT

    def choose(self, point: Point, look: Look) -> tuple[Point, Look]:
        """Change the target, or a token, where that gains."""
        targets = (replace(point, target=target) for target in self.terrain.targets(look.output, 2))
        sequences = (replace(point, x=x) for x in self.terrain.sequences(point.x, 4))
        best, value = point, look.value * (1 + 1e-9)
        for other in (*targets, *sequences):
            gained = self.terrain.value(other, self.objective)
            if gained > value:
                best, value = other, gained
        return (point, look) if best is point else (best, self.terrain.look(best, self.objective))

    def step(self, point: Point, look: Look) -> tuple[Point, float]:
        """Return a point of a larger value, or the same."""
        steep = [name for name, slope in look.slopes.items() if slope.abs().max() > 0]
        self.sizes = {name: self.sizes.get(name, _STEEP) for name in steep}
        trial = self.terrain.moved(point, look.slopes, self.sizes)
        value = self.terrain.value(trial, self.objective)
        if value > look.value:
            self.sizes = {name: min(2 * size, 64.0) for name, size in self.sizes.items()}
            return trial, value
        return self._one_by_one(point, look)

    def _one_by_one(self, point: Point, look: Look) -> tuple[Point, float]:
        best = look.value
        for name, size in self.sizes.items():
            trial = self.terrain.moved(point, look.slopes, {name: size})
            value = self.terrain.value(trial, self.objective)
            if value > best:
                point, best = trial, value
            else:
                self.sizes[name] = size / 4
        return point, best
