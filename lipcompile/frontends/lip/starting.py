"""`start=zero`: the first values of a layer's weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any

from lipcompile import limits
from lipcompile.core.graph import ParameterChoice
from lipcompile.core.record import AnyOp, Shape
from lipcompile.diagnostics import Refusal
from lipcompile.frontends.lip import syntax as ast
from lipcompile.frontends.lip.scope import Problem, Scope


def starts_at_zero(op: AnyOp, named: dict[str, ast.Expression], scope: Scope, call: ast.Call) -> bool:
    """Take `start=zero` out of the arguments of a layer with weights."""
    if "start" not in named or "constraint" not in {rule.argument for rule in op.parameters}:
        return False
    if scope.argument(named.pop("start")) != "zero":
        raise Problem(
            "LIP012", "weights start at random, or at zero", call.at, "write start=zero, or leave it out"
        )
    return True


def zeroed(
    op: AnyOp, attributes: Any, shapes: tuple[Shape, ...], choices: Mapping[str, ParameterChoice], call: ast.Call
) -> dict[str, ParameterChoice]:
    """Return the choices with zeros for the values of weights."""
    import numpy as np  # here, because `check` starts faster without it

    found = dict(choices)
    for role, choice in choices.items():
        if op.parameter(role).argument == "constraint":
            if choice.constraint.kind == "orthogonal":
                raise Problem("LIP012", "no orthogonal weight is zero", call.at, "leave start=zero out")
            try:
                op.shape(attributes, shapes)
                shape = op.parameter(role).shape(attributes, shapes)
                limits.refuse_above("constants", 4 * prod(shape), f"the zeros of `{call.name.text}` take")
            except Refusal as refusal:
                raise Problem(refusal.code, refusal.message, call.at, refusal.help, node=call.name.text) from None
            found[role] = replace(choice, initial=np.zeros(shape, dtype=np.float32))
    return found
