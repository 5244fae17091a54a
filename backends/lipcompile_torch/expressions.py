"""One line of Python per node: what constructs its layer, and what computes its output. Needs no torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from lipcompile.graph import Graph, Node, Parameter
from lipcompile.numbers import Scalar
from lipcompile.ops import counting
from lipcompile.ops.linear import conv_windows
from lipcompile.ops.record import Shape
from lipcompile.ops.rules import feature_axis
from lipcompile.ops.shape import permutation


def nearest(value: Scalar) -> str:
    """Write an exact number as the nearest double."""
    return repr(float(_exact(value)))


def below(value: Scalar) -> str:
    """Write the largest double not above an exact number: a radius may shrink, never grow."""
    exact = _exact(value)
    rounded = float(exact)
    return repr(rounded if Fraction(rounded) <= exact else math.nextafter(rounded, -math.inf))


def _exact(value: Scalar) -> Fraction:
    assert isinstance(value, Fraction), "emission starts from derivations without open numbers"
    return value


def owner(node: Node) -> str:
    """Return the attribute that holds the node's layer: the node that first used its parameters."""
    return next(iter(node.parameters.values())).rpartition(".")[0]


# Layers with parameters


def constructor(graph: Graph, node: Node) -> str:
    """Return the call that builds the node's layer."""
    arguments = _CONSTRUCTORS[node.op.name](node)
    parameters = {role: graph.parameters[name] for role, name in node.parameters.items()}
    if "bias" in parameters:
        arguments += f", bias={below(parameters['bias'].constraint.bound)}" if node.op.name != "bias" else ""
    if "weight" in parameters:
        arguments += f", constraint={_constraint(parameters['weight'])}"
    if node.op.name == "bias":
        arguments += f", bound={below(parameters['bias'].constraint.bound)}"
    return f"layers.{_CLASSES[node.op.name](node)}({arguments})"


def _constraint(parameter: Parameter) -> str:
    kind, bound = parameter.constraint.kind, parameter.constraint.bound
    return "Orthogonal()" if kind == "orthogonal" else f"{kind.capitalize()}({below(bound)})"


def _dense_arguments(node: Node) -> str:
    return f"{node.site.inputs[0][-1]}, {node.attributes.features}"


def _conv_arguments(node: Node) -> str:
    conv, windows = node.attributes, conv_windows(node.site)
    parts = [
        f"{node.site.inputs[0][0]}, {conv.channels}",
        f"kernel_size={conv.kernel}",
        f"input_size={node.site.inputs[0][1:]}",
        f"reads={counting.reads(windows)}",
        f"taps={counting.taps(windows)}",
    ]
    optional = {
        "stride": (conv.stride, all(step == 1 for step in conv.stride)),
        "padding": (conv.padding, not any(map(any, conv.padding))),
        "dilation": (conv.dilation, all(step == 1 for step in conv.dilation)),
        "groups": (conv.groups, conv.groups == 1),
        "padding_mode": (f'"{conv.padding_mode}"', conv.padding_mode == "zeros"),
    }
    return ", ".join(parts + [f"{name}={value}" for name, (value, default) in optional.items() if not default])


_CONSTRUCTORS: Mapping[str, Callable[[Node], str]] = {
    "dense": _dense_arguments,
    "conv": _conv_arguments,
    "bias": lambda node: f"{node.attributes.size}",
}
_CLASSES: Mapping[str, Callable[[Node], str]] = {
    "dense": lambda node: "Dense",
    "conv": lambda node: f"Conv{len(node.attributes.kernel)}d",
    "bias": lambda node: "Bias",
}


# Outputs


def expression(node: Node) -> str:
    """Return the expression of the node's output, over the variables of its operands, which have their names."""
    operands = list(node.inputs)
    if node.parameters:
        return f"self.{owner(node)}({operands[0]})"
    return _EXPRESSIONS[node.op.name](node, operands)


def _axis(node: Node) -> int:
    return feature_axis(node.attributes.axis, node.site.inputs[0])


def _window(node: Node, with_dilation: bool = False) -> str:
    pool = node.attributes
    parts = [f"{pool.kernel}"]
    if pool.stride != pool.kernel:
        parts.append(f"stride={pool.stride}")
    if any(map(any, pool.padding)):
        parts.append(f"padding={pool.padding}")
    if with_dilation and any(step != 1 for step in pool.dilation):
        parts.append(f"dilation={pool.dilation}")
    return ", ".join(parts)


def _aligned(operand: str, shape: Shape, rank: int) -> str:
    """Give an operand of fewer axes the missing ones behind the batch axis, where broadcasting must put them."""
    missing = rank - len(shape)
    return operand if not missing else f"{operand}[:, {', '.join(['None'] * missing)}]"


