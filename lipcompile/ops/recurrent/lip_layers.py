"""Recurrent layers of .lip: those of `cells` on an example [steps, features], from the state 0.

The matrix of the state has no bias of its own: that of the input does the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from lipcompile.core.graph import Value
from lipcompile.core.record import AnyOp, Shape
from lipcompile.frontends.lip import syntax as ast
from lipcompile.frontends.lip.layers import LayerLowering, argument_problem, operands_of
from lipcompile.frontends.lip.scope import Problem, Scope
from lipcompile.ops.merge.rules import CONCAT, Concat
from lipcompile.ops.recurrent.cells import CELLS, Cell, Role, Unrolling, unrolled
from lipcompile.ops.schema import ArgumentError, bind
from lipcompile.ops.table import OP_BY_NAME

DENSE = OP_BY_NAME["dense"]
# Arguments that are handed on to the dense layers inside.
_HANDED_ON: Mapping[Role, tuple[str, ...]] = {
    "input": ("bias", "constraint", "clip"),
    "state": ("constraint", "clip"),
}


@dataclass(frozen=True, slots=True)
class Recurrence:
    """The arguments of a recurrent layer: entries of its state, and whether all states are its result."""

    width: int
    sequence: bool = False


@dataclass(slots=True)
class _Layer:
    """What adds the nodes of one recurrent layer; `label` is its own, if it has one."""

    layers: LayerLowering
    call: ast.Call
    scope: Scope
    cell: Cell
    width: int
    label: str | None
    made: list[str] = field(default_factory=list)

    def node(self, op: AnyOp, attributes: Any, operands: Sequence[Value], name: str) -> Value:
        """Add a node without parameters."""
        at, scope = self.call.at, self.scope.path
        return self.layers.builder.add(op, attributes, operands, name=name, location=at, scope=scope)

    def dense(self, role: Role, x: Value, name: str) -> Value:
        """Add the stacked matrices of the input or of the state; equal labels mean one matrix."""
        handed = [a for a in self.call.arguments if a.name is not None and a.name.text in _HANDED_ON[role]]
        size = ast.Argument(None, ast.Constant(Fraction(self.cell.gates * self.width), self.call.at))
        label = self._shared(role)
        if label is not None:
            handed.append(ast.Argument(ast.Name("share", self.call.at), ast.Constant(label, self.call.at)))
        layer = ast.Call(ast.Name("dense", self.call.at), (size, *handed))
        added = self.layers.lower(layer, x, self.scope, name)
        self.made.append(added.name)
        return added

    def _shared(self, role: Role) -> str | None:
        """The label of a matrix: the layer's own; or one that no file can give, for the states of all steps."""
        if self.label is not None:
            return f"{self.label}.{role}"
        return f'"{self.made[0]}".state' if role == "state" else None


def lower(layers: LayerLowering, call: ast.Call, current: Value, scope: Scope, target: str | None) -> Value:
    """Add the nodes of a call of one of `CELLS`; raises `Problem`."""
    operands, arguments = operands_of(call, DENSE, current, scope)
    record, label = _read(call, arguments, scope)
    if operands[0].shape is None:
        return Value(call.name.text, None)
    steps, cell = _steps(call, operands[0].shape), CELLS[call.name.text]
    layer = _Layer(layers, ast.Call(call.name, tuple(arguments)), scope, cell, record.width, label)
    net = Unrolling(layer.node, layer.dense, target or call.name.text, record.width)
    outputs = [state.output for state in unrolled(net, cell, operands[0], range(steps))]
    layers.builder.clip_together(layer.made)
    if record.sequence and steps > 1:
        return net.add(CONCAT, Concat(0), outputs)
    return net.reshaped("", outputs[-1], (1, record.width) if record.sequence else (record.width,))


def _read(call: ast.Call, arguments: Sequence[ast.Argument], scope: Scope) -> tuple[Recurrence, str | None]:
    """Return the layer's own arguments and its `share` label."""
    own = ("bias", "constraint", "share", "clip")
    positional = [scope.argument(a.value) for a in arguments if a.name is None]
    named = {a.name.text: scope.argument(a.value) for a in arguments if a.name and a.name.text not in own}
    try:
        record = bind(Recurrence, positional, named, rank=0, also=own)
    except ArgumentError as error:
        raise argument_problem(error, call) from None
    labels = [scope.argument(a.value) for a in arguments if a.name and a.name.text == "share"]
    if labels and not isinstance(labels[0], str):
        raise Problem("LIP012", "`share` takes a label", call.at, 'write share="cell" on each of the layers')
    return record, str(labels[0]) if labels else None


def _steps(call: ast.Call, shape: Shape) -> int:
    if len(shape) != 2:
        message = f"`{call.name.text}` needs a sequence [steps, features], not {list(shape)}"
        raise Problem("LIP102", message, call.at, "reshape it, or begin with an embedding", node=call.name.text)
    return shape[0]
