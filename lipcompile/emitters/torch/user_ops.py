"""How user ops are computed: told by `register_expression`, or by the entry point group `lipcompile_torch.ops`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points

from lipcompile.core.graph import Graph, Node
from lipcompile.emitters.torch.expression import Expression
from lipcompile.emitters.torch.layer import Parameters

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
        raise ValueError(f"op `{op}`: give an expression, or a constructor for an op with parameters")
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
            f"the torch backend does not know how to compute the op `{op}`: tell it by register_expression"
        )
    return _USER[op]


def user_imports(graph: Graph) -> list[str]:
    """Return the import statements that the user ops of a graph need."""
    names = {node.op.name for node in graph.nodes} & _USER.keys()
    return sorted({line for name in names for line in _USER[name].imports})
