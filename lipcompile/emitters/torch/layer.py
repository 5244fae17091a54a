"""What constructs the layer of a node with parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from lipcompile.core.graph import Node, Parameter
from lipcompile.emitters.torch.expression import below

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
