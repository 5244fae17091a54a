"""Rules that several families share, and the records of functions that act on every entry."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, Protocol

from lipcompile.core.record import (
    AnyOp,
    AxisOrder,
    ConditionsRule,
    CotangentRule,
    Inputs,
    LipschitzRule,
    Measure,
    NoAttributes,
    NormRule,
    Op,
    ParameterRule,
    Shape,
    ShapeRule,
    Site,
    Spelling,
    Takes,
    Theta,
    draws_nothing,
    scaled_by_lipschitz,
)
from lipcompile.diagnostics import Refusal
from lipcompile.numbers import Arithmetic, N, Numbers, Scalar

# Classes beyond which a bound with a term for each of them costs time and gains little.
MANY = 1000


def feature_axis(axis: int | None, example: Shape) -> int:
    """The axis, from 0: as given, else the last of an example with up to two axes, else the first (channels)."""
    chosen = axis if axis is not None else (-1 if len(example) <= 2 else 0)
    if not -len(example) <= chosen < len(example):
        raise Refusal("LIP102", f"axis {chosen} does not exist in an example of shape {list(example)}")
    return chosen % len(example)


def same_shape(attributes: Any, inputs: tuple[Shape, ...]) -> Shape:
    """The shape of the first input."""
    return inputs[0]


def norm_of_input(num: Numbers[N], site: Site[Any], x: Inputs[N], theta: Theta[N]) -> N:
    """X_out = X."""
    return x[0].norm


def one_lipschitz(num: Numbers[N], site: Site[Any], x: Inputs[N], theta: Theta[N]) -> Sequence[N]:
    """l = 1."""
    return [num.of(1)]


def magnitude(num: Numbers[N], value: Scalar) -> N:
    """|a|: a symbol stands for a non-negative number, but arithmetic on symbols may give a negative one."""
    if isinstance(value, Arithmetic):
        signed = num.of(value)
        return num.maximum(signed, 0 - signed)
    return num.of(abs(value) if isinstance(value, Fraction) else value)


def row_of_input(num: Numbers[N], site: Site[Any], x: Inputs[N], theta: Theta[N]) -> N:
    """R_out = R: no row is longer than the longest."""
    return x[0].row


def entry_of_input(num: Numbers[N], site: Site[Any], x: Inputs[N], theta: Theta[N]) -> N:
    """M_out = M: no entry is larger than the largest."""
    return x[0].entry


def one(num: Numbers[N], *_: Any) -> N:
    """1."""
    return num.of(1)


def unbounded(num: Numbers[N], *_: Any) -> N:
    """∞: nothing is known."""
    return num.unbounded()


class Gain(Protocol):
    """l of a map with X_out = l·X: all that its site says."""

    def __call__(self, num: Numbers[N], site: Site[Any], /) -> N: ...


def scaled(gain: Gain, measure: Literal["norm", "row", "entry"]) -> NormRule[Any]:
    """Return the rule of X_out = l·X, R_out = l·R or M_out = l·M for l = `gain`."""

    def rule(num: Numbers[N], site: Site[Any], x: Inputs[N], theta: Theta[N]) -> N:
        bound: N = getattr(x[0], measure)
        return gain(num, site) * bound

    return rule


def plain(
    name: str,
    attributes: type[Any],
    shape: ShapeRule[Any],
    proof: str,
    *,
    takes: Takes = "reals",
    norm: NormRule[Any] = norm_of_input,
    row: NormRule[Any] | None = None,
    entry: NormRule[Any] | None = None,
    reads: tuple[Measure, ...] = (),
    lipschitz: LipschitzRule[Any] | None = one_lipschitz,
    cotangent: CotangentRule[Any] = scaled_by_lipschitz,
    parts: bool = False,
    parameters: tuple[ParameterRule[Any], ...] = (),
    operands: tuple[int, int | None] = (1, 1),
    dsl: tuple[Spelling, ...] | None = None,
    conditions: ConditionsRule[Any] | None = None,
    draws: Callable[[Any], bool] = draws_nothing,
    axes: AxisOrder = "kept",
    any_size: bool = False,
) -> AnyOp:
    """Return the record of an op; by default it has no parameters, is 1-Lipschitz and does not enlarge norms."""
    return Op(
        name=name,
        attributes=attributes,
        operands=operands,
        takes=takes,
        shape=shape,
        norm=norm,
        row=row,
        entry=entry,
        reads=reads,
        lipschitz=lipschitz,
        cotangent=cotangent,
        parts=parts,
        parameters=parameters,
        dsl=(Spelling(name),) if dsl is None else dsl,
        proof=proof,
        conditions=conditions,
        draws=draws,
        axes=axes,
        any_size=any_size,
    )


def homogeneous(
    name: str,
    attributes: type[Any],
    shape: ShapeRule[Any],
    proof: str,
    gain: Gain,
    also: Sequence[Measure] = (),
    **others: Any,
) -> AnyOp:
    """Return the record of an op of one operand with X_out = l·X and l = `gain`; `others` as for `plain`.

    also: what l scales besides; l is the Lipschitz constant, too, unless `others` has it.
    """

    def lipschitz(num: Numbers[N], site: Site[Any], x: Inputs[N], theta: Theta[N]) -> Sequence[N]:
        return [gain(num, site)]

    others = {"lipschitz": lipschitz, **{measure: scaled(gain, measure) for measure in also}, **others}
    return plain(name, attributes, shape, proof, norm=scaled(gain, "norm"), **others)


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
    """The properties of a scalar function φ that acts on every entry.

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
    return plain(name, attributes, shape, proof, norm=norm, row=row, entry=entry, **others)
