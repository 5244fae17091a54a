"""Layers that `fix` puts in the place of those that .lip does not have."""

from __future__ import annotations

from fractions import Fraction

from lipcompile.core.graph import Value
from lipcompile.frontends.lip import syntax as ast
from lipcompile.frontends.lip.layers import LayerLowering
from lipcompile.frontends.lip.scope import Scope
from lipcompile.frontends.repairs import Repairs, groups_of


def repaired(
    layers: LayerLowering, repairs: Repairs, call: ast.Call, current: Value, scope: Scope, target: str | None
) -> Value:
    """Lower a batch normalisation: a norm of one example or its centring, a factor and a shift for each channel.

    There are no statistics to fold.
    """
    source = _source(call, current, scope)
    if source.shape is None:
        return Value(call.name.text, None)
    if repairs.batch_norm == "center":
        names, text = [_call(call, "center")], "center"
    else:
        groups = groups_of(source.shape)
        norm = _call(call, "group_norm", ast.Constant(Fraction(groups), call.at), **repairs.divisor)
        names, text = [norm], f"group_norm({groups}, {repairs.said_divisor})"
    names += [_call(call, "scale"), _call(call, "bias", ast.Constant(Fraction(1), call.at))]
    repairs.note(f"line {call.at.line}", f"batch norm -> {text}, scale, bias(1)")
    for layer in names:
        source = layers.lower(layer, source, scope, target if layer is names[-1] else None)
    return source


def _source(call: ast.Call, current: Value, scope: Scope) -> Value:
    """Return the operand that is named, if one is; other arguments say nothing that is kept."""
    first = call.arguments[0].value if call.arguments and call.arguments[0].name is None else None
    return scope.values[first.text] if isinstance(first, ast.Name) and first.text in scope.values else current


def _call(call: ast.Call, name: str, *positional: ast.Expression, **named: Fraction) -> ast.Call:
    arguments = [ast.Argument(None, value) for value in positional]
    arguments += [
        ast.Argument(ast.Name(key, call.at), ast.Constant(value, call.at)) for key, value in named.items()
    ]
    return ast.Call(ast.Name(name, call.at), tuple(arguments))
