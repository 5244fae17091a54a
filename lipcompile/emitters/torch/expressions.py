"""One line of Python per node: what constructs its layer, and what computes its output. Needs no torch.

One file a family of ops, as in `lipcompile.ops`: a table of expressions, and of layers where ops have parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from lipcompile.core.graph import Graph, Node
from lipcompile.emitters.torch.pieces import Expression, Layer, Parameters, nearest
from lipcompile.ops.activation import write as activation
from lipcompile.ops.attention import write as attention
from lipcompile.ops.colour import write as colour
from lipcompile.ops.conv import write as conv
from lipcompile.ops.embedding import write as embedding
from lipcompile.ops.linear import write as linear
from lipcompile.ops.merge import write as merge
from lipcompile.ops.normalisation import write as normalisation
from lipcompile.ops.own import write as own
from lipcompile.ops.parametric import write as parametric
from lipcompile.ops.pointwise import write as pointwise
from lipcompile.ops.pool import write as pool
from lipcompile.ops.reduce import write as reduce
from lipcompile.ops.resample import write as resample
from lipcompile.ops.scattering import write as scattering
from lipcompile.ops.shape import write as shape
from lipcompile.ops.softmax import write as softmax
from lipcompile.ops.whitening import write as whitening

GROUP = "lipcompile_torch.ops"


@dataclass(frozen=True, slots=True)
class UserExpression:
    """The Python of one user op.

    expression: the output, from the node and the variables of its operands; None for an op with parameters.
    constructor: the call that builds the layer of an op with parameters, a `ConstrainedLayer`.
    imports: import statements that an emitted file needs for either.
    """

    expression: Expression | None = None
    constructor: Callable[[Node, Parameters], str] | None = None
    imports: tuple[str, ...] = ()


_USER: dict[str, UserExpression] = {}


def register_expression(op: str, user: UserExpression) -> None:
    """Tell the torch backend how to compute the user op `op`.

    The bounds are those of the op's record: that the Python computes the same function is yours to test, for
    example with `lipcompile audit`.

    Raises:
        ValueError: neither or both of expression and constructor are given.
    """
    if (user.expression is None) == (user.constructor is None):
        raise ValueError(f"op `{op}`: register an expression, or a constructor for an op with parameters")
    _USER[op] = user


def unregister_expression(op: str) -> None:
    """Forget how a user op is computed, if it is known."""
    _USER.pop(op, None)


@cache
def _load_plugins() -> None:
    for point in entry_points(group=GROUP):
        register_expression(point.name, point.load())


def user_expression(op: str) -> UserExpression:
    """Return how a user op is computed; raises NotImplementedError if nobody said it."""
    _load_plugins()
    if op not in _USER:
        raise NotImplementedError(
            f"the torch backend has no expression for the op `{op}`: add one with register_expression"
        )
    return _USER[op]


def user_imports(graph: Graph) -> list[str]:
    """Return the import statements that the user ops of a graph need."""
    names = {node.op.name for node in graph.nodes} & _USER.keys()
    return sorted({line for name in names for line in _USER[name].imports})


# Layers that use the matrix of another one.
TIED: Mapping[str, str] = linear.TIED
# Layers of ops without parameters, which hold constants.
HOLDERS: Mapping[str, Layer] = whitening.HOLDERS
# fmt: off
FAMILIES = (
    linear, conv, embedding, activation, parametric, pool, reduce, shape, resample, colour, scattering, whitening,
    merge, attention, normalisation, softmax, pointwise, own,
)
# fmt: on
LAYERS: Mapping[str, Layer] = {
    **{op: layer for family in FAMILIES for op, layer in getattr(family, "LAYERS", {}).items()},
    **HOLDERS,
}
EXPRESSIONS: Mapping[str, Expression] = {
    op: write for family in FAMILIES for op, write in getattr(family, "EXPRESSIONS", {}).items()
}


def has_layer(node: Node) -> bool:
    """Whether the module has a layer for the node: it holds parameters, or constants."""
    return bool(node.parameters) or node.op.name in HOLDERS


def owner(node: Node) -> str:
    """Return the attribute that holds the node's layer: the node that first used its parameters, or itself."""
    if not node.parameters:
        return node.name
    owners = {name.rpartition(".")[0] for name in node.parameters.values()}
    if len(owners) > 1:
        raise NotImplementedError(f"{node.name} shares one of its parameters, and not the others")
    return owners.pop()


def tied(graph: Graph) -> Mapping[str, str]:
    """Return the nodes that use the matrix of another node's layer in a way of their own, with that matrix."""
    owners, found = graph.owners(), dict[str, str]()
    for node in (node for node in graph.nodes if len(node.parameters) == 1):
        (matrix,) = node.parameters.values()
        if (owners[matrix].op, owners[matrix].parameters) != (node.op, node.parameters):
            found[node.name] = f"self.{matrix}"
    return found


def constructor(graph: Graph, node: Node) -> str:
    """Return the call that builds the node's layer."""
    parameters = {role: graph.parameters[name] for role, name in node.parameters.items()}
    if node.op.name not in LAYERS:
        build = user_expression(node.op.name).constructor
        assert build is not None, f"{node.op.name} has parameters, but no constructor was registered"
        return build(node, parameters)
    layer = LAYERS[node.op.name]
    return f"layers.{layer.name(node)}({', '.join(layer.arguments(node, parameters))})"


def expression(node: Node, matrices: Mapping[str, str]) -> str:
    """Return the expression of the node's output; `matrices` are those of `tied`."""
    operands = list(node.inputs)
    if node.name in matrices:
        return f"self.{node.name}({operands[0]}, {matrices[node.name]})"
    if has_layer(node):
        return f"self.{owner(node)}({', '.join(operands)})"
    write = EXPRESSIONS.get(node.op.name) or user_expression(node.op.name).expression
    assert write is not None, f"{node.op.name} has no parameters, but a constructor was registered for it"
    return write(node, operands)


_LOSS_FUNCTIONS = {"bce": "binary_cross_entropy"}
_LOSS_OPERANDS = {"own": ["self.own_loss"]}


def loss_expression(graph: Graph) -> str:
    """Return the call that computes the loss of each example."""
    assert graph.loss is not None
    name, attributes = graph.loss.loss.name, graph.loss.attributes
    values = {field: getattr(attributes, field) for field in type(attributes).__dataclass_fields__}
    written = [*_LOSS_OPERANDS.get(name, ()), *(f"{field}={_literal(value)}" for field, value in values.items())]
    return f"losses.{_LOSS_FUNCTIONS.get(name, name)}({', '.join(['output', 'target', *written])})"


def _literal(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({''.join(f'{_literal(item)}, ' for item in value).rstrip(' ')})"
    if value is None or isinstance(value, bool | int):
        return str(value)
    return f'"{value}"' if isinstance(value, str) else nearest(value)
