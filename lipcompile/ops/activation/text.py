"""Activations and sorting."""

from __future__ import annotations

from collections.abc import Mapping

from lipcompile.emitters.torch.expression import Expression, axis_of, call, nearest

_TANH = {"none": "", "tanh": ', approximate="tanh"'}
EXPRESSIONS: Mapping[str, Expression] = {
    "relu": call("F.relu"),
    "leaky_relu": lambda node, x: f"F.leaky_relu({x[0]}, {nearest(node.attributes.slope)})",
    "tanh": call("torch.tanh"),
    "sigmoid": call("torch.sigmoid"),
    "softplus": call("F.softplus"),
    "abs": call("torch.abs"),
    "elu": lambda node, x: f"F.elu({x[0]}, {nearest(node.attributes.alpha)})",
    "celu": lambda node, x: f"F.celu({x[0]}, {nearest(node.attributes.alpha)})",
    "selu": call("F.selu"),
    "gelu": lambda node, x: f"F.gelu({x[0]}{_TANH[node.attributes.approximate]})",
    "silu": call("F.silu"),
    # F.mish has no finite second derivative far from 0, which audits differentiate through.
    "mish": lambda node, x: f"{x[0]} * torch.tanh(F.softplus({x[0]}))",
    "hard_swish": call("F.hardswish"),
    "hard_sigmoid": lambda node, x: (
        f"torch.clamp({nearest(node.attributes.slope)} * {x[0]} + {nearest(node.attributes.offset)}, 0, 1)"
    ),
    "softsign": call("F.softsign"),
    "hardtanh": lambda node, x: (
        f"torch.clamp({x[0]}, {nearest(node.attributes.low)}, {nearest(node.attributes.high)})"
    ),
    "sign": call("torch.sign"),
    "hard_shrink": lambda node, x: f"F.hardshrink({x[0]}, {nearest(node.attributes.threshold)})",
    "groupsort": lambda node, x: f"functional.group_sort({x[0]}, {node.attributes.size}, axis={axis_of(node)})",
    "fullsort": lambda node, x: f"functional.full_sort({x[0]}, axis={axis_of(node)})",
}
