"""Recurrent cells, unrolled: a few nodes per step, with weights that all steps share.

Front ends say how they add a layer with parameters; what a cell does with it stands here once. The matrices of a
cell's gates are stacked, in torch's order. The input is multiplied with its matrix at all steps at once: the steps
are disjoint slices of that product, so their cotangents add up as squares. Where the state before the first step
is 0, what it would add is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Literal

from lipcompile.core.graph import Value
from lipcompile.core.record import AnyOp, NoAttributes, Shape
from lipcompile.ops.merge.rules import CONCAT, PRODUCT, SUM, Concat, Sum
from lipcompile.ops.shape.rules import Reshape, Slice
from lipcompile.ops.table import OP_BY_NAME

ONE, ZERO = Fraction(1), Fraction(0)

# The layers of a cell that have parameters. input, state: stacked matrices of all gates. new: the matrix of the
# reset state. shift: what is added to the state's part of the new content before it is reset.
Role = Literal["input", "state", "new", "shift"]
# Adds a node, and a layer on an operand: the last argument is the name.
AddNode = Callable[[AnyOp, Any, Sequence[Value], str], Value]
AddLayer = Callable[[Role, Value, str], Value]


@dataclass(frozen=True, slots=True)
class State:
    """What one step hands to the next: its output, and the memory of a cell that has one."""

    output: Value
    memory: Value


@dataclass(frozen=True, slots=True)
class Unrolling:
    """One recurrent layer under construction, of `width` entries; its nodes are called `name`_`what``time`.

    bounded: whether it begins in zeros, so that entries of states that are means of earlier ones lie in [-1, 1].
    """

    node: AddNode
    layer: AddLayer
    name: str
    width: int
    time: str = ""
    bounded: bool = True

    def role(self, role: Role, x: Value) -> Value:
        """Add a layer with parameters."""
        return self.layer(role, x, f"{self.name}_{role}")

    def activation(self, kind: str, what: str, x: Value) -> Value:
        """Add sigmoid, tanh or hardtanh."""
        op = OP_BY_NAME[kind]
        return self.add(op, op.attributes(), [x], f"_{what}")

    def sum(self, what: str, *operands: Value | None) -> Value:
        """Add up the operands that there are."""
        known = [operand for operand in operands if operand is not None]
        return known[0] if len(known) == 1 else self.add(SUM, Sum((ONE,) * len(known)), known, f"_{what}")

    def scaled(self, what: str, x: Value, weight: Fraction) -> Value:
        """Multiply with a number."""
        return self.add(SUM, Sum((weight,)), [x], f"_{what}")

    def product(self, what: str, x: Value, gate: Value) -> Value:
        """Multiply entry by entry."""
        return self.add(PRODUCT, NoAttributes(), [x, gate], f"_{what}")

    def pieces(self, x: Value, **stops: int) -> list[Value]:
        """Cut the last axis where the named pieces stop, in widths of the state."""
        starts, last = (0, *list(stops.values())[:-1]), len(x.shape or ()) - 1
        return [
            self.add(OP_BY_NAME["slice"], Slice(last, start * self.width, stop * self.width), [x], f"_{name}")
            for start, (name, stop) in zip(starts, stops.items(), strict=True)
        ]

    def row(self, x: Value, index: int, what: str = "_x") -> Value:
        """Take one step, [1, …]."""
        return self.add(OP_BY_NAME["slice"], Slice(0, index, index + 1), [x], what)

    def joined(self, what: str, values: Sequence[Value], axis: int = 0) -> Value:
        """Put values end to end."""
        return values[0] if len(values) == 1 else self.add(CONCAT, Concat(axis), values, what)

    def reshaped(self, what: str, x: Value, shape: Shape) -> Value:
        """Give a value another shape."""
        return self.add(OP_BY_NAME["reshape"], Reshape(shape), [x], what)

    def add(self, op: AnyOp, attributes: Any, operands: Sequence[Value], suffix: str = "") -> Value:
        """Add a node without parameters."""
        return self.node(op, attributes, operands, f"{self.name}{suffix}{self.time}")


# One step, from the rows of the input's product; the first step has no state before it.
Step = Callable[[Unrolling, Value, State | None], State]


def _rnn(net: Unrolling, x: Value, before: State | None) -> State:
    """h = tanh(Wx + b + Uh)."""
    recurrent = None if before is None else net.role("state", before.output)
    output = net.activation("tanh", "h", net.sum("sum", x, recurrent))
    return State(output, output)


def _gru(net: Unrolling, x: Value, before: State | None) -> State:
    """h = (1-z)·tanh(Wx + b + r·Uh) + z·h with gates r and z."""
    if before is None:
        return _first(net, x)
    return _reset_behind(net, x, before, lambda old: old)


def _gru_with_shift(net: Unrolling, x: Value, before: State | None) -> State:
    """h = (1-z)·tanh(Wx + b + r·(Uh + s)) + z·h: the gate r meets s, so that the first state is not left out."""
    if before is None:
        _, new = net.pieces(x, x0_rz=2, x0_n=3)
        start = net.scaled("start", new, ZERO)
        before = State(start, start)
    return _reset_behind(net, x, before, lambda old: net.role("shift", old))


def _gru_reset_first(net: Unrolling, x: Value, before: State | None) -> State:
    """h = (1-z)·tanh(Wx + b + U(r·h)) + z·h."""
    if before is None:
        return _first(net, x)
    gates, new = net.pieces(x, x_rz=2, x_n=3)
    recurrent = net.role("state", before.output)
    reset, decision = net.pieces(net.sum("sum", gates, recurrent), pre_r=1, pre_z=2)
    read = net.role("new", net.product("reset", before.output, net.activation("sigmoid", "r", reset)))
    return _mixed(net, net.sum("pre_n", new, read), decision, before)


def _reset_behind(net: Unrolling, x: Value, before: State, shifted: Callable[[Value], Value]) -> State:
    gates, new = net.pieces(x, x_rz=2, x_n=3)
    old_gates, old = net.pieces(net.role("state", before.output), state_rz=2, state_n=3)
    reset, decision = net.pieces(net.sum("sum", gates, old_gates), pre_r=1, pre_z=2)
    read = net.product("read", shifted(old), net.activation("sigmoid", "r", reset))
    return _mixed(net, net.sum("pre_n", new, read), decision, before)


def _first(net: Unrolling, x: Value) -> State:
    """(1-z)·n: the state before is 0."""
    gates, new = net.pieces(x, x_rz=2, x_n=3)
    _, decision = net.pieces(gates, pre_r=1, pre_z=2)
    output = net.product("h", net.activation("tanh", "n", new), _written(net, decision))
    return State(output, output)


def _mixed(net: Unrolling, new: Value, decision: Value, before: State) -> State:
    """(1-z)·tanh(new) + z·h, a weighted mean of entries in [-1, 1] if the states before were.

    It lies there too: `hardtanh` changes nothing, but tells the analysis.
    """
    fresh = net.product("fresh", net.activation("tanh", "n", new), _written(net, decision))
    kept = net.product("kept", before.output, net.activation("sigmoid", "z", decision))
    output = net.sum("mix" if net.bounded else "h", fresh, kept)
    output = net.activation("hardtanh", "h", output) if net.bounded else output
    return State(output, output)


def _written(net: Unrolling, decision: Value) -> Value:
    """1 - z, the sigmoid of the opposite."""
    return net.activation("sigmoid", "write", net.scaled("pre_write", decision, -ONE))


def _lstm(net: Unrolling, x: Value, before: State | None) -> State:
    """c = f·c + i·g and h = o·tanh(c) with gates i, f, g, o of Wx + b + Uh."""
    recurrent = None if before is None else net.role("state", before.output)
    i, f, g, o = net.pieces(net.sum("sum", x, recurrent), pre_i=1, pre_f=2, pre_g=3, pre_o=4)
    fresh = net.product("fresh", net.activation("tanh", "g", g), net.activation("sigmoid", "i", i))
    kept = None if before is None else net.product("kept", before.memory, net.activation("sigmoid", "f", f))
    memory = net.sum("c", fresh, kept)
    shown = net.activation("tanh", "shown", memory)
    return State(net.product("h", shown, net.activation("sigmoid", "o", o)), memory)


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell and the number of its gates, whose matrices are stacked."""

    gates: int
    step: Step


# The cells of .lip, by the name of their layer, and those that other formats have beside them.
CELLS: Mapping[str, Cell] = {"rnn": Cell(1, _rnn), "gru": Cell(3, _gru), "lstm": Cell(4, _lstm)}
GRU_WITH_SHIFT, GRU_RESET_FIRST = Cell(3, _gru_with_shift), Cell(3, _gru_reset_first)


def unrolled(
    net: Unrolling, cell: Cell, x: Value, steps: Sequence[int], before: State | None = None
) -> list[State]:
    """Add the nodes of a cell that reads the rows `steps` of x [steps, …, features], in this order: a state each.

    before: the state that it begins in, [1, …, width]; None for zeros.
    """
    products = net.role("input", x)
    states: list[State] = []
    for step in steps:
        now = replace(net, time=str(step))
        states.append(cell.step(now, now.row(products, step), states[-1] if states else before))
    return states
