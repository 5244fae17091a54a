"""One line of Python per node: what constructs its layer, and what computes its output. Needs no torch.

One file a family of ops, as in `lipcompile.ops`: a table of expressions, and of layers where ops have parameters.
"""

from __future__ import annotations

from collections.abc import Mapping

from lipcompile.core.graph import Graph, Node
from lipcompile.emitters.torch.expression import Expression, below
from lipcompile.emitters.torch.layer import Layer
from lipcompile.emitters.torch.user_ops import UserExpression, register_expression, user_expression, user_imports
from lipcompile.ops.activation import text as activation
from lipcompile.ops.attention import text as attention
from lipcompile.ops.conv import text as conv
from lipcompile.ops.embedding import text as embedding
from lipcompile.ops.linear import text as linear
from lipcompile.ops.loss.text import loss_expression
from lipcompile.ops.merge import text as merge
from lipcompile.ops.normalisation import text as normalisation
from lipcompile.ops.parametric import text as parametric
from lipcompile.ops.pool import text as pool
from lipcompile.ops.reduce import text as reduce
from lipcompile.ops.resample import text as resample
from lipcompile.ops.shape import text as shape

__all__ = [
    "UserExpression",
    "below",
    "constructor",
    "expression",
    "loss_expression",
    "owner",
    "register_expression",
    "user_imports",
]

LAYERS: Mapping[str, Layer] = {
    **linear.LAYERS,
    **conv.LAYERS,
    **attention.LAYERS,
    **embedding.LAYERS,
    **parametric.LAYERS,
}
EXPRESSIONS: Mapping[str, Expression] = {
    **activation.EXPRESSIONS,
    **parametric.EXPRESSIONS,
    **pool.EXPRESSIONS,
    **reduce.EXPRESSIONS,
    **shape.EXPRESSIONS,
    **resample.EXPRESSIONS,
    **merge.EXPRESSIONS,
    **attention.EXPRESSIONS,
    **normalisation.EXPRESSIONS,
}


def owner(node: Node) -> str:
    """Return the attribute that holds the node's layer: the node that first used its parameters."""
    return next(iter(node.parameters.values())).rpartition(".")[0]


def constructor(graph: Graph, node: Node) -> str:
    """Return the call that builds the node's layer."""
    parameters = {role: graph.parameters[name] for role, name in node.parameters.items()}
    if node.op.name not in LAYERS:
        build = user_expression(node.op.name).constructor
        assert build is not None, f"{node.op.name} has parameters, but no constructor was registered"
        return build(node, parameters)
    layer = LAYERS[node.op.name]
    return f"layers.{layer.name(node)}({', '.join(layer.arguments(node, parameters))})"


def expression(node: Node) -> str:
    """Return the expression of the node's output."""
    operands = list(node.inputs)
    if node.parameters:
        return f"self.{owner(node)}({', '.join(operands)})"
    write = EXPRESSIONS.get(node.op.name) or user_expression(node.op.name).expression
    assert write is not None, f"{node.op.name} has no parameters, but a constructor was registered for it"
    return write(node, operands)
