"""Elementwise activations and sorting. Proofs: activation.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol

from lipcompile.diagnostics import Refusal
from lipcompile.numbers import N, Numbers, Scalar
from lipcompile.ops.record import AnyOp, Inputs, NoAttributes, Shape, Site, Spelling, Theta
from lipcompile.ops.rules import entry_of_input, feature_axis, magnitude, plain, same_shape
from lipcompile.ops.schema import Axis


@dataclass(frozen=True, slots=True)
class LeakyReLU:
    """x for x >= 0, slope·x below."""

    slope: Scalar = Fraction(1, 100)


@dataclass(frozen=True, slots=True)
class GroupSort:
    """Sorts each run of `size` consecutive entries along `axis`; the default axis holds the features."""

    size: int = 2
    axis: Axis = None


@dataclass(frozen=True, slots=True)
class FullSort:
    """Sorts all entries along `axis`; the default axis holds the features."""

    axis: Axis = None


def group_sort_shape(attributes: GroupSort, inputs: tuple[Shape, ...]) -> Shape:
    """The input's shape, if groups of `size` fill the axis."""
    axis = feature_axis(attributes.axis, inputs[0])
    if inputs[0][axis] % attributes.size:
        raise Refusal(
            "LIP102",
            f"groups of {attributes.size} do not fill axis {axis} of size {inputs[0][axis]}",
            "choose a group size that divides it",
        )
    return inputs[0]


def full_sort_shape(attributes: FullSort, inputs: tuple[Shape, ...]) -> Shape:
    """The input's shape."""
    feature_axis(attributes.axis, inputs[0])
    return inputs[0]


class Elementwise(Protocol):
    """Slope s of φ: a Lipschitz constant of it, from the attributes."""

    def __call__(self, num: Numbers[N], attributes: Any, /) -> N: ...


@dataclass(frozen=True, slots=True)
class Function:
    """What is known of a scalar function φ that acts on every entry.

    slope: a Lipschitz constant s. at_zero: |φ(0)|, None for 0. largest: sup|φ|, None where φ is unbounded.
    shrinks: whether |φ(t)| <= |t| for all t, so that norms do not grow whatever s is.
    """

    slope: Elementwise
    at_zero: Elementwise | None = None
    largest: Elementwise | None = None
    shrinks: bool = False

    def bound(self, num: Numbers[N], attributes: Any, size: N, entries: int) -> N:
        """min(s·size + √n·|φ(0)|, √n·sup|φ|): bounds the norm of φ at n entries of norm at most `size`."""
        grown = size if self.shrinks else self.slope(num, attributes) * size
        if self.at_zero is not None:
            grown = grown + num.sqrt(entries) * self.at_zero(num, attributes)
        if self.largest is None:
            return grown
        return num.minimum(grown, num.sqrt(entries) * self.largest(num, attributes))


def elementwise(name: str, onnx: tuple[str, ...], function: Function, **others: Any) -> AnyOp:
    """Return the record of φ acting on every entry; `others` as for `plain`."""

    def norm(num: Numbers[N], site: Site[Any], x: Inputs[N], theta: Theta[N]) -> N:
        return function.bound(num, site.attributes, x[0].norm, site.entries)

    def row(num: Numbers[N], site: Site[Any], x: Inputs[N], theta: Theta[N]) -> N:
        return function.bound(num, site.attributes, x[0].row, site.output[-1] if site.output else 1)

    def entry(num: Numbers[N], site: Site[Any], x: Inputs[N], theta: Theta[N]) -> N:
        return function.bound(num, site.attributes, x[0].entry, 1)

    def lipschitz(num: Numbers[N], site: Site[Any], x: Inputs[N], theta: Theta[N]) -> Sequence[N]:
        return [function.slope(num, site.attributes)]

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
        lipschitz=lipschitz,
        onnx=onnx,
        **others,
    )


def unit(num: Numbers[N], attributes: Any) -> N:
    """1."""
    return num.of(1)


def leaky_slope(num: Numbers[N], attributes: LeakyReLU) -> N:
    """max(1, |a|)."""
    return num.maximum(num.of(1), magnitude(num, attributes.slope))


def quarter(num: Numbers[N], attributes: Any) -> N:
    """1/4, the largest slope of the logistic function."""
    return num.of(1) / 4


def half(num: Numbers[N], attributes: Any) -> N:
    """1/2, its value at 0."""
    return num.of(1) / 2


def log_two(num: Numbers[N], attributes: Any) -> N:
    """ln 2, the value of softplus at 0."""
    return num.log(2)


def sorted_row(num: Numbers[N], site: Site[GroupSort] | Site[FullSort], x: Inputs[N], theta: Theta[N]) -> N:
    """R_out = R if entries move within rows, else X."""
    last = len(site.output) - 1
    return x[0].row if feature_axis(site.attributes.axis, site.output) == last else x[0].norm


_GROUP_SORTS = (Spelling("groupsort"), Spelling("maxmin", preset=(("size", 2),)))

OPS: tuple[AnyOp, ...] = (
    elementwise("relu", ("Relu",), Function(unit)),
    elementwise("leaky_relu", ("LeakyRelu",), Function(leaky_slope), attributes=LeakyReLU),
    elementwise("tanh", ("Tanh",), Function(unit, largest=unit)),
    elementwise("sigmoid", ("Sigmoid",), Function(quarter, half, unit)),
    elementwise("softplus", ("Softplus",), Function(unit, log_two)),
    elementwise("abs", ("Abs",), Function(unit)),
    plain(
        "groupsort",
        GroupSort,
        group_sort_shape,
        "activation.md#sorting",
        row=sorted_row,
        entry=entry_of_input,
        dsl=_GROUP_SORTS,
    ),
    plain("fullsort", FullSort, full_sort_shape, "activation.md#sorting", row=sorted_row, entry=entry_of_input),
)
