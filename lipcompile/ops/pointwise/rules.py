"""Functions of entries without a Lipschitz constant: no theorem crosses them, clips do. Proof: pointwise.md."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, get_args

from lipcompile.core.record import AnyOp, Inputs, NoAttributes, Shape, Site, Theta
from lipcompile.diagnostics import Refusal
from lipcompile.numbers import N, Numbers, Scalar
from lipcompile.ops.rules import magnitude, plain, same_shape, unbounded

Truth = Literal["equal", "greater", "at_least", "is_nan", "is_infinite"]
Rounding = Literal["truncated", "floor", "ceil", "round"]
Name = Literal[Truth, Rounding, "constant", "exp", "log", "power", "quotient", "select"]
# Whose entries are 0 or 1.
TRUTHS: tuple[Truth, ...] = get_args(Truth)
OPERANDS = {"quotient": 2, "select": 3}
# Whose output has a bound.
BOUNDED: tuple[Name, ...] = (*TRUTHS, "constant", "truncated", "select")


@dataclass(frozen=True, slots=True)
class Pointwise:
    """A function of the entries of its operands at one place. `number`: what a comparison compares with, the
    exponent of a power, the constant.
    """

    function: Name
    number: Scalar = Fraction(0)


def pointwise_shape(attributes: Pointwise, inputs: tuple[Shape, ...]) -> Shape:
    """The shape that all operands have."""
    wanted = OPERANDS.get(attributes.function, 1)
    if len(inputs) != wanted or len(set(inputs)) != 1:
        shapes = " and ".join(str(list(shape)) for shape in inputs)
        raise Refusal("LIP102", f"`{attributes.function}` takes {wanted} tensors of one shape, not {shapes}")
    return inputs[0]


def pointwise_norm(num: Numbers[N], site: Site[Pointwise], x: Inputs[N], theta: Theta[N]) -> N:
    """X_out = √n·M_out of truths and constants, X of truncated numbers, √(X_a² + X_b²) of a choice."""
    return _of_size(num, site, x, site.entries, [operand.norm for operand in x])


def pointwise_row(num: Numbers[N], site: Site[Pointwise], x: Inputs[N], theta: Theta[N]) -> N:
    """R_out = √w·M_out of truths and constants, R of truncated numbers, √(R_a² + R_b²) of a choice."""
    return _of_size(num, site, x, (1, *site.output)[-1], [operand.row for operand in x])


def pointwise_entry(num: Numbers[N], site: Site[Pointwise], x: Inputs[N], theta: Theta[N]) -> N:
    """M_out = 1 of truths, |c| of a constant, M of truncated numbers, max(M_a, M_b) of a choice."""
    if site.attributes.function == "select":
        return num.maximum(x[1].entry, x[2].entry)
    return _of_size(num, site, x, 1, [operand.entry for operand in x])


def _of_size(num: Numbers[N], site: Site[Pointwise], x: Inputs[N], count: int, bounds: list[N]) -> N:
    """A bound of `count` entries of the output, given those of the operands; none where there is none."""
    function = site.attributes.function
    if function in TRUTHS:
        return num.sqrt(count)
    if function == "constant":
        return num.sqrt(count) * magnitude(num, site.attributes.number)
    if function == "truncated":
        return bounds[0]
    if function == "select":
        return num.sqrt(bounds[1] * bounds[1] + bounds[2] * bounds[2])
    return num.unbounded()


def always(attributes: NoAttributes) -> bool:
    """Noise is drawn whatever the attributes."""
    return True


POINTWISE = plain(
    "pointwise",
    Pointwise,
    pointwise_shape,
    "pointwise.md#functions-of-entries",
    norm=pointwise_norm,
    row=pointwise_row,
    entry=pointwise_entry,
    lipschitz=None,
    operands=(1, 3),
    dsl=(),
)

# In training, standard normal numbers in the shape of the operand, drawn for each entry of each example by itself;
# in evaluation, their mean, 0.
NOISE = plain(
    "noise",
    NoAttributes,
    same_shape,
    "pointwise.md#noise",
    norm=unbounded,
    lipschitz=None,
    dsl=(),
    draws=always,
)

OPS: tuple[AnyOp, ...] = (POINTWISE, NOISE)
