"""Ops that bring several tensors together. Proofs: merge.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from lipcompile.diagnostics import Refusal
from lipcompile.numbers import N, Numbers, Scalar
from lipcompile.ops.record import AnyOp, Inputs, Shape, Site, Spelling, Theta
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


def sum_norm(num: Numbers[N], site: Site[Sum], x: Inputs[N], theta: Theta[N]) -> N:
    """X_out = Σ|α_i|·√P_i·X_i."""
    return _weighted(sum_lipschitz(num, site, x, theta), [operand.norm for operand in x])


def sum_row(num: Numbers[N], site: Site[Sum], x: Inputs[N], theta: Theta[N]) -> N:
    """R_out = Σ|α_i|·√p_i·R_i, p_i the copies of an entry of operand i within one row."""
    rows = [
        num.sqrt(site.output[-1] // (shape[-1] if shape else 1)) if site.output else num.of(1)
        for shape in site.inputs
    ]
    gains = [magnitude(num, weight) * row for weight, row in zip(site.attributes.weights, rows, strict=True)]
    return _weighted(gains, [operand.row for operand in x])


def sum_entry(num: Numbers[N], site: Site[Sum], x: Inputs[N], theta: Theta[N]) -> N:
    """M_out = Σ|α_i|·M_i."""
    gains = [magnitude(num, weight) for weight in site.attributes.weights]
    return _weighted(gains, [operand.entry for operand in x])


def _weighted(gains: Sequence[N], bounds: Sequence[N]) -> N:
    terms = [gain * bound for gain, bound in zip(gains, bounds, strict=True)]
    return sum(terms[1:], start=terms[0])


def sum_lipschitz(num: Numbers[N], site: Site[Sum], x: Inputs[N], theta: Theta[N]) -> Sequence[N]:
    """l_i = |α_i|·√P_i."""
    return [magnitude(num, weight) * copies(num, site, i) for i, weight in enumerate(site.attributes.weights)]


def concat_norm(num: Numbers[N], site: Site[Concat], x: Inputs[N], theta: Theta[N]) -> N:
    """X_out = √ΣX_i²."""
    return _root_of_squares(num, [operand.norm for operand in x])


def concat_row(num: Numbers[N], site: Site[Concat], x: Inputs[N], theta: Theta[N]) -> N:
    """R_out = √ΣR_i² if rows are put end to end, else max R_i."""
    rows = [operand.row for operand in x]
    along_rows = feature_axis(site.attributes.axis, site.output) == len(site.output) - 1
    return _root_of_squares(num, rows) if along_rows else num.maximum(*rows)


def concat_entry(num: Numbers[N], site: Site[Concat], x: Inputs[N], theta: Theta[N]) -> N:
    """M_out = max M_i."""
    return num.maximum(*(operand.entry for operand in x))


def _root_of_squares(num: Numbers[N], bounds: Sequence[N]) -> N:
    squares = [bound * bound for bound in bounds]
    return num.sqrt(sum(squares[1:], start=squares[0]))


def concat_lipschitz(num: Numbers[N], site: Site[Concat], x: Inputs[N], theta: Theta[N]) -> Sequence[N]:
    """l_i = 1."""
    return [num.of(1) for _ in x]


SUM = plain(
    "add",
    Sum,
    sum_shape,
    "merge.md#weighted-sum",
    norm=sum_norm,
    row=sum_row,
    entry=sum_entry,
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
    row=concat_row,
    entry=concat_entry,
    parts=True,
    lipschitz=concat_lipschitz,
    operands=(1, None),
    onnx=("Concat",),
)

OPS: tuple[AnyOp, ...] = (SUM, CONCAT)
