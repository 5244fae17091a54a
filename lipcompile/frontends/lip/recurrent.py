"""Recurrent layers of .lip, unrolled: a few nodes per step, with weights that all steps share.

They act on an example [steps, features] and begin at the state 0. The matrices of a cell's gates are stacked. The
input is multiplied with its matrix at all steps at once: the steps are disjoint slices of that product, so their
cotangents add up as squares. The matrix of the state has no bias of its own: that of the input does the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from lipcompile.frontends.lip import syntax as ast
from lipcompile.frontends.lip.layers import LayerLowering, argument_problem, operands_of
from lipcompile.frontends.lip.scope import Problem, Scope
from lipcompile.graph import Value
from lipcompile.ops import OP_BY_NAME
from lipcompile.ops.merge import CONCAT, PRODUCT, SUM, Concat, Sum
from lipcompile.ops.record import AnyOp, NoAttributes, Shape
from lipcompile.ops.schema import ArgumentError, bind
from lipcompile.ops.shape import Reshape, Slice

ONE = Fraction(1)
DENSE = OP_BY_NAME["dense"]
# Arguments that are handed on to the dense layers inside.
_HANDED_ON: Mapping[str, tuple[str, ...]] = {"input": ("bias", "constraint"), "state": ("constraint",)}


@dataclass(frozen=True, slots=True)
class Recurrence:
    """The arguments of a recurrent layer: entries of its state, and whether all states are its result."""

    width: int
    sequence: bool = False


@dataclass(frozen=True, slots=True)
class State:
    """What one step hands to the next: its output, and the memory of a cell that has one."""

    output: Value
    memory: Value


@dataclass(frozen=True, slots=True)
class Unrolling:
    """One recurrent layer under construction; its nodes are called `name`_`what``time`."""

    layers: LayerLowering
    call: ast.Call
    scope: Scope
    name: str
    width: int
    time: str = ""

    def dense(self, role: str, x: Value, gates: int, label: str | None) -> Value:
        """Add the matrix of the input or of the state, [steps, gates·width]; equal labels mean one matrix."""
        handed = [a for a in self.call.arguments if a.name is not None and a.name.text in _HANDED_ON[role]]
        size = ast.Argument(None, ast.Constant(Fraction(gates * self.width), self.call.at))
        if label is not None:
            handed.append(ast.Argument(ast.Name("share", self.call.at), ast.Constant(label, self.call.at)))
        layer = ast.Call(ast.Name("dense", self.call.at), (size, *handed))
        return self.layers.lower(layer, x, self.scope, f"{self.name}_{role}")

    def sigmoid(self, what: str, x: Value) -> Value:
        """Add σ(x)."""
        return self._layer("sigmoid", x, what)

    def tanh(self, what: str, x: Value) -> Value:
        """Add tanh(x)."""
        return self._layer("tanh", x, what)

    def hardtanh(self, what: str, x: Value) -> Value:
        """Add x, cut to [-1, 1]."""
        return self._layer("hardtanh", x, what)

    def _layer(self, kind: str, x: Value, what: str) -> Value:
        call = ast.Call(ast.Name(kind, self.call.at), ())
        return self.layers.lower(call, x, self.scope, f"{self.name}_{what}{self.time}")

    def sum(self, what: str, *operands: Value | None) -> Value:
        """Add up the operands that there are."""
        known = [operand for operand in operands if operand is not None]
        return known[0] if len(known) == 1 else self._node(SUM, Sum((ONE,) * len(known)), known, f"_{what}")

    def negative(self, what: str, x: Value) -> Value:
        """Change the sign."""
        return self._node(SUM, Sum((-ONE,)), [x], f"_{what}")

    def product(self, what: str, x: Value, gate: Value) -> Value:
        """Multiply entry by entry."""
        return self._node(PRODUCT, NoAttributes(), [x, gate], f"_{what}")

    def pieces(self, x: Value, **stops: int) -> list[Value]:
        """Cut the last axis where the named pieces stop, in widths of the state."""
        starts = (0, *list(stops.values())[:-1])
        return [
            self._node(OP_BY_NAME["slice"], Slice(1, start * self.width, stop * self.width), [x], f"_{name}")
            for start, (name, stop) in zip(starts, stops.items(), strict=True)
        ]

    def row(self, x: Value, index: int) -> Value:
        """Take one step, [1, …]."""
        return self._node(OP_BY_NAME["slice"], Slice(0, index, index + 1), [x], "_x")

    def result(self, outputs: Sequence[Value], *, sequence: bool) -> Value:
        """Return all states [steps, width], or the last one [width]."""
        if sequence:
            return self._node(CONCAT, Concat(0), outputs)
        return self._node(OP_BY_NAME["reshape"], Reshape((self.width,)), outputs[-1:])

    def _node(self, op: AnyOp, attributes: Any, operands: Sequence[Value], suffix: str = "") -> Value:
        name, at = f"{self.name}{suffix}{self.time}", self.call.at
        return self.layers.builder.add(op, attributes, operands, name=name, location=at, scope=self.scope.path)


# One step, from the rows of the input's and of the state's product; the first step has no state before it.
Cell = Callable[[Unrolling, Value, Value | None, State | None], State]


def _rnn(net: Unrolling, x: Value, recurrent: Value | None, _: State | None) -> State:
    """h = tanh(Wx + b + Uh)."""
    output = net.tanh("h", net.sum("sum", x, recurrent))
    return State(output, output)


def _gru(net: Unrolling, x: Value, recurrent: Value | None, before: State | None) -> State:
    """h = (1-z)·tanh(Wx + b + r·Uh) + z·h with gates r and z; 1 - z is the sigmoid of the opposite.

    A weighted mean of entries in [-1, 1] lies there too: `hardtanh` changes nothing, but tells the analysis.
    """
    gates, new = net.pieces(x, x_rz=2, x_n=3)
    if recurrent is None or before is None:
        _, decision = net.pieces(gates, pre_r=1, pre_z=2)
        output = net.product("h", net.tanh("n", new), net.sigmoid("write", net.negative("pre_write", decision)))
        return State(output, output)
    old_gates, old = net.pieces(recurrent, state_rz=2, state_n=3)
    reset, decision = net.pieces(net.sum("sum", gates, old_gates), pre_r=1, pre_z=2)
    read = net.product("read", old, net.sigmoid("r", reset))
    written = net.sigmoid("write", net.negative("pre_write", decision))
    fresh = net.product("fresh", net.tanh("n", net.sum("pre_n", new, read)), written)
    kept = net.product("kept", before.output, net.sigmoid("z", decision))
    output = net.hardtanh("h", net.sum("mix", fresh, kept))
    return State(output, output)


def _lstm(net: Unrolling, x: Value, recurrent: Value | None, before: State | None) -> State:
    """c = f·c + i·g and h = o·tanh(c) with gates i, f, g, o of Wx + b + Uh."""
    i, f, g, o = net.pieces(net.sum("sum", x, recurrent), pre_i=1, pre_f=2, pre_g=3, pre_o=4)
    fresh = net.product("fresh", net.tanh("g", g), net.sigmoid("i", i))
    kept = None if before is None else net.product("kept", before.memory, net.sigmoid("f", f))
    memory = net.sum("c", fresh, kept)
    return State(net.product("h", net.tanh("shown", memory), net.sigmoid("o", o)), memory)


# Cells by the name of their layer, with the number of their gates.
CELLS: Mapping[str, tuple[int, Cell]] = {"rnn": (1, _rnn), "gru": (3, _gru), "lstm": (4, _lstm)}


def lower(layers: LayerLowering, call: ast.Call, current: Value, scope: Scope, target: str | None) -> Value:
    """Add the nodes of a call of one of `CELLS`; raises `Problem`."""
    operands, arguments = operands_of(call, DENSE, current, scope)
    record, label = _read(call, arguments, scope)
    if operands[0].shape is None:
        return Value(call.name.text, None)
    steps = _steps(call, operands[0].shape)
    gates, cell = CELLS[call.name.text]
    net = Unrolling(layers, ast.Call(call.name, tuple(arguments)), scope, target or call.name.text, record.width)
    x = net.dense("input", operands[0], gates, None if label is None else f"{label}.input")
    own = f'"{x.name}".state' if label is None else f"{label}.state"  # no label of a file has quotes
    states: list[State] = []
    for step in range(steps):
        now = replace(net, time=str(step))
        recurrent = now.dense("state", states[-1].output, gates, own) if states else None
        states.append(cell(now, now.row(x, step), recurrent, states[-1] if states else None))
    return net.result([state.output for state in states], sequence=record.sequence)


def _read(call: ast.Call, arguments: Sequence[ast.Argument], scope: Scope) -> tuple[Recurrence, str | None]:
    """Return the layer's own arguments and its `share` label."""
    own = ("bias", "constraint", "share")
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
