"""Centring, and norms that divide by a deviation. Proofs: normalisation.md.

A group is the set of entries that share a mean or a deviation: n entries, k of them in one row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import prod
from typing import Any, NamedTuple

from lipcompile.core.record import AnyOp, AxisOrder, Extent, Inputs, NormRule, Shape, ShapeRule, Site, Theta
from lipcompile.diagnostics import Refusal
from lipcompile.numbers import N, Numbers, Scalar
from lipcompile.ops.rules import feature_axis, plain


@dataclass(frozen=True, slots=True)
class Center:
    """x - mean over `axes` of the example; without any, over all its entries."""

    axes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class OverAxes:
    """Groups are what `axes` of the example span; divides by max(floor, deviation) or by √(deviation² + eps)."""

    floor: Scalar | None = None
    eps: Scalar | None = None
    axes: tuple[int, ...] = (-1,)


@dataclass(frozen=True, slots=True)
class GroupNorm:
    """Groups are runs of channels of an example [channels, *spatial], with all their positions."""

    groups: int
    floor: Scalar | None = None
    eps: Scalar | None = None


@dataclass(frozen=True, slots=True)
class InstanceNorm:
    """Groups are the channels of an example [channels, *spatial]."""

    floor: Scalar | None = None
    eps: Scalar | None = None


Norm = OverAxes | GroupNorm | InstanceNorm


# Groups


class Group(NamedTuple):
    """n entries share one mean, k of them lie in one row."""

    n: int
    k: int

    @property
    def within_row(self) -> bool:
        """Whether groups are parts of rows."""
        return self.n == self.k


def axes_of(axes: Sequence[int], example: Shape) -> tuple[int, ...]:
    """The axes, from 0 and in order; all of them if none are given."""
    found = sorted({feature_axis(axis, example) for axis in axes} if axes else range(len(example)))
    if axes and len(found) != len(axes):
        raise Refusal("LIP102", f"the axes {list(axes)} of an example of shape {list(example)} are not distinct")
    return tuple(found)


def spanned(axes: Sequence[int], example: Shape) -> Group:
    """The groups that axes of the example span."""
    found = axes_of(axes, example)
    in_row = bool(found) and found[-1] == len(example) - 1
    return Group(prod(example[axis] for axis in found), example[-1] if in_row else 1)


def center_group(attributes: Center, example: Shape) -> Group:
    """Entries with one mean."""
    return spanned(attributes.axes, example)


def norm_group(norm: Norm, example: Shape) -> Group:
    """Entries with one deviation."""
    if isinstance(norm, OverAxes):
        return spanned(norm.axes, example)
    if isinstance(norm, InstanceNorm):
        _need_axes(example, 2)
        return spanned(range(1, len(example)), example)
    _need_axes(example, 1)
    if example[0] % norm.groups:
        raise Refusal("LIP102", f"{norm.groups} groups do not divide {example[0]} channels")
    n = prod(example) // norm.groups
    return Group(n, n if len(example) == 1 else example[-1])


def _need_axes(example: Shape, rank: int) -> None:
    if len(example) < rank:
        wanted = "[channels, *spatial]" if rank == 2 else "[channels, ...]"
        raise Refusal("LIP102", f"this norm needs an example {wanted}, not {list(example)}")


def center_shape(attributes: Center, inputs: tuple[Shape, ...]) -> Shape:
    """The input's shape."""
    _need_several(center_group(attributes, inputs[0]), inputs[0])
    return inputs[0]


def centred_norm_shape(norm: Norm, inputs: tuple[Shape, ...]) -> Shape:
    """The input's shape, if the deviation is bounded from below."""
    _check_floor(norm)
    _need_several(norm_group(norm, inputs[0]), inputs[0])
    return inputs[0]


def rms_norm_shape(norm: OverAxes, inputs: tuple[Shape, ...]) -> Shape:
    """The input's shape, if the root mean square is bounded from below."""
    _check_floor(norm)
    norm_group(norm, inputs[0])
    return inputs[0]


def _need_several(group: Group, example: Shape) -> None:
    if group.n < 2:
        message = (
            f"every group of an example of shape {list(example)} has only one entry, and an entry minus its "
            "own mean is 0"
        )
        raise Refusal("LIP102", message, "choose other axes, or fewer groups")


def _check_floor(norm: Norm) -> None:
    if (norm.floor is None) == (norm.eps is None):
        message = "a norm needs either a floor for its deviation or the eps of an ordinary norm, not both"
        raise Refusal("LIP102", message, "write floor=0.5: its slope is at most 1/floor")
    for name, value in (("floor", norm.floor), ("eps", norm.eps)):
        if isinstance(value, Fraction) and value <= 0:
            raise Refusal("LIP104", f"`{name}` must be positive")


# Centring


def keep(num: Numbers[N], group: Group) -> N:
    """1 - 1/n, the squared norm of one row of the centring matrix."""
    return num.of(Fraction(group.n - 1, group.n))


