"""Rules that several families share."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Literal, Protocol

from lipcompile.core.diagnostics import Refusal
from lipcompile.numbers import Arithmetic, N, Numbers, Scalar
from lipcompile.ops.record import (
    AnyOp,
    ConditionsRule,
    CotangentRule,
    Inputs,
    LipschitzRule,
    Measure,
    NormRule,
    Op,
    ParameterRule,
    Shape,
    ShapeRule,
    Site,
    Spelling,
    Theta,
    scaled_by_lipschitz,
)

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


class Gain(Protocol):
    """l of a map with X_out = l·X: all that its site says."""

    def __call__(self, num: Numbers[N], site: Site[Any], /) -> N: ...


def plain(
    name: str,
    attributes: type[Any],
    shape: ShapeRule[Any],
    proof: str,
    *,
    takes: Literal["reals", "tokens"] = "reals",
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
        reads=frozenset(reads),
        lipschitz=lipschitz,
        cotangent=cotangent,
        parts=parts,
        parameters=parameters,
        dsl=(Spelling(name),) if dsl is None else dsl,
        proof=proof,
        conditions=conditions,
    )


def homogeneous(
    name: str, attributes: type[Any], shape: ShapeRule[Any], proof: str, gain: Gain, **others: Any
) -> AnyOp:
    """Return the record of an op of one operand with X_out = l·X and l = `gain`; `others` as for `plain`."""

    def norm(num: Numbers[N], site: Site[Any], x: Inputs[N], theta: Theta[N]) -> N:
        return gain(num, site) * x[0].norm

    def lipschitz(num: Numbers[N], site: Site[Any], x: Inputs[N], theta: Theta[N]) -> Sequence[N]:
        return [gain(num, site)]

    return plain(name, attributes, shape, proof, norm=norm, lipschitz=lipschitz, **others)
