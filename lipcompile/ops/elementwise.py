"""Ops that apply one scalar function to every entry: what is known of the function makes the rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from lipcompile.numbers import N, Numbers
from lipcompile.ops.record import AnyOp, Inputs, NoAttributes, Site, Theta
from lipcompile.ops.rules import plain, same_shape


class Elementwise(Protocol):
    """A number that belongs to φ, such as a Lipschitz constant of it, from the attributes."""

    def __call__(self, num: Numbers[N], attributes: Any, /) -> N: ...


class Share(Protocol):
    """g with |φ(t)| <= g·|t| for all |t| <= `entry`."""

    def __call__(self, num: Numbers[N], attributes: Any, entry: N, /) -> N: ...


class LargestNorm(Protocol):
    """A bound of the norm of φ at n `entries` whose norm is at most `size`."""

    def __call__(self, num: Numbers[N], attributes: Any, size: N, entries: int, /) -> N: ...


@dataclass(frozen=True, slots=True)
class Function:
    """What is known of a scalar function φ that acts on every entry.

    slope: a Lipschitz constant s; None where φ jumps or the op has a better rule, and norms follow from other
    fields. at_zero: |φ(0)|, None for 0. largest: sup|φ|, None where φ is unbounded. share: a bound g of |φ(t)/t|,
    better than s. exact: a bound of norms, better than the one that follows from these.
    """

    slope: Elementwise | None
    at_zero: Elementwise | None = None
    largest: Elementwise | None = None
    share: Share | None = None
    exact: LargestNorm | None = None

    def bound(self, num: Numbers[N], attributes: Any, size: N, entry: N, entries: int) -> N:
        """min(s·size + √n·|φ(0)|, √n·sup|φ|) or g·size: for n entries, each at most `entry`, of norm `size`."""
        if self.exact is not None:
            return self.exact(num, attributes, size, entries)
        bounds = self._grown(num, attributes, size, entry, entries)
        if self.largest is not None:
            bounds.append(num.sqrt(entries) * self.largest(num, attributes))
        return num.minimum(*bounds) if len(bounds) > 1 else bounds[0]

    def _grown(self, num: Numbers[N], attributes: Any, size: N, entry: N, entries: int) -> list[N]:
        """s·size + √n·|φ(0)|, or g·size; nothing if φ jumps and has no share."""
        if self.share is not None:
            return [self.share(num, attributes, entry) * size]
        if self.slope is None:
            return []
        grown = self.slope(num, attributes) * size
        return [grown if self.at_zero is None else grown + num.sqrt(entries) * self.at_zero(num, attributes)]


def elementwise(name: str, function: Function, **others: Any) -> AnyOp:
    """Return the record of φ acting on every entry; `others` as for `plain`."""
    slope = function.slope

    def norm(num: Numbers[N], site: Site[Any], x: Inputs[N], theta: Theta[N]) -> N:
        return function.bound(num, site.attributes, x[0].norm, x[0].entry, site.entries)

    def row(num: Numbers[N], site: Site[Any], x: Inputs[N], theta: Theta[N]) -> N:
        last = site.output[-1] if site.output else 1
        return function.bound(num, site.attributes, x[0].row, x[0].entry, last)

    def entry(num: Numbers[N], site: Site[Any], x: Inputs[N], theta: Theta[N]) -> N:
        return function.bound(num, site.attributes, x[0].entry, x[0].entry, 1)

    def lipschitz(num: Numbers[N], site: Site[Any], x: Inputs[N], theta: Theta[N]) -> Sequence[N]:
        assert slope is not None
        return [slope(num, site.attributes)]

    others.setdefault("lipschitz", None if slope is None else lipschitz)
    attributes = others.pop("attributes", NoAttributes)
    shape, proof = others.pop("shape", same_shape), others.pop("proof", "activation.md#elementwise")
    return plain(
        name,
        attributes,
        shape,
        proof,
        norm=norm,
        row=row,
        entry=entry,
        **others,
    )
