"""Ops that bring several tensors together. Proofs: merge.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

from lipcompile.core.record import AnyOp, Condition, Extent, Inputs, NoAttributes, Shape, Site, Spelling, Theta
from lipcompile.diagnostics import Refusal
from lipcompile.numbers import N, Numbers, Scalar
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


@dataclass(frozen=True, slots=True)
class Where:
    """Entries of the first operand where the mask, one truth value per entry in row-major order, says so."""

    mask: tuple[bool, ...]


def sum_shape(attributes: Sum, inputs: tuple[Shape, ...]) -> Shape:
    """The broadcast shape; it must be the shape of one operand at least."""
    if len(attributes.weights) != len(inputs):
        raise Refusal("LIP102", f"{len(attributes.weights)} weights for {len(inputs)} operands")
    return _broadcast(inputs, "added")


def product_shape(attributes: NoAttributes, inputs: tuple[Shape, ...]) -> Shape:
    """The broadcast shape; it must be the shape of one operand."""
    return _broadcast(inputs, "multiplied")


def matmul_shape(attributes: NoAttributes, inputs: tuple[Shape, ...]) -> Shape:
    """[*heads, n, d] and [*heads, d, m] -> [*heads, n, m]."""
    left, right = inputs
    if min(len(left), len(right)) < 2 or left[:-2] != right[:-2] or left[-1] != right[-2]:
        raise Refusal("LIP102", f"{_listed(inputs)} cannot be multiplied as matrices")
    return (*left[:-1], right[-1])


def _broadcast(inputs: tuple[Shape, ...], done: str) -> Shape:
    output = max(inputs, key=lambda shape: (prod(shape), len(shape)))
    for shape in inputs:
        tail = output[len(output) - len(shape) :]
        if len(shape) > len(output) or any(a not in (1, b) for a, b in zip(shape, tail, strict=True)):
            raise Refusal("LIP102", f"{_listed(inputs)} cannot be {done}", "reshape them to one shape first")
    return output


def concat_shape(attributes: Concat, inputs: tuple[Shape, ...]) -> Shape:
    """The operands' shape with the sizes along the axis added up."""
    axis = feature_axis(attributes.axis, inputs[0])
    rest = {(*shape[:axis], *shape[axis + 1 :]) for shape in inputs}
    if len(rest) != 1 or len({len(shape) for shape in inputs}) != 1:
        raise Refusal("LIP102", f"{_listed(inputs)} cannot be joined along axis {axis}")
    return (*inputs[0][:axis], sum(shape[axis] for shape in inputs), *inputs[0][axis + 1 :])


def one_shape(attributes: NoAttributes, inputs: tuple[Shape, ...]) -> Shape:
    """The shape that all operands have."""
    if len(set(inputs)) != 1:
        raise Refusal("LIP102", f"{_listed(inputs)} cannot be compared", "reshape them to one shape first")
    return inputs[0]


def where_shape(attributes: Where, inputs: tuple[Shape, ...]) -> Shape:
    """The shape that both operands have, with as many entries as the mask."""
    shape = one_shape(NoAttributes(), inputs)
    if len(attributes.mask) != prod(shape):
        raise Refusal("LIP102", f"a mask of {len(attributes.mask)} entries does not fit the shape {list(shape)}")
    return shape


def _listed(inputs: tuple[Shape, ...]) -> str:
    return f"tensors of shapes {' and '.join(str(list(shape)) for shape in inputs)}"


# Broadcasting


def copies(site: Site[Sum] | Site[NoAttributes], index: int) -> int:
    """P, the number of copies that broadcasting makes of each entry of operand `index`."""
    return site.entries // prod(site.inputs[index])


def copies_in_row(site: Site[Sum] | Site[NoAttributes], index: int) -> int:
    """p, the number of them within one row."""
    return prod(site.output[-1:]) // prod(site.inputs[index][-1:])


def copy_counts(site: Site[Sum] | Site[NoAttributes]) -> Mapping[str, Condition]:
    """P, operand by operand."""
    return {"copies": tuple(copies(site, index) for index in range(len(site.inputs)))}


# Sums


def sum_norm(num: Numbers[N], site: Site[Sum], x: Inputs[N], theta: Theta[N]) -> N:
    """X_out = Σ|α_i|·√P_i·X_i."""
    return _weighted(sum_lipschitz(num, site, x, theta), [operand.norm for operand in x])


def sum_row(num: Numbers[N], site: Site[Sum], x: Inputs[N], theta: Theta[N]) -> N:
    """R_out = Σ|α_i|·√p_i·R_i."""
    gains = [magnitude(num, w) * num.sqrt(copies_in_row(site, i)) for i, w in enumerate(site.attributes.weights)]
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
    return [magnitude(num, w) * num.sqrt(copies(site, i)) for i, w in enumerate(site.attributes.weights)]


# Products


def product_norm(num: Numbers[N], site: Site[NoAttributes], x: Inputs[N], theta: Theta[N]) -> N:
    """X_out = min(l_h·X_h, l_g·X_g)."""
    return product_norm_of(num, product_lipschitz(num, site, x, theta), x)


def product_norm_of(num: Numbers[N], gains: Sequence[N], x: Inputs[N]) -> N:
    """Return min l_i·X_i."""
    return num.minimum(*(gain * operand.norm for gain, operand in zip(gains, x, strict=True)))


