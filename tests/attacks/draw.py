"""Random choices from which instances of ops are made. Seeded, never timed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from random import Random
from typing import Any

from lipcompile.core.record import Constraint, ConstraintKind, NoAttributes, Shape

WEIGHT_KINDS: tuple[ConstraintKind, ...] = ("spectral", "orthogonal", "frobenius")


@dataclass(frozen=True)
class Draw:
    """Random choices for one instance."""

    rng: Random

    def fraction(self) -> Fraction:
        """A positive number between 1/32 and 64."""
        return Fraction(2) ** self.rng.randint(-5, 5) * Fraction(self.rng.randint(8, 16), 8)

    def shape(self, rank: int, largest: int = 4) -> Shape:
        return tuple(self.rng.randint(1, largest) for _ in range(rank))

    def any_shape(self) -> Shape:
        return self.shape(self.rng.randint(1, 3))

    def weight(self) -> Constraint:
        kind = self.rng.choice(WEIGHT_KINDS)
        return Constraint(kind, Fraction(1) if kind == "orthogonal" else self.fraction())

    def parameters(self) -> dict[str, Constraint]:
        chosen = {"weight": self.weight()}
        return chosen | {"bias": Constraint("ball", self.fraction())} if self.rng.random() < 0.5 else chosen

    def window(self, rank: int, *, dilated: bool = True) -> dict[str, tuple[Any, ...]]:
        """Kernel, stride, dilation and asymmetrical padding; not every draw fits its image."""
        pick = self.rng.randint
        return {
            "kernel": tuple(pick(1, 3) for _ in range(rank)),
            "stride": tuple(pick(1, 4) for _ in range(rank)),
            "dilation": tuple(pick(1, 2) if dilated else 1 for _ in range(rank)),
            "padding": tuple((pick(0, 2), pick(0, 2)) for _ in range(rank)),
        }

    def image(self) -> tuple[int, Shape]:
        rank = self.rng.choice((1, 1, 2, 2, 3))
        return rank, (self.rng.randint(1, 2), *self.shape(rank, {1: 7, 2: 5, 3: 3}[rank]))


Drawn = tuple[Any, list[Shape], dict[str, Constraint]]
Instance = Callable[[Draw], Drawn]


def plain(attributes: Callable[[Draw], Any], shape: Callable[[Draw], Shape] = Draw.any_shape) -> Instance:
    return lambda draw: (attributes(draw), [shape(draw)], {})


NO = NoAttributes()
no_attributes = plain(lambda _: NO)
