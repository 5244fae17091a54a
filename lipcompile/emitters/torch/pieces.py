"""Pieces of emitted lines that the families share: of expressions, and of constructors of layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from lipcompile.core.graph import Node, Parameter
from lipcompile.core.record import Shape
from lipcompile.numbers import Scalar, rounding
from lipcompile.ops.rules import feature_axis

# The expression of a node's output, over the variables of its operands, which have their names.
Expression = Callable[[Node, Sequence[str]], str]

WIDTH = 110


def nearest(value: Scalar) -> str:
    """Write an exact number as the nearest double."""
    return repr(float(_exact(value)))


def probability(value: Scalar) -> str:
    """Write a probability p of dropout, above 0.999 as the largest double not above it.

    The factor 1/(1 - p) of what is kept grows with p. Up to 0.999 the nearest double moves it by 6e-14 at most,
    which is nothing beside what noise covers; near 1 it may be far above.
    """
    exact = _exact(value)
    return repr(rounding.below(exact) if 1000 * exact > 999 else float(exact))


def below(value: Scalar) -> str:
    """Write the largest double not above an exact number: a radius may shrink, never grow."""
    return repr(rounding.below(_exact(value)))


def above(value: Scalar) -> str:
    """Write the smallest double not below an exact number: a floor may rise, never sink."""
    return repr(rounding.above(_exact(value)))


def _exact(value: Scalar) -> Fraction:
    assert isinstance(value, Fraction), "emission needs a derivation without parameters that lack a value"
    return value


def axis_of(node: Node) -> int:
    """Return the axis of an op with an `axis` attribute, in one example."""
    return feature_axis(node.attributes.axis, node.site.inputs[0])


def aligned(operand: str, shape: Shape, rank: int) -> str:
    """Give an operand of fewer axes the missing ones behind the batch axis, where broadcasting must put them."""
    missing = rank - len(shape)
    return operand if not missing else f"{operand}[:, {', '.join(['None'] * missing)}]"


def call(function: str) -> Expression:
    """Return the expression `function(x)`."""
    return lambda node, operands: f"{function}({operands[0]})"


def keywords(values: dict[str, tuple[Any, Any]]) -> list[str]:
    """Write name=value for each value that is not its default; `values` maps names to (value, default)."""
    return [f"{name}={value!r}" for name, (value, default) in values.items() if value != default]


def wrapped(line: str) -> list[str]:
    """Break a call that is too long for a line after its opening parenthesis, as formatters do."""
    if len(line) + 4 <= WIDTH or not line.endswith(")") or "(" not in line:
        return [line]
    margin = line[: len(line) - len(line.lstrip())]
    head, _, rest = line.partition("(")
    return [f"{head}(", f"{margin}    {rest[:-1]}", f"{margin})"]


Parameters = Mapping[str, Parameter]


@dataclass(frozen=True, slots=True)
class Layer:
    """A class of `lipcompile_torch.layers`, and the arguments of its constructor."""

    name: Callable[[Node], str]
    arguments: Callable[[Node, Parameters], list[str]]


def constraint(parameter: Parameter) -> str:
    """Write the constraint of a weight."""
    kind, bound = parameter.constraint.kind, parameter.constraint.bound
    return f"{kind.capitalize()}()" if kind in ("orthogonal", "free") else f"{kind.capitalize()}({below(bound)})"


def radius(parameter: Parameter) -> str:
    """Write the bound of a bias, or the constraint that has none."""
    constraint = parameter.constraint
    return "Free()" if constraint.kind == "free" else below(constraint.bound)


def weight_and_bias(parameters: Parameters) -> list[str]:
    """Write the arguments `bias` and `constraint` of a layer with a weight."""
    bias = [f"bias={radius(parameters['bias'])}"] if "bias" in parameters else []
    return [*bias, f"constraint={constraint(parameters['weight'])}"]
