"""Copies and interpolation: maps whose outputs are fixed combinations of a few entries. Proofs: resample.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import lcm, prod
from typing import Any, Literal

from lipcompile.core.record import AnyOp, AxisOrder, Condition, Inputs, Shape, ShapeRule, Site, Theta
from lipcompile.diagnostics import Refusal
from lipcompile.numbers import N, Numbers
from lipcompile.numbers.rounding import round_up
from lipcompile.ops import counting
from lipcompile.ops.rules import entry_of_input, feature_axis, homogeneous
from lipcompile.ops.schema import Axis, Padding, PerAxis

Interpolation = Literal["nearest", "bilinear", "bicubic"]
# One row of an interpolation matrix: (entry, weight) pairs, no entry twice.
Row = tuple[tuple[int, Fraction], ...]
# Integers below this, times weights below 2, are doubles.
LARGEST_DENOMINATOR = 2**50
# The most entries of a matrix whose norm is proved.
LARGEST_MATRIX = 2**22
# What a row of exact weights costs, in entries that are merely counted.
_WORK = 32


@dataclass(frozen=True, slots=True)
class Pad:
    """What `mode` puts before and after each spatial axis of an example [channels, *spatial]."""

    padding: Padding
    mode: counting.Mode = "zeros"


@dataclass(frozen=True, slots=True)
class Upsample:
    """Each spatial axis of an example [channels, *spatial] becomes `factor` times as long, as in torch."""

    factor: PerAxis
    mode: Interpolation = "nearest"
    align_corners: bool = False


@dataclass(frozen=True, slots=True)
class Gather:
    """The entries `indices` of an axis (the features by default), each as often as it is named."""

    indices: tuple[int, ...]
    axis: Axis = None


@dataclass(frozen=True, slots=True)
class Expand:
    """The shape to broadcast to, aligned at the last axis; -1 keeps a size."""

    shape: tuple[int, ...]


# Shapes


def pad_shape(attributes: Pad, inputs: tuple[Shape, ...]) -> Shape:
    """[c, *spatial] -> [c, *spatial + padding]."""
    if len(attributes.padding) != len(inputs[0]) - 1:
        raise Refusal(
            "LIP102",
            f"the padding covers {len(attributes.padding)} axes, but the example has shape {list(inputs[0])}",
        )
    spatial = list(zip(inputs[0][1:], attributes.padding, strict=True))
    for axis, (size, sides) in enumerate(spatial):
        counting.refuse_padding(size, sides, attributes.mode, axis)
    return (inputs[0][0], *(size + sum(sides) for size, sides in spatial))


def upsample_shape(attributes: Upsample, inputs: tuple[Shape, ...]) -> Shape:
    """[c, *spatial] -> [c, *spatial·factor]."""
    example = inputs[0]
    if len(example) < 2 or len(attributes.factor) != len(example) - 1:
        raise Refusal("LIP102", f"{len(attributes.factor)} factors for the spatial axes of {list(example)}")
    if attributes.align_corners and attributes.mode == "nearest":
        raise Refusal("LIP102", "nearest upsampling cannot align corners", 'choose mode="bilinear" or "bicubic"')
    spatial = list(zip(example[1:], attributes.factor, strict=True))
    for axis, (size, factor) in enumerate(spatial):
        if attributes.mode != "nearest":
            made = f"{_WORK} for each entry, axis {axis} of size {size}, {factor} times as long,"
            counting.refuse_long(_WORK * size * factor, made)
    return (example[0], *(size * factor for size, factor in spatial))


def gather_shape(attributes: Gather, inputs: tuple[Shape, ...]) -> Shape:
    """The shape with one entry per index along the axis."""
    example, axis = inputs[0], feature_axis(attributes.axis, inputs[0])
    outside = [index for index in attributes.indices if not 0 <= index < example[axis]]
    if outside or not attributes.indices:
        fault = f"there is no entry {outside[0]} in" if outside else "no entry is taken of"
        raise Refusal("LIP102", f"{fault} axis {axis} of {list(example)}", "indices are counted from 0")
    return (*example[:axis], len(attributes.indices), *example[axis + 1 :])


def expand_shape(attributes: Expand, inputs: tuple[Shape, ...]) -> Shape:
    """The given shape, with -1 filled in."""
    example, missing = inputs[0], len(attributes.shape) - len(inputs[0])
    sizes = (*(1 for _ in range(missing)), *example)
    fits = missing >= 0 and all(
        own in (1, new) or new == -1 for own, new in zip(sizes, attributes.shape, strict=True)
    )
    if not fits or any(new < 1 and (new != -1 or axis < missing) for axis, new in enumerate(attributes.shape)):
        raise Refusal("LIP102", f"an example of shape {list(example)} does not expand to {list(attributes.shape)}")
    return tuple(own if new == -1 else new for own, new in zip(sizes, attributes.shape, strict=True))


# Copies


def pad_copies(site: Site[Pad]) -> tuple[int, ...]:
    """Return, axis by axis, how often the entry that stands in the output most often does so."""
    sides = zip(site.inputs[0][1:], site.attributes.padding, strict=True)
    return (1, *(counting.copies(size, padding, site.attributes.mode) for size, padding in sides))


def gather_copies(site: Site[Gather]) -> tuple[int, ...]:
    """As `pad_copies`: how often the index that is named most often is named."""
    example, most = site.inputs[0], max(Counter(site.attributes.indices).values())
    chosen = feature_axis(site.attributes.axis, example)
    return tuple(most if axis == chosen else 1 for axis in range(len(example)))


def expand_copies(site: Site[Expand]) -> tuple[int, ...]:
    """As `pad_copies`: the sizes of new axes, and those that axes of size 1 grow to."""
    example, missing = site.inputs[0], len(site.output) - len(site.inputs[0])
    grown = (new // own for own, new in zip(example, site.output[missing:], strict=True))
    return (*site.output[:missing], *grown)


def _copying(
    name: str,
    attributes: type[Any],
    shape: ShapeRule[Any],
    copies: Callable[[Site[Any]], tuple[int, ...]],
    axes: AxisOrder = "kept",
) -> AnyOp:
    """Return the record of an op whose outputs are entries of its input, or zeros."""

    def gain(num: Numbers[N], site: Site[Any]) -> N:
        """√c, c the product of the copies over the axes."""
        return num.sqrt(prod(copies(site)))

    def row(num: Numbers[N], site: Site[Any], x: Inputs[N], theta: Theta[N]) -> N:
        """R_out = √c·R, c the copies along the last axis: the other axes copy whole rows."""
        return num.sqrt(prod(copies(site)[-1:])) * x[0].row

    def counts(site: Site[Any]) -> Mapping[str, Condition]:
        """c, axis by axis."""
        return {"copies": copies(site)}

    return homogeneous(
        name,
        attributes,
        shape,
        "resample.md#copies",
        gain,
        row=row,
        entry=entry_of_input,
        conditions=counts,
        axes=axes,
    )


# Interpolation


@lru_cache(maxsize=256)
def interpolation(size: int, factor: int, mode: Interpolation, align_corners: bool) -> tuple[Row, ...]:
    """Return the matrix that enlarges an axis of `size` entries, as rows, with torch's weights, exactly.

    Output o stands at o·(size-1)/(size·factor-1) if the corners are aligned, else at (2o+1)/(2·factor) - 1/2.
    Entries beyond the border are the border's.
    """
    return tuple(_row(_place(output, size, factor, align_corners), size, mode) for output in range(size * factor))


def _place(output: int, size: int, factor: int, align_corners: bool) -> Fraction:
    if align_corners:
        return Fraction(output * (size - 1), max(size * factor - 1, 1))
    return Fraction(2 * output + 1, 2 * factor) - Fraction(1, 2)


def _row(place: Fraction, size: int, mode: Interpolation) -> Row:
    reach, weight = (1, linear_weight) if mode == "bilinear" else (2, cubic_weight)
    below = place.__floor__()
    row: dict[int, Fraction] = {}
    for entry in range(below - reach + 1, below + reach + 1):
        inside = min(max(entry, 0), size - 1)
        row[inside] = row.get(inside, Fraction(0)) + weight(abs(place - entry))
    return tuple(sorted(row.items()))


def linear_weight(distance: Fraction) -> Fraction:
    """1 - d for d <= 1."""
    return 1 - distance


def cubic_weight(distance: Fraction) -> Fraction:
    """Keys' cubic kernel for d <= 2, with torch's a = -3/4."""
    a, d = Fraction(-3, 4), distance
    if d <= 1:
        return (a + 2) * d**3 - (a + 3) * d**2 + 1
    return a * (d**3 - 5 * d**2 + 8 * d - 4)


@lru_cache(maxsize=256)
def interpolation_gram(size: int, factor: int, mode: Interpolation, align_corners: bool) -> Fraction:
    """Return an upper bound of ‖A‖², A the matrix of `interpolation`: the smaller of Schur's and a proved one."""
    rows = interpolation(size, factor, mode, align_corners)
    columns: Counter[int] = Counter()
    for row in rows:
        columns.update({entry: abs(weight) for entry, weight in row})
    schur = largest_sum(size, factor, mode, align_corners) * max(columns.values())
    return schur if len(rows) * size > LARGEST_MATRIX else min(schur, _proved_norm(rows, size) ** 2)


