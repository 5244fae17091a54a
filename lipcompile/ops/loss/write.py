"""Losses."""

from __future__ import annotations

from typing import Any

from lipcompile.core.graph import Graph
from lipcompile.emitters.torch.pieces import nearest

_FUNCTIONS = {"bce": "binary_cross_entropy"}
_FURTHER = {"own": ["self.own_loss"]}


def loss_expression(graph: Graph) -> str:
    """Return the call that computes the loss of each example."""
    assert graph.loss is not None
    name, attributes = graph.loss.loss.name, graph.loss.attributes
    values = {field: getattr(attributes, field) for field in type(attributes).__dataclass_fields__}
    written = [*_FURTHER.get(name, ()), *(f"{field}={_literal(value)}" for field, value in values.items())]
    return f"losses.{_FUNCTIONS.get(name, name)}({', '.join(['output', 'target', *written])})"


def _literal(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({''.join(f'{_literal(item)}, ' for item in value).rstrip(' ')})"
    if value is None or isinstance(value, bool | int):
        return str(value)
    return f'"{value}"' if isinstance(value, str) else nearest(value)
