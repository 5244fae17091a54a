"""The rules in mpmath's floats of so many bits that no rounding is seen, beside the programs that are emitted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from math import inf
from types import SimpleNamespace
from typing import Any

import mpmath
from lipcompile_torch.certify import intervals as runtime

from lipcompile.analysis.bounds import derive, slope
from lipcompile.core.graph import Graph
from lipcompile.emitters.torch.programs import current_slope, following_bounds, last_dense
from lipcompile.numbers import Arithmetic, Count, Scalar, Step, Symbol
from tests.suprema import supremum

SLOPE = "slope"
REAL = mpmath.mp.clone()
REAL.prec = 1500  # of differences near 1 that are 1e-300, 500 bits are left


def real(value: Any) -> Any:
    """Return a fraction, an integer or a double as a float of many bits."""
    return (
        value if isinstance(value, REAL.mpf) else REAL.mpf(Fraction(value).numerator) / Fraction(value).denominator
    )


def exponential(x: Any) -> Any:
    """e^x = 2^n e^(x - n ln 2). Of an integer, mpmath would multiply e x times, which takes a minute for 1e200."""
    if not REAL.isfinite(x):
        return REAL.exp(x)
    with REAL.workprec(REAL.prec + max(0, REAL.mag(x))):
        twos = REAL.nint(x / REAL.ln2)
        return REAL.ldexp(REAL.exp(x - twos * REAL.ln2), int(twos))


@dataclass
class Precise:
    """The domain of such floats, which take integers in all operations."""

    memo: dict[object, object] = field(default_factory=dict)

    def of(self, value: Scalar | int) -> Any:
        assert not isinstance(value, Symbol | Arithmetic)
        return real(value)

    def symbol(self, name: str, value: Scalar | None, meaning: str) -> Any:  # noqa: ARG002
        assert value is not None, f"{name} is open"
        return self.of(value)

    def unbounded(self) -> Any:
        return REAL.inf

    def let(self, name: str, value: Any, meaning: str) -> Any:  # noqa: ARG002
        return value

    def sum(self, *xs: Any) -> Any:
        return REAL.fsum(xs)

    def sqrt(self, x: Any) -> Any:
        return REAL.sqrt(real(x))

    def exp(self, x: Any) -> Any:
        return exponential(x)

    def expm1(self, x: Any) -> Any:
        return exponential(x) - 1

    def log(self, x: int) -> Any:
        return REAL.log(x)

    def minimum(self, *xs: Any) -> Any:
        return min(xs)

    def maximum(self, *xs: Any) -> Any:
        return max(xs)

    def max_over(self, start: int, stop: int, term: Callable[[Any], Any]) -> Any:
        return max(term(real(m)) for m in range(start, stop))

    def supremum(self, value: Callable[[Any], Any], slope: Callable[[Any], Any], of: Any = ()) -> Any:  # noqa: ARG002
        return supremum(value, real)

    def power(self, step: Step[Any], count: Count, name: str) -> Step[Any]:  # noqa: ARG002
        raise AssertionError("programs are written of graphs that are unrolled")


Norms = Mapping[str, float]


def claims(graph: Graph, norms: Norms, clip: float = inf) -> dict[str, float]:
    """What the emitted programs of a graph say at these norms of its weights: K by parameter name, the slope."""
    lines = [*following_bounds(graph), *([] if graph.input.tokens else ["", *current_slope(graph)])]
    scope: dict[str, Any] = {"num": runtime}
    exec("\n".join(lines), scope)
    found = scope["gradient_bounds"](SimpleNamespace(certified_norms=lambda: norms, loss_limit=clip))
    assert all(type(bound) is float for bound in found.values())
    if graph.input.tokens:
        return dict(found)
    exact_norms = {name: runtime.Interval.exactly(norm) for name, norm in norms.items()}
    return {**found, SLOPE: runtime.Interval.around(scope["slope"](None, exact_norms)).high}


def truths(graph: Graph, norms: Norms, clip: float = inf) -> dict[str, Any]:
    """The same numbers as the rules say them."""
    current = {name: real(norm) for name, norm in norms.items()}
    limit = REAL.inf if clip == inf else real(clip)
    found = dict(derive(graph, Precise(), current, clip=limit).gradient)
    last = last_dense(graph)
    value = graph.output if last is None else last.inputs[0]
    return found if graph.input.tokens else {**found, SLOPE: slope(graph, Precise(), current, value)}


def below(graph: Graph, norms: Norms, clip: float = inf) -> list[str]:
    """The numbers that a program claims, and the rules exceed."""
    return faults(graph, norms, clip, margin=inf)


def faults(graph: Graph, norms: Norms, clip: float = inf, margin: float = 1e-9) -> list[str]:
    """The numbers that a program claims, and that the rules exceed, or that exceed them by more than rounding."""
    claimed, most = claims(graph, norms, clip), REAL.mpf(1 + margin)
    found = truths(graph, norms, clip)
    return [name for name, truth in found.items() if truth > claimed[name] or claimed[name] > truth * most]