def _proved_norm(rows: tuple[Row, ...], size: int) -> Fraction:
    """‖A‖, rounded up: A times the common denominator of its entries is exactly a matrix of doubles."""
    import numpy as np  # here, because `check` starts faster without it

    from lipcompile.ops import norms  # which counts windows itself

    scale = lcm(*(weight.denominator for row in rows for _, weight in row))
    if scale > LARGEST_DENOMINATOR:
        raise Refusal("LIP110", f"an axis of {size} entries is too long to be interpolated with aligned corners")
    matrix = np.zeros((len(rows), size))
    for output, row in enumerate(rows):
        for entry, weight in row:
            matrix[output, entry] = int(weight * scale)
    return round_up(norms.spectral_norm(matrix).bound / scale, 9)


def largest_sum(size: int, factor: int, mode: Interpolation, align_corners: bool) -> Fraction:
    """Return the largest sum of absolute weights of an output: the norm of A as a map of largest entries."""
    rows = interpolation(size, factor, mode, align_corners)
    return max(sum((abs(weight) for _, weight in row), start=Fraction(0)) for row in rows)


def _axes(site: Site[Upsample]) -> list[tuple[int, int, Interpolation, bool]]:
    a = site.attributes
    return [(size, f, a.mode, a.align_corners) for size, f in zip(site.inputs[0][1:], a.factor, strict=True)]


