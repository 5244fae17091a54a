"""The Lipschitz constants of the losses of bounds.md, section 4, in the logits of norm X."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import cache, lru_cache
from math import prod
from typing import Any, NamedTuple

from mpmath import libmp

from .document import require, spend
from .intervals import UNBOUNDED, Exact, Real, decay, least, most, real, root
from .rules import Extent

# How far above the largest value found a supremum may be put, relatively, and how often parts are halved for that.
CLOSE, ROUNDS, MOST_PARTS = Fraction(1, 2**64), 64, 1000


class Loss(NamedTuple):
    """One row: attributes, the logits that it takes, and L from s and their extent; s.K of them in s.n vectors."""

    attributes: str
    logits: str
    bound: Callable[[Any, Extent], Real | Exact]


class _Arc:
    """Logits a below the mean of the others for the label, b above the rest for one of these: a² + b² = R²."""

    def __init__(self, classes: int, smoothing: Fraction, radius: Real) -> None:
        self.K, self.n, self.radius = classes, classes - 1, radius
        self.target = 1 - smoothing * Fraction(self.n, classes)
        self.rest, self.both = Fraction(self.n - 1, self.n), Fraction(classes, self.n)
        self.root_rest, self.root_both = root(self.rest), root(self.both)
        self.others = root(Fraction(self.n, max(self.n - 1, 1)))
        self.parting = root(Fraction(self.n**3, max(self.n - 1, 1))) * self.rest
        self.found = cache(lambda place: self.square(self.at(place, place)))  # ‖p - q‖² at one place

    def at(self, low: Fraction, high: Fraction) -> tuple[Real, ...]:
        """Enclose, for s = tan(arctan(a/b)/2) from low to high: a, b, J, 1 + (n-1)J, p_y and D of the proof."""
        sine = _from(2 * low / (1 + low**2), 2 * high / (1 + high**2))
        cosine = _from((1 - high**2) / (1 + high**2), (1 - low**2) / (1 + low**2))
        below, spread = self.radius * sine, self.radius * cosine
        j = decay(self.others * spread)
        label = decay(self.root_both * below + self.root_rest * spread)
        total = j * (self.n - 1) + 1
        return below, spread, j, total, label / (label + total), (1 - j) / total

    def square(self, place: tuple[Real, ...]) -> Real:
        """‖p - q‖²."""
        *_, lowest, apart = place
        missed, left = self.target - lowest, (1 - lowest) * apart
        return missed * missed * self.both + left * left * self.rest

    def bound(self, low: Fraction, high: Fraction) -> Real:
        """Bound ‖p - q‖² from one end by how fast it grows from there, from the other by how fast it falls."""
        below, spread, j, total, lowest, apart = part = self.at(low, high)
        pull = lowest * ((self.target - lowest) * self.both + (1 - lowest) * apart * apart * self.rest)
        parting = (1 - lowest) * self.parting * j / (total * total)
        up = pull * self.root_both * spread
        down = (pull * self.root_rest + parting) * apart * below
        factor = (1 - lowest) * (real(4) / (1 + low**2)) * (high - low)
        rising, falling = self.found(low) + factor * (up - down), self.found(high) + factor * (down - up)
        return least(self.square(part), rising, falling)


def _from(low: Fraction, high: Fraction) -> Real:
    """Enclose the numbers from one to another."""
    return Real(real(low).lo, real(high).hi)


def _entropy(s: Any, radius: Real) -> Real:
    """L_R of a vector of scaled norm R."""
    found, work = _largest(s.K, s.label_smoothing, radius.lo, radius.hi)
    spend(work)
    return found


@lru_cache(256)
def _largest(classes: int, smoothing: Fraction, *norm: Any) -> tuple[Real, int]:
    """L_R, and the work that it takes: parts of the arc that may hold more than what is found are halved."""
    arc, zero, one, work = _Arc(classes, smoothing, Real(*norm)), Fraction(0), Fraction(1), 0
    if classes == 2:
        return root(arc.found(one)), work
    largest = most(arc.found(zero), arc.found(one))
    parts = {(zero, one): arc.bound(zero, one)}
    for _ in range(ROUNDS):
        close = largest * (1 + CLOSE)
        parts = {part: bound for part, bound in parts.items() if libmp.mpf_gt(bound.hi, close.hi)}
        if not parts or len(parts) > MOST_PARTS:
            break
        work += 64 * len(parts)
        middles = [(low, (low + high) / 2, high) for low, high in parts]
        largest = most(largest, *(arc.found(middle) for _, middle, _ in middles))
        halves = [half for low, middle, high in middles for half in ((low, middle), (middle, high))]
        parts = {half: arc.bound(*half) for half in halves}
    above = least(arc.square(arc.at(zero, one)), most(largest * (1 + CLOSE), *parts.values()))
    return root(Real(largest.lo, above.hi)), work


def _gap(i: Real, classes: int, m: int) -> Real:
    """How far the m large probabilities of a vertex are above the others."""
    return (1 - i) / (i * classes + (1 - i) * m)


def _weight(s: Any) -> Fraction:
    """The largest weight of a class, times τ if the loss is not divided by it."""
    weights = s.class_weights or (Fraction(1),)
    require(
        len(weights) in ((1, s.K) if not s.class_weights else (s.K,)) and max(weights) > 0,
        "the weights do not fit",
    )
    require(s.label_smoothing < 1 and not (s.class_weights and s.label_smoothing), "no such smoothing")
    return max(weights) * (1 if s.normalise else s.temperature)


def _tokens(s: Any, x: Extent) -> Real:
    """Over n vectors: each by itself, or all together, as not every one can be far out."""
    k, norm = 1 - s.label_smoothing, x.X * s.temperature
    share = _gap(decay(root(Fraction(2, s.n)) * norm), s.K, s.K - 1)
    together = root((share * (2 * k) + k * k) * Fraction(s.n * (s.K - 1), s.K) + norm * norm / 4)
    return (
        least(root(s.n) * _entropy(s, x.R * s.temperature), together)
        * _weight(s)
        / (s.n if s.reduce == "mean" else 1)
    )


def _labels(s: Any, x: Extent) -> Real:
    """Over K logits: each as far out as one can be, or all together."""
    root_k = root(s.K)
    constant = least(root_k / (1 + decay(x.M * s.temperature)), root_k / 2 + x.X * s.temperature / 4)
    return constant * (1 if s.normalise else s.temperature) / (s.K if s.reduce == "mean" else 1)


def _classes(s: Any, slope: Exact = 1) -> Real:
    """Every class against the rest, summed or averaged."""
    return root(slope**2 * (Fraction(1, s.K) if s.reduce == "mean" else s.K))


def _residual(s: Any, x: Extent) -> Real:
    """The longest residual, if the targets have a bound."""
    return UNBOUNDED if s.target_norm is None else x.X + s.target_norm


def _pieces(s: Any, x: Extent, corner: Fraction, unit: Fraction) -> Real:
    """A gradient that is the residual up to a corner, and divided by a unit."""
    capped = (
        least(root(s.K * corner**2), x.X + s.target_norm) if s.target_norm is not None else root(s.K * corner**2)
    )
    return capped / unit / (s.K if s.reduce == "mean" else 1)


def _multi_margin(s: Any, x: Extent) -> Real:
    """The mean over k of max(0, margin - ŷ_y + ŷ_k)^p."""
    require(s.p <= 2, "p must be 1 or 2")
    side = Fraction(s.K - 1, s.K)
    return root(side) if s.p == 1 else root(4 * s.margin**2 * side) + x.X * 2


ENTROPY = "temperature:q+ normalise:flag label_smoothing:q0 class_weights:q0*"
LOSSES = {
    "cross_entropy": Loss(ENTROPY, "classes", lambda s, x: _entropy(s, x.X * s.temperature) * _weight(s)),
    "token_cross_entropy": Loss(ENTROPY + " reduce:mean|sum ignore:z?", "tokens", _tokens),
    "pixel_cross_entropy": Loss(
        ENTROPY + " reduce:mean|sum ignore:z?", "pixels", lambda s, x: _tokens(s, x._replace(R=x.X))
    ),
    "nll": Loss("", "classes", lambda s, x: 1),
    "bce": Loss(
        "temperature:q+ normalise:flag",
        "one",
        lambda s, x: (1 if s.normalise else s.temperature) / (1 + decay(x.X * s.temperature)),
    ),
    "multilabel_bce": Loss("temperature:q+ normalise:flag reduce:mean|sum", "numbers", _labels),
    "hinge": Loss("margin:q0", "one", lambda s, x: 1),
    "kr": Loss("", "one", lambda s, x: 1),
    "hkr": Loss("alpha:q0 margin:q0", "one", lambda s, x: 1 + s.alpha),
    "multiclass_hinge": Loss("margin:q0 reduce:mean|sum", "classes", lambda s, x: _classes(s)),
    "multiclass_kr": Loss("reduce:mean|sum", "classes", lambda s, x: _classes(s)),
    "multiclass_hkr": Loss("alpha:q0 margin:q0 reduce:mean|sum", "classes", lambda s, x: _classes(s, 1 + s.alpha)),
    "multi_margin": Loss("margin:q0 p:n", "classes", _multi_margin),
    "cosine": Loss("floor:q+", "classes", lambda s, x: 1 / s.floor),
    "squared_error": Loss("target_norm:q+?", "numbers", lambda s, x: _residual(s, x)),
    "mean_squared_error": Loss("target_norm:q+?", "numbers", lambda s, x: _residual(s, x) * 2 / s.K),
    "absolute_error": Loss("reduce:mean|sum", "numbers", lambda s, x: _classes(s)),
    "huber": Loss(
        "delta:q+ target_norm:q+? reduce:mean|sum", "numbers", lambda s, x: _pieces(s, x, s.delta, Fraction(1))
    ),
    "smooth_l1": Loss(
        "beta:q+ target_norm:q+? reduce:mean|sum", "numbers", lambda s, x: _pieces(s, x, s.beta, s.beta)
    ),
    "own": Loss("", "numbers", lambda s, x: UNBOUNDED),
}


def logits(s: Any, shape: tuple[int, ...], kind: str) -> None:
    """Check that the logits are of the kind that a loss takes: one, classes, several vectors, or any numbers."""
    axes = {"one": len(shape) <= 1, "classes": len(shape) == 1, "numbers": True}
    require(axes.get(kind, len(shape) > 1), "the loss does not take logits of this shape")
    s.K = prod(shape) if kind in ("one", "numbers") else shape[0 if kind == "pixels" else -1]
    s.n = prod(shape) // s.K
    require(
        s.K == 1 if kind == "one" else (1 if kind == "numbers" else 2) <= s.K, "the number of logits does not fit"
    )
