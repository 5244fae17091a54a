"""Reductions over axes of the example: sums, extremes, norms. Proofs: reduce.md.

n entries make one entry of the output. A row of the output is of length d if the last axis is not reduced; else it
is of length 1 where the axis is kept, or the rows are gone.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

from lipcompile.core.record import AnyOp, Inputs, NormRule, Shape, Site, Theta
from lipcompile.diagnostics import Refusal
from lipcompile.numbers import N, Numbers
from lipcompile.ops.rules import Gain, entry_of_input, homogeneous, one, plain, row_of_input, scaled


class Reduction(Protocol):
    """The attributes of a reduction."""

    @property
    def keep(self) -> bool:
        """Whether axes of size 1 stay in the place of those that are reduced."""

    def over(self, example: Shape) -> tuple[int, ...]:
        """Return the axes that are reduced, at least one, counted from 0; raises `Refusal`."""


@dataclass(frozen=True, slots=True)
class Reduce:
    """A reduction over `axes` of the example, over all if none are named; `keep` leaves axes of size 1."""

    axes: tuple[int, ...] = ()
    keep: bool = False

    def over(self, example: Shape) -> tuple[int, ...]:
        """Return the axes, counted from 0; refuse one that is named twice or does not exist."""
        rank = len(example)
        axes = sorted(axis % rank if -rank <= axis < rank else rank for axis in self.axes or range(rank))
        if not axes or axes[-1] == rank or len(set(axes)) < len(axes):
            raise Refusal(
                "LIP102",
                f"{list(self.axes)} does not name distinct axes of an example of shape {list(example)}",
                "count axes within one example, without the batch axis",
            )
        return tuple(axes)


@dataclass(frozen=True, slots=True)
class GlobalPool:
    """A window over all spatial entries; `keep` leaves axes of size 1 in their place."""

    keep: bool = False

    def over(self, example: Shape) -> tuple[int, ...]:
        """Return the spatial axes; refuse an example that has none."""
        if len(example) < 2:
            raise Refusal("LIP102", f"a global pool needs spatial axes, but the example has shape {list(example)}")
        return tuple(range(1, len(example)))


def reduced_shape(attributes: Reduction, inputs: tuple[Shape, ...]) -> Shape:
    """The sizes of the axes that are not reduced, and 1 for the others if they are kept."""
    gone = attributes.over(inputs[0])
    sizes = [1 if axis in gone else size for axis, size in enumerate(inputs[0])]
    return tuple(size for axis, size in enumerate(sizes) if attributes.keep or axis not in gone)


def reduced(site: Site[Reduction]) -> int:
    """n: the entries of the input that make one entry of the output."""
    return prod(site.inputs[0]) // site.entries


def within_rows(site: Site[Reduction]) -> bool:
    """Whether the last axis is among those that are reduced."""
    return len(site.inputs[0]) - 1 in site.attributes.over(site.inputs[0])


def rows(kept: NormRule[Any], entry: NormRule[Any], norm: NormRule[Any]) -> NormRule[Any]:
    """R_out: `kept` if the last axis stays; `entry` if rows are of length 1; else a row may be all there is."""

    def row(num: Numbers[N], site: Site[Reduction], x: Inputs[N], theta: Theta[N]) -> N:
        if not within_rows(site):
            return kept(num, site, x, theta)
        return (entry if site.attributes.keep else norm)(num, site, x, theta)

    return row


# Means and sums


def inverse_root(num: Numbers[N], site: Site[Reduction]) -> N:
    """1/√n."""
    return 1 / num.sqrt(reduced(site))


def root(num: Numbers[N], site: Site[Reduction]) -> N:
    """√n."""
    return num.sqrt(reduced(site))


def number(num: Numbers[N], site: Site[Reduction]) -> N:
    """n, of R and M: an entry of the output is the sum of n entries, and a row of n rows."""
    return num.of(reduced(site))


# Extremes


def row_of_extreme(num: Numbers[N], site: Site[Reduction], x: Inputs[N], theta: Theta[N]) -> N:
    """R_out = √min(n, d)·R: no entry of the row is larger than R, and n rows are all that it is chosen from."""
    return num.sqrt(min(reduced(site), site.output[-1])) * x[0].row


# Norms


def entry_of_norm(num: Numbers[N], site: Site[Reduction], x: Inputs[N], theta: Theta[N]) -> N:
    """M_out = √n·M, or √(n/d)·R if what is reduced are n/d whole rows."""
    by_entry = num.sqrt(reduced(site)) * x[0].entry
    if not within_rows(site):
        return by_entry
    return num.minimum(by_entry, num.sqrt(reduced(site) // site.inputs[0][-1]) * x[0].row)


# The logarithm of a sum of exponentials


def norm_of_logsumexp(num: Numbers[N], site: Site[Reduction], x: Inputs[N], theta: Theta[N]) -> N:
    """X_out = X + √P·log n, P the entries of the output."""
    return x[0].norm + num.sqrt(site.entries) * num.log(reduced(site))


def entry_of_logsumexp(num: Numbers[N], site: Site[Reduction], x: Inputs[N], theta: Theta[N]) -> N:
    """M_out = M + log n."""
    return x[0].entry + num.log(reduced(site))


def row_of_logsumexp(num: Numbers[N], site: Site[Reduction], x: Inputs[N], theta: Theta[N]) -> N:
    """R_out = √min(n, d)·R + √d·log n."""
    return row_of_extreme(num, site, x, theta) + num.sqrt(site.output[-1]) * num.log(reduced(site))


@dataclass(frozen=True, slots=True)
class Kind:
    """The rules of a reduction with X_out = l·X; `row` is that of rows which are not reduced themselves."""

    proof: str
    gain: Gain
    row: NormRule[Any]
    entry: NormRule[Any]

    def op(self, name: str, attributes: type[Any]) -> AnyOp:
        """Return the record of a reduction of this kind."""
        row = rows(self.row, self.entry, scaled(self.gain, "norm"))
        return homogeneous(name, attributes, reduced_shape, self.proof, self.gain, row=row, entry=self.entry)


MEAN = Kind("reduce.md#means-and-sums", inverse_root, row_of_input, entry_of_input)
SUM = Kind("reduce.md#means-and-sums", root, scaled(number, "row"), scaled(number, "entry"))
EXTREME = Kind("reduce.md#extremes", one, row_of_extreme, entry_of_input)
# A row of the output is as long as n rows together.
EUCLIDEAN = Kind("reduce.md#norms", one, scaled(root, "row"), entry_of_norm)
MAGNITUDES = Kind("reduce.md#norms", root, SUM.row, SUM.entry)

OPS: tuple[AnyOp, ...] = (
    MEAN.op("reduce_mean", Reduce),
    SUM.op("reduce_sum", Reduce),
    EXTREME.op("reduce_max", Reduce),
    EXTREME.op("reduce_min", Reduce),
    EUCLIDEAN.op("reduce_l2", Reduce),
    MAGNITUDES.op("reduce_l1", Reduce),
    plain(
        "logsumexp",
        Reduce,
        reduced_shape,
        "reduce.md#logsumexp",
        norm=norm_of_logsumexp,
        row=rows(row_of_logsumexp, entry_of_logsumexp, norm_of_logsumexp),
        entry=entry_of_logsumexp,
    ),
    MEAN.op("global_avg_pool", GlobalPool),
    EXTREME.op("global_max_pool", GlobalPool),
    EUCLIDEAN.op("global_l2_pool", GlobalPool),
)