def centred_row(num: Numbers[N], group: Group, x: Extent[N]) -> N:
    """R where groups are parts of rows; min(√(1-1/n)·X, 2(1-1/n)·R) where rows cross them; else X."""
    if group.within_row:
        return x.row
    if group.k > 1:
        return x.norm
    return num.minimum(num.sqrt(keep(num, group)) * x.norm, 2 * keep(num, group) * x.row)


def centred_entry(num: Numbers[N], group: Group, x: Extent[N]) -> N:
    """min(√(1-1/n)·Y, 2(1-1/n)·M), Y a bound of the norm of a group: R where groups are parts of rows, else X."""
    own = x.row if group.within_row else x.norm
    return num.minimum(num.sqrt(keep(num, group)) * own, 2 * keep(num, group) * x.entry)


def center_row(num: Numbers[N], site: Site[Center], x: Inputs[N], theta: Theta[N]) -> N:
    """R_out of centred rows."""
    return centred_row(num, center_group(site.attributes, site.output), x[0])


def center_entry(num: Numbers[N], site: Site[Center], x: Inputs[N], theta: Theta[N]) -> N:
    """M_out of centred entries."""
    return centred_entry(num, center_group(site.attributes, site.output), x[0])


# Norms


def floor_of(num: Numbers[N], norm: Norm) -> N:
    """α, the least number that is divided by: the floor, or √ε."""
    if norm.floor is not None:
        return num.of(norm.floor)
    assert norm.eps is not None
    return num.sqrt(num.of(norm.eps))


def bounded_norm(num: Numbers[N], site: Site[Norm], x: Inputs[N], theta: Theta[N]) -> N:
    """X_out = min(X/α, √N), N the number of all entries."""
    return num.minimum(x[0].norm / floor_of(num, site.attributes), num.sqrt(site.entries))


def bounded_slope(num: Numbers[N], site: Site[Norm], x: Inputs[N], theta: Theta[N]) -> Sequence[N]:
    """l = 1/α."""
    return [1 / floor_of(num, site.attributes)]


def centred_norm_row(num: Numbers[N], site: Site[Norm], x: Inputs[N], theta: Theta[N]) -> N:
    """R_out = min(R_centred/α, √(groups that a row meets · n)), n - 1 for n where it meets each in one entry."""
    group = norm_group(site.attributes, site.output)
    most = group.n - 1 if group.k == 1 else group.n
    largest = num.sqrt(site.output[-1] // group.k * most)
    return num.minimum(centred_row(num, group, x[0]) / floor_of(num, site.attributes), largest)


def centred_norm_entry(num: Numbers[N], site: Site[Norm], x: Inputs[N], theta: Theta[N]) -> N:
    """M_out = min(M_centred/α, √(n-1))."""
    group = norm_group(site.attributes, site.output)
    centred = centred_entry(num, group, x[0]) / floor_of(num, site.attributes)
    return num.minimum(centred, num.sqrt(group.n - 1))


def rms_norm_row(num: Numbers[N], site: Site[OverAxes], x: Inputs[N], theta: Theta[N]) -> N:
    """R_out = min(R/α, √(groups that a row meets · n))."""
    group = norm_group(site.attributes, site.output)
    largest = num.sqrt(site.output[-1] // group.k * group.n)
    return num.minimum(x[0].row / floor_of(num, site.attributes), largest)


def rms_norm_entry(num: Numbers[N], site: Site[OverAxes], x: Inputs[N], theta: Theta[N]) -> N:
    """M_out = min(M/α, √n)."""
    group = norm_group(site.attributes, site.output)
    return num.minimum(x[0].entry / floor_of(num, site.attributes), num.sqrt(group.n))


def normalising(
    name: str,
    attributes: type[Any],
    shape: ShapeRule[Any],
    row: NormRule[Any],
    entry: NormRule[Any],
    axes: AxisOrder = "kept",
) -> AnyOp:
    """Return the record of a norm."""
    return plain(
        name,
        attributes,
        shape,
        "normalisation.md#rms-norm" if shape is rms_norm_shape else "normalisation.md#centred-norms",
        norm=bounded_norm,
        row=row,
        entry=entry,
        lipschitz=bounded_slope,
        axes=axes,
    )


def squared_slope(attributes: Any) -> Fraction | None:
    """1/α² of a norm; None for the attributes of another op, and where it is unknown."""
    if not isinstance(attributes, Norm):
        return None
    if isinstance(attributes.floor, Fraction):
        return 1 / attributes.floor**2
    return 1 / attributes.eps if isinstance(attributes.eps, Fraction) else None


OPS: tuple[AnyOp, ...] = (
    plain("center", Center, center_shape, "normalisation.md#centring", row=center_row, entry=center_entry),
    normalising("layer_norm", OverAxes, centred_norm_shape, centred_norm_row, centred_norm_entry),
    normalising("group_norm", GroupNorm, centred_norm_shape, centred_norm_row, centred_norm_entry, "channels"),
    normalising(
        "instance_norm", InstanceNorm, centred_norm_shape, centred_norm_row, centred_norm_entry, "channels"
    ),
    normalising("rms_norm", OverAxes, rms_norm_shape, rms_norm_row, rms_norm_entry),
)