def _sum(node: Node, operands: list[str]) -> str:
    terms = []
    for operand, shape, weight in zip(operands, node.site.inputs, node.attributes.weights, strict=True):
        aligned = _aligned(operand, shape, len(node.shape))
        terms.append(aligned if weight == 1 else f"{nearest(weight)} * {aligned}")
    return " + ".join(terms)


def _concat(node: Node, operands: list[str]) -> str:
    return f"torch.cat([{', '.join(operands)}], dim={_axis(node) + 1})"


def _reshape(node: Node, operands: list[str]) -> str:
    sizes = ", ".join(map(str, node.shape))
    return f"{operands[0]}.reshape({operands[0]}.shape[0], {sizes})"


def _transpose(node: Node, operands: list[str]) -> str:
    axes = ", ".join(str(axis + 1) for axis in permutation(node.attributes, node.site.inputs[0]))
    return f"{operands[0]}.permute(0, {axes})"


def _slice(node: Node, operands: list[str]) -> str:
    part = node.attributes
    return f"{operands[0]}.narrow({part.axis + 1}, {part.start}, {part.stop - part.start})"


def _global_average(node: Node, operands: list[str]) -> str:
    dims = tuple(range(2, len(node.site.inputs[0]) + 1))
    return f"{operands[0]}.mean(dim={dims}{', keepdim=True' if node.attributes.keep else ''})"


def _pool(name: str, with_dilation: bool = False) -> Callable[[Node, list[str]], str]:
    return lambda node, operands: f"functional.{name}({operands[0]}, {_window(node, with_dilation)})"


def _plain(function: str) -> Callable[[Node, list[str]], str]:
    return lambda node, operands: f"{function}({operands[0]})"


def _block(function: str) -> Callable[[Node, list[str]], str]:
    return lambda node, operands: f"functional.{function}({operands[0]}, {node.attributes.size})"


_EXPRESSIONS: Mapping[str, Callable[[Any, list[str]], str]] = {
    "relu": _plain("F.relu"),
    "leaky_relu": lambda node, x: f"F.leaky_relu({x[0]}, {nearest(node.attributes.slope)})",
    "tanh": _plain("torch.tanh"),
    "sigmoid": _plain("torch.sigmoid"),
    "softplus": _plain("F.softplus"),
    "abs": _plain("torch.abs"),
    "groupsort": lambda node, x: f"functional.group_sort({x[0]}, {node.attributes.size}, axis={_axis(node)})",
    "fullsort": lambda node, x: f"functional.full_sort({x[0]}, axis={_axis(node)})",
    "max_pool": _pool("max_pool", with_dilation=True),
    "l2_pool": _pool("l2_pool", with_dilation=True),
    "avg_pool": _pool("avg_pool"),
    "scaled_avg_pool": _pool("scaled_avg_pool"),
    "global_avg_pool": _global_average,
    "identity": lambda node, x: x[0],
    "flatten": lambda node, x: f"{x[0]}.flatten(1)" if node.site.inputs[0] else f"{x[0]}[:, None]",
    "reshape": _reshape,
    "transpose": _transpose,
    "space_to_depth": _block("space_to_depth"),
    "depth_to_space": _block("depth_to_space"),
    "patches": _block("patches"),
    "pad": lambda node, x: f"functional.pad_zeros({x[0]}, {node.attributes.padding})",
    "slice": _slice,
    "clip_norm": lambda node, x: f"functional.clip_norm({x[0]}, {below(node.attributes.radius)})",
    "clip_gradient": lambda node, x: f"self.clip_gradient({x[0]}, {below(node.attributes.bound)})",
    "dropout": lambda node, x: f"F.dropout({x[0]}, {nearest(node.attributes.probability)}, self.training)",
    "add": _sum,
    "concat": _concat,
}


# Losses

_LOSS_FUNCTIONS = {"bce": "binary_cross_entropy"}


def loss_expression(graph: Graph) -> str:
    """Return the call that computes the loss of each example."""
    assert graph.loss is not None
    name, attributes = graph.loss.loss.name, graph.loss.attributes
    values = {field: getattr(attributes, field) for field in type(attributes).__dataclass_fields__}
    written = [f"{field}={_literal(value)}" for field, value in values.items()]
    return f"losses.{_LOSS_FUNCTIONS.get(name, name)}({', '.join(['output', 'target', *written])})"


def _literal(value: Any) -> str:
    if isinstance(value, bool):
        return str(value)
    return f'"{value}"' if isinstance(value, str) else nearest(value)