def product_row(num: Numbers[N], site: Site[NoAttributes], x: Inputs[N], theta: Theta[N]) -> N:
    """R_out = min over both operands of R·(the length within a row that one of its entries meets)."""
    first, second = x
    met = (_met_in_row(num, site, 0, second), _met_in_row(num, site, 1, first))
    return num.minimum(met[0] * first.row, met[1] * second.row)


def product_entry(num: Numbers[N], site: Site[NoAttributes], x: Inputs[N], theta: Theta[N]) -> N:
    """M_out = M_h·M_g."""
    return x[0].entry * x[1].entry


def product_lipschitz(num: Numbers[N], site: Site[NoAttributes], x: Inputs[N], theta: Theta[N]) -> Sequence[N]:
    """l_h and l_g: the length of what one entry of h, of g, is multiplied with."""
    first, second = x
    return [_met(num, site, 0, second), _met(num, site, 1, first)]


def _met(num: Numbers[N], site: Site[NoAttributes], index: int, other: Extent[N]) -> N:
    """min(X, √(P/p)·R, √P·M) of the other operand; M where an entry meets one entry only."""
    whole, in_row = copies(site, index), copies_in_row(site, index)
    if whole == 1:
        return other.entry
    rows = num.sqrt(whole // in_row) * other.row
    return num.minimum(other.norm, rows, num.sqrt(whole) * other.entry)


def _met_in_row(num: Numbers[N], site: Site[NoAttributes], index: int, other: Extent[N]) -> N:
    """min(R, √p·M) of the other operand."""
    in_row = copies_in_row(site, index)
    return other.entry if in_row == 1 else num.minimum(other.row, num.sqrt(in_row) * other.entry)


# Products of matrices


def matmul_norm(num: Numbers[N], site: Site[NoAttributes], x: Inputs[N], theta: Theta[N]) -> N:
    """X_out = min(l_A·X_A, l_B·X_B)."""
    return product_norm_of(num, matmul_lipschitz(num, site, x, theta), x)


def matmul_row(num: Numbers[N], site: Site[NoAttributes], x: Inputs[N], theta: Theta[N]) -> N:
    """R_out = M_out = l_A·R_A."""
    return _spectral(num, site, x, 1) * x[0].row


def matmul_lipschitz(num: Numbers[N], site: Site[NoAttributes], x: Inputs[N], theta: Theta[N]) -> Sequence[N]:
    """l_A and l_B: the largest spectral norm of a matrix of B, of A."""
    return [_spectral(num, site, x, 1), _spectral(num, site, x, 0)]


def _spectral(num: Numbers[N], site: Site[NoAttributes], x: Inputs[N], index: int) -> N:
    """min(X, √n·R) of an operand of matrices with n rows."""
    return num.minimum(x[index].norm, num.sqrt(site.inputs[index][-2]) * x[index].row)


# Operands that share the entries of the output between them


def parts_norm(num: Numbers[N], site: Site[object], x: Inputs[N], theta: Theta[N]) -> N:
    """X_out = √ΣX_i²."""
    return _root_of_squares(num, [operand.norm for operand in x])


def parts_row(num: Numbers[N], site: Site[object], x: Inputs[N], theta: Theta[N]) -> N:
    """R_out = √ΣR_i²."""
    return _root_of_squares(num, [operand.row for operand in x])


def parts_entry(num: Numbers[N], site: Site[object], x: Inputs[N], theta: Theta[N]) -> N:
    """M_out = max M_i."""
    return num.maximum(*(operand.entry for operand in x))


def concat_row(num: Numbers[N], site: Site[Concat], x: Inputs[N], theta: Theta[N]) -> N:
    """R_out = √ΣR_i² if rows are put end to end, else max R_i."""
    along_rows = feature_axis(site.attributes.axis, site.output) == len(site.output) - 1
    return parts_row(num, site, x, theta) if along_rows else num.maximum(*(operand.row for operand in x))


def _root_of_squares(num: Numbers[N], bounds: Sequence[N]) -> N:
    squares = [bound * bound for bound in bounds]
    return num.sqrt(sum(squares[1:], start=squares[0]))


def parts_lipschitz(num: Numbers[N], site: Site[object], x: Inputs[N], theta: Theta[N]) -> Sequence[N]:
    """l_i = 1."""
    return [num.of(1)] * len(x)


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
    conditions=copy_counts,
)
PRODUCT = plain(
    "multiply",
    NoAttributes,
    product_shape,
    "merge.md#product",
    norm=product_norm,
    row=product_row,
    entry=product_entry,
    reads=("row", "entry"),
    lipschitz=product_lipschitz,
    operands=(2, 2),
    conditions=copy_counts,
)
MATMUL = plain(
    "matmul",
    NoAttributes,
    matmul_shape,
    "merge.md#product-of-matrices",
    norm=matmul_norm,
    row=matmul_row,
    entry=matmul_row,
    reads=("row",),
    lipschitz=matmul_lipschitz,
    operands=(2, 2),
)
joining = partial(plain, norm=parts_norm, entry=parts_entry, parts=True, lipschitz=parts_lipschitz)
CONCAT = joining("concat", Concat, concat_shape, "merge.md#concatenation", row=concat_row, operands=(1, None))
MAXIMUM, MINIMUM = (
    joining(name, NoAttributes, one_shape, "merge.md#selection", row=parts_row, operands=(2, None))
    for name in ("maximum", "minimum")
)
WHERE = joining("where", Where, where_shape, "merge.md#selection", row=parts_row, operands=(2, 2), dsl=())

OPS: tuple[AnyOp, ...] = (SUM, PRODUCT, MATMUL, CONCAT, MAXIMUM, MINIMUM, WHERE)