def enlarged(num: Numbers[N], site: Site[Upsample]) -> N:
    """√Π factor for copies, else Π‖A_axis‖: the whole is a Kronecker product."""
    if site.attributes.mode == "nearest":
        return num.sqrt(prod(site.attributes.factor))
    return num.sqrt(prod((interpolation_gram(*axis) for axis in _axes(site)), start=Fraction(1)))


def enlarged_row(num: Numbers[N], site: Site[Upsample], x: Inputs[N], theta: Theta[N]) -> N:
    """R_out = ‖A_last‖·Πs_axis·R, s_axis the largest absolute row sum of the other axes: they add up rows."""
    if site.attributes.mode == "nearest":
        return num.sqrt(site.attributes.factor[-1]) * x[0].row
    *others, last = _axes(site)
    sums = prod((largest_sum(*axis) for axis in others), start=Fraction(1))
    return num.sqrt(interpolation_gram(*last)) * num.of(sums) * x[0].row


def enlarged_entry(num: Numbers[N], site: Site[Upsample], x: Inputs[N], theta: Theta[N]) -> N:
    """M_out = Πs_axis·M, s_axis the largest absolute row sum: 1 but for bicubic."""
    if site.attributes.mode == "nearest":
        return x[0].entry
    return num.of(prod((largest_sum(*axis) for axis in _axes(site)), start=Fraction(1))) * x[0].entry


def squared_gains(site: Site[Upsample]) -> Mapping[str, Condition]:
    """‖A_axis‖², axis by axis."""
    if site.attributes.mode == "nearest":
        return {"squared_gain": tuple(map(Fraction, site.attributes.factor))}
    return {"squared_gain": tuple(interpolation_gram(*axis) for axis in _axes(site))}


OPS: tuple[AnyOp, ...] = (
    _copying("pad", Pad, pad_shape, pad_copies),
    _copying("gather", Gather, gather_shape, gather_copies),
    _copying("expand", Expand, expand_shape, expand_copies, axes="placed"),
    homogeneous(
        "upsample",
        Upsample,
        upsample_shape,
        "resample.md#interpolation",
        enlarged,
        row=enlarged_row,
        entry=enlarged_entry,
        conditions=squared_gains,
        axes="channels",
    ),
)
