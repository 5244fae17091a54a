"""Rules that several families share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from lipcompile.diagnostics import Refusal
from lipcompile.numbers import Arithmetic, N, Numbers, Scalar
from lipcompile.ops.record import (
    AnyOp,
    CotangentRule,
    LipschitzRule,
    NormRule,
    Op,
    Shape,
    ShapeRule,
    Site,
    Spelling,
    scaled_by_lipschitz,
)


def feature_axis(axis: int | None, example: Shape) -> int:
    """The axis, from 0: as given, else the last of an example with up to two axes, else the first (channels)."""
    chosen = axis if axis is not None else (-1 if len(example) <= 2 else 0)
    if not -len(example) <= chosen < len(example):
        raise Refusal("LIP102", f"axis {chosen} does not exist in an example of shape {list(example)}")
    return chosen % len(example)


def same_shape(attributes: Any, inputs: tuple[Shape, ...]) -> Shape:
    """The shape of the first input."""
    return inputs[0]


def norm_of_input(num: Numbers[N], site: Site[Any], x: Sequence[N], theta: Mapping[str, N]) -> N:
    """X_out = X."""
    return x[0]


def one_lipschitz(num: Numbers[N], site: Site[Any], x: Sequence[N], theta: Mapping[str, N]) -> Sequence[N]:
    """l = 1."""
    return [num.of(1)]


def magnitude(num: Numbers[N], value: Scalar) -> N:
    """|a|: a symbol stands for a non-negative number, but arithmetic on symbols may give a negative one."""
    if isinstance(value, Arithmetic):
        signed = num.of(value)
        return num.maximum(signed, 0 - signed)
    return num.of(abs(value) if isinstance(value, Fraction) else value)


def plain(
    name: str,
    attributes: type[Any],
    shape: ShapeRule[Any],
    proof: str,
    *,
    norm: NormRule[Any] = norm_of_input,
    lipschitz: LipschitzRule[Any] = one_lipschitz,
    cotangent: CotangentRule[Any] = scaled_by_lipschitz,
    operands: tuple[int, int | None] = (1, 1),
    dsl: tuple[Spelling, ...] | None = None,
    onnx: tuple[str, ...] = (),
) -> AnyOp:
    """Return the record of an op without parameters; by default it is 1-Lipschitz and does not enlarge norms."""
    return Op(
        name=name,
        attributes=attributes,
        operands=operands,
        shape=shape,
        norm=norm,
        lipschitz=lipschitz,
        cotangent=cotangent,
        parameters=(),
        dsl=(Spelling(name),) if dsl is None else dsl,
        onnx=onnx,
        proof=proof,
    )
