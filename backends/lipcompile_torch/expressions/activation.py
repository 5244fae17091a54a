"""Activations and sorting."""

from __future__ import annotations

from collections.abc import Mapping

from .text import Expression, axis_of, call, nearest

EXPRESSIONS: Mapping[str, Expression] = {
    "relu": call("F.relu"),
    "leaky_relu": lambda node, x: f"F.leaky_relu({x[0]}, {nearest(node.attributes.slope)})",
    "tanh": call("torch.tanh"),
    "sigmoid": call("torch.sigmoid"),
    "softplus": call("F.softplus"),
    "abs": call("torch.abs"),
    "groupsort": lambda node, x: f"functional.group_sort({x[0]}, {node.attributes.size}, axis={axis_of(node)})",
    "fullsort": lambda node, x: f"functional.full_sort({x[0]}, axis={axis_of(node)})",
}
