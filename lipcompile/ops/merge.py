"""Ops that bring several tensors together. Proofs: merge.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from lipcompile.diagnostics import Refusal
from lipcompile.numbers import N, Numbers, Scalar
from lipcompile.ops.record import AnyOp, Shape, Site, Spelling
from lipcompile.ops.rules import feature_axis, magnitude, plain
from lipcompile.ops.schema import Axis


@dataclass(frozen=True, slots=True)
class Sum:
    """Σ α_i·h_i with one weight per operand, in order."""

    weights: tuple[Scalar, ...]


@dataclass(frozen=True, slots=True)
class Concat:
    """Concatenation along an axis of the example (its features by default)."""

    axis: Axis = None


def sum_shape(attributes: Sum, inputs: tuple[Shape, ...]) -> Shape:
    """The broadcast shape; it must be the shape of one operand at least."""
    if len(attributes.weights) != len(inputs):
        raise Refusal("LIP102", f"{len(attributes.weights)} weights for {len(inputs)} operands")
    output = max(inputs, key=lambda shape: (prod(shape), len(shape)))
    for shape in inputs:
        tail = output[len(output) - len(shape) :]
        if len(shape) > len(output) or any(a not in (1, b) for a, b in zip(shape, tail, strict=True)):
            listed = " and ".join(str(list(s)) for s in inputs)
            raise Refusal("LIP102", f"tensors of shapes {listed} cannot be added", "bring them to one shape first")
    return output


def concat_shape(attributes: Concat, inputs: tuple[Shape, ...]) -> Shape:
    """The operands' shape with the sizes along the axis added up."""
    axis = feature_axis(attributes.axis, inputs[0])
    rest = {(*shape[:axis], *shape[axis + 1 :]) for shape in inputs}
    if len(rest) != 1 or len({len(shape) for shape in inputs}) != 1:
        listed = " and ".join(str(list(s)) for s in inputs)
        raise Refusal("LIP102", f"tensors of shapes {listed} cannot be joined along axis {axis}")
    return (*inputs[0][:axis], sum(shape[axis] for shape in inputs), *inputs[0][axis + 1 :])


def copies(num: Numbers[N], site: Site[Sum], index: int) -> N:
    """√P, P the number of copies that broadcasting makes of operand `index`."""
    return num.sqrt(site.entries // prod(site.inputs[index]))


def sum_norm(num: Numbers[N], site: Site[Sum], x: Sequence[N], theta: Mapping[str, N]) -> N:
    """X_out = Σ|α_i|·√P_i·X_i."""
    terms = [gain * operand for gain, operand in zip(sum_lipschitz(num, site, x, theta), x, strict=True)]
    return sum(terms[1:], start=terms[0])


def sum_lipschitz(num: Numbers[N], site: Site[Sum], x: Sequence[N], theta: Mapping[str, N]) -> Sequence[N]:
    """l_i = |α_i|·√P_i."""
    return [magnitude(num, weight) * copies(num, site, i) for i, weight in enumerate(site.attributes.weights)]


def concat_norm(num: Numbers[N], site: Site[Concat], x: Sequence[N], theta: Mapping[str, N]) -> N:
    """X_out = √ΣX_i²."""
    squares = [operand * operand for operand in x]
    return num.sqrt(sum(squares[1:], start=squares[0]))


def concat_lipschitz(num: Numbers[N], site: Site[Concat], x: Sequence[N], theta: Mapping[str, N]) -> Sequence[N]:
    """l_i = 1."""
    return [num.of(1) for _ in x]


SUM = plain(
    "add",
    Sum,
    sum_shape,
    "merge.md#weighted-sum",
    norm=sum_norm,
    lipschitz=sum_lipschitz,
    operands=(1, None),
    dsl=(Spelling("add"), Spelling("mean")),
    onnx=("Add", "Mean", "Sub", "Sum"),
)
CONCAT = plain(
    "concat",
    Concat,
    concat_shape,
    "merge.md#concatenation",
    norm=concat_norm,
    lipschitz=concat_lipschitz,
    operands=(1, None),
    onnx=("Concat",),
)

OPS: tuple[AnyOp, ...] = (SUM, CONCAT)
