"""Floats that remember where a rule computed them, and can shrink or grow what one place computes.

A place is an expression of a rule's code: every constant that the rule brings in, every operation that it does
and every argument that it takes is one. So the mutants of a rule are complete by construction.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from types import CodeType

from lipcompile.core.record import Extent
from lipcompile.numbers import Arithmetic, Count, Scalar, Step, Symbol
from tests.suprema import supremum

Place = tuple[str, str]


@cache
def _positions(code: CodeType) -> tuple[str, ...]:
    """Return where in the source each instruction stands: interpreters may split or fuse the instructions."""
    return tuple(":".join(map(str, position)) for position in code.co_positions())


@dataclass
class Probe:
    """The domain of probed floats. What `target` computes is multiplied by `factor`; `seen` holds the rest."""

    target: Place | None = None
    factor: float = 1.0
    seen: dict[Place, float] = field(default_factory=dict)
    arguments: set[Place] = field(default_factory=set)
    memo: dict[object, object] = field(default_factory=dict)

    def extent(self, name: str, norm: float, row: float, entry: float) -> Extent[Probed]:
        """An extent whose measures are arguments."""
        return Extent(*(self.argument(f"{name}.{k}", v) for k, v in (("X", norm), ("R", row), ("M", entry))))

    def argument(self, name: str, value: float) -> Probed:
        self.arguments.add((name, ""))
        return self._at((name, ""), value)

    def here(self, value: float) -> Probed:
        """Record `value` under the expression of the rule that asked for it."""
        frame = sys._getframe(1)
        while frame.f_code.co_filename == __file__:
            assert frame.f_back is not None
            frame = frame.f_back
        return self._at((frame.f_code.co_qualname, _positions(frame.f_code)[frame.f_lasti // 2]), value)

    def _at(self, place: Place, value: float) -> Probed:
        self.seen[place] = max(self.seen.get(place, 0.0), abs(value))
        return Probed(value * self.factor if place == self.target else value, self)

    def of(self, value: Scalar | int) -> Probed:
        assert not isinstance(value, Symbol | Arithmetic)
        return self.here(float(value))

    def symbol(self, name: str, value: Scalar | None, meaning: str) -> Probed:
        raise NotImplementedError("no rule declares a symbol")

    def unbounded(self) -> Probed:
        return self.here(math.inf)

    def let(self, name: str, value: Probed, meaning: str) -> Probed:  # noqa: ARG002
        return value

    def power(self, step: Step[Probed], count: Count, name: str) -> Step[Probed]:  # noqa: ARG002
        raise AssertionError("no op's rule repeats anything")

    def sum(self, *xs: Probed) -> Probed:
        return self.here(sum(x.value for x in xs))

    def sqrt(self, x: Probed | Fraction | int) -> Probed:
        return self.here(math.sqrt(x.value if isinstance(x, Probed) else x))

    def exp(self, x: Probed) -> Probed:
        return self.here(math.exp(x.value))

    def expm1(self, x: Probed) -> Probed:
        return self.here(math.expm1(x.value))

    def log(self, x: int) -> Probed:
        return self.here(math.log(x))

    def minimum(self, *xs: Probed) -> Probed:
        return self.here(min(x.value for x in xs))

    def maximum(self, *xs: Probed) -> Probed:
        return self.here(max(x.value for x in xs))

    def max_over(self, start: int, stop: int, term: Callable[[Probed], Probed]) -> Probed:
        return self.here(max(term(Probed(m, self)).value for m in range(start, stop)))

    def supremum(self, value: Callable[[Probed], Probed], slope: object, of: object = ()) -> Probed:  # noqa: ARG002
        return self.here(supremum(lambda s: value(Probed(s, self)).value, sections=30))


@dataclass(frozen=True)
class Probed:
    """A float of the domain `of`."""

    value: float
    domain: Probe

    def __add__(self, other: Probed | int) -> Probed:
        return self.domain.here(self.value + _float(other))

    __radd__ = __add__

    def __sub__(self, other: Probed | int) -> Probed:
        return self.domain.here(self.value - _float(other))

    def __rsub__(self, other: int) -> Probed:
        return self.domain.here(other - self.value)

    def __mul__(self, other: Probed | int) -> Probed:
        return self.domain.here(self.value * _float(other))

    __rmul__ = __mul__

    def __truediv__(self, other: Probed | int) -> Probed:
        return self.domain.here(self.value / _float(other))

    def __rtruediv__(self, other: int) -> Probed:
        return self.domain.here(other / self.value)


def _float(x: Probed | int) -> float:
    return x.value if isinstance(x, Probed) else float(x)
