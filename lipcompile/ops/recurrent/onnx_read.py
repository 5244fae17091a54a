"""The importer of RNN, GRU and LSTM: unrolled, with weights that all steps share, by `cells`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lipcompile.core.graph import Value
from lipcompile.core.record import AnyOp
from lipcompile.diagnostics import Refusal
from lipcompile.frontends.onnx.context import Context, Importer, shape_of
from lipcompile.frontends.onnx.layout import FIRST, Layout, Placed, placed
from lipcompile.frontends.onnx.node import OnnxNode
from lipcompile.frontends.onnx.values import Item, Known, accepted, floats
from lipcompile.ops.linear.rules import BIAS, DENSE, BiasShape, Dense
from lipcompile.ops.recurrent.cells import (
    CELLS,
    GRU_RESET_FIRST,
    GRU_WITH_SHIFT,
    Cell,
    Role,
    State,
    Unrolling,
    unrolled,
)

Array = NDArray[Any]
# A step is a dozen nodes, and a bound the sum of what all steps may do: beyond this it would say nothing.
MOST_STEPS = 512
_ACTIVATIONS = {"RNN": ("tanh",), "GRU": ("sigmoid", "tanh"), "LSTM": ("sigmoid", "tanh", "tanh")}
# Whether each direction goes from the last step to the first.
_DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
# Operands behind the weights that must be 0 where they are constant.
_STATES = (5, 6)
_ZERO = ((5, "the initial state"), (6, "the initial memory"), (7, "the peephole weights"))


def recurrent(context: Context, node: OnnxNode) -> Sequence[Item | None]:
    """Y, the outputs of all steps and directions; Y_h, the last of each direction; Y_c, its memory, of an LSTM.

    The batch stands behind the steps, and in the results behind the directions, or in front of all (`layout`). An
    example may have several sequences, [steps, …, features]: the axes between are one with the batch.
    """
    in_front = bool(node.integer("layout", 0))
    x, layout = _input(context, node, FIRST if in_front else Layout(1))
    _refuse_options(context, node, shape_of(x)[0])
    made = [_direction(context, node, x, layout, index) for index in range(len(_directions(node)))]
    results = (_all, _last, _memory)
    return [
        placed(result(made), FIRST if in_front else replace(layout, axis=layout.axis + (result is _all)))
        if output
        else None
        for output, result in zip(node.outputs, results, strict=False)
    ]


# What is refused


def _input(context: Context, node: OnnxNode, expected: Layout) -> tuple[Value, Layout]:
    """Return the sequence [steps, …, features], whose batch is where the node takes it to be; raises Refusal."""
    item = context.item(node, 0)
    value, layout = (item.value, item.layout) if isinstance(item, Placed) else (context.tensor(node), FIRST)
    shape, merged = shape_of(value), layout.outer + layout.inner if expected != FIRST else 0
    if len(shape) != 2 + merged:
        raise Refusal("LIP102", f"{node.op_type} needs sequences [steps, features], not {list(shape)}")
    if layout.place != expected.place or (layout != expected and not merged):
        message = (
            f"{node.op_type} treats axis {expected.axis} as the batch axis, but it is not: it would mix examples"
        )
        raise Refusal(
            "LIP108", message, "move the steps to the first axis, or export the model with batch_first=True"
        )
    if shape[0] > MOST_STEPS:
        message = f"{node.op_type} over {shape[0]} steps is not yet supported, because it would be unrolled"
        raise Refusal("LIP110", message, f"use at most {MOST_STEPS} steps")
    return value, layout


def _directions(node: OnnxNode) -> tuple[bool, ...]:
    direction = node.text("direction", "forward")
    if direction not in _DIRECTIONS:
        raise Refusal("LIP102", f"{node.op_type} has no direction `{direction}`")
    return _DIRECTIONS[direction]


def _refuse_options(context: Context, node: OnnxNode, steps: int) -> None:
    """Refuse what the cells do not compute; raises `Refusal`."""
    names = [_decoded(name).lower() for name in node.attributes.get("activations") or ()]
    usual = _ACTIVATIONS[node.op_type]
    if names and names != [*usual] * len(_directions(node)):
        message = f"{node.op_type} with the activations {', '.join(names)} is not yet supported"
        raise Refusal("LIP110", message, f"use {' and '.join(dict.fromkeys(usual))}")
    if "clip" in node.attributes or node.number("input_forget", Fraction(0)):
        name = "clip" if "clip" in node.attributes else "input_forget"
        raise Refusal("LIP110", f"{name} of {node.op_type} is not yet supported", "export it without")
    lengths = context.known(node, 4, "the lengths of the sequences")
    if lengths is not None and (lengths.array != steps).any():
        raise Refusal("LIP110", "sequences of different lengths are not yet supported", "leave sequence_lens out")
    for index, what in _ZERO:
        if index in _STATES and isinstance(context.item(node, index), Value | Placed):
            continue
        known = context.known(node, index, what)
        if known is not None and (known.array.any() or not known.array.size):
            raise Refusal("LIP110", f"{what} of {node.op_type} other than 0 is not yet supported", "leave it out")


def _decoded(name: Any) -> str:
    return name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name)


# One direction


@dataclass(frozen=True, slots=True)
class _Direction:
    """One direction, unrolled: its states in the order in which they were made, and whether that is backward."""

    net: Unrolling
    states: Sequence[State]
    backward: bool


@dataclass(frozen=True, slots=True)
class _Maker:
    """What adds the nodes of one direction."""

    context: Context
    weights: Weights

    def node(self, op: AnyOp, attributes: Any, operands: Sequence[Value], name: str) -> Value:
        """Add a node without parameters."""
        return accepted(self.context.builder.add(op, attributes, operands, name=name))

    def layer(self, role: Role, x: Value, name: str) -> Value:
        """Add a matrix, or what is added to the state; equal roles have the same parameters."""
        tensors = list(self.weights.layers[role].items())
        size = tensors[0][1].array.shape
        op, attributes = (BIAS, BiasShape(tuple(size))) if role == "shift" else (DENSE, Dense(size[0]))
        return self.context.parameters.add(op, attributes, x, tensors, name)


def _direction(context: Context, node: OnnxNode, x: Value, layout: Layout, index: int) -> _Direction:
    steps, *_, features = shape_of(x)
    backward, count = _directions(node)[index], len(_directions(node))
    own = weights(context, node, features, index, count)
    maker = _Maker(context, own)
    net = Unrolling(maker.node, maker.layer, node.name + ("_reverse" if index else ""), own.width)
    order = range(steps)[::-1] if backward else range(steps)
    before = _before(context, node, net, index, x, layout)
    net = replace(net, bounded=before is None)
    return _Direction(net, unrolled(net, own.cell, x, order, before), backward)


def _before(
    context: Context, node: OnnxNode, net: Unrolling, index: int, x: Value, layout: Layout
) -> State | None:
    """Return the state that a direction begins in, None for zeros; raises Refusal where its batch is elsewhere."""
    given = {place: item for place in _STATES if isinstance(item := context.item(node, place), Value | Placed)}
    if not given:
        return None
    rows = dict[int, Value]()
    for place, item in given.items():
        value, own = (
            (item.value, item.layout) if isinstance(item, Placed) else (context.tensor(node, place), FIRST)
        )
        if own != layout or shape_of(value) != (len(_directions(node)), *shape_of(x)[1:-1], net.width):
            message = f"the initial state of {node.op_type} is no state of each example"
            raise Refusal("LIP108", message, "give it the shape [layers, batch, width]")
        rows[place] = value if len(_directions(node)) == 1 else net.row(value, index, f"_before{place}")
    for place in [place for place in _STATES if place not in rows and node.op_type == "LSTM"]:
        rows[place] = net.scaled(f"zeros{place}", next(iter(rows.values())), Fraction(0))
    return State(rows[_STATES[0]], rows.get(_STATES[1], rows[_STATES[0]]))


# Results


def _all(made: Sequence[_Direction]) -> Value:
    """[steps, directions, …, width]."""
    rows = []
    for one in made:
        outputs = [state.output for state in one.states]
        steps = one.net.joined("_steps", outputs[::-1] if one.backward else outputs)
        rows.append(one.net.reshaped("_direction", steps, (len(outputs), 1, *shape_of(outputs[0])[1:])))
    return made[0].net.joined("_all", rows, axis=1)


def _last(made: Sequence[_Direction]) -> Value:
    """[directions, …, width]."""
    return made[0].net.joined("_last", [one.states[-1].output for one in made])


def _memory(made: Sequence[_Direction]) -> Value:
    """[directions, …, width]."""
    return made[0].net.joined("_memory", [one.states[-1].memory for one in made])


IMPORTERS: Mapping[str, Importer] = {"GRU": recurrent, "LSTM": recurrent, "RNN": recurrent}

# Where the gates of torch's order stand among the file's: i, o, f, c of an LSTM; z, r, h of a GRU.
_GATES: Mapping[str, tuple[int, ...]] = {"RNN": (0,), "GRU": (1, 0, 2), "LSTM": (0, 2, 3, 1)}
_WHAT = ("", "the weights", "the recurrence weights", "the biases")

# The tensors of a layer, by their roles in its op.
Tensors = Mapping[str, Known]


@dataclass(frozen=True, slots=True)
class Weights:
    """The layers of one direction, and the cell that uses them."""

    cell: Cell
    layers: Mapping[Role, Tensors]
    width: int


def weights(context: Context, node: OnnxNode, features: int, direction: int, directions: int) -> Weights:
    """Cut the weights of one direction into parameters; raises Refusal for shapes that do not fit."""
    found = _Constants(context, node, direction, directions)
    width = found.width()
    size = len(_GATES[node.op_type]) * width
    matrix, recurrence = found.matrix(1, (size, features), width), found.matrix(2, (size, width), width)
    biases = found.biases(size, width)
    layers: dict[Role, dict[str, Known]] = {"input": {"weight": found.part(1, matrix, "input")}}
    after = bool(node.integer("linear_before_reset", 0))
    if node.op_type != "GRU" or after:
        layers["state"] = {"weight": found.part(2, recurrence, "state")}
    else:
        layers["state"] = {"weight": found.part(2, recurrence[: 2 * width], "state")}
        layers["new"] = {"weight": found.part(2, recurrence[2 * width :], "new")}
    if biases is None:
        return Weights(_cell(node, after=after, shifted=False), layers, width)
    own, of_state = biases
    if node.op_type == "GRU" and after:
        layers["shift"] = {"bias": found.part(3, of_state[2 * width :], "shift")}
        of_state = of_state.copy()
        of_state[2 * width :] = 0
    layers["input"]["bias"] = found.part(3, own + of_state, "bias")
    return Weights(_cell(node, after=after, shifted="shift" in layers), layers, width)


def _cell(node: OnnxNode, *, after: bool, shifted: bool) -> Cell:
    if node.op_type == "GRU" and not after:
        return GRU_RESET_FIRST
    return GRU_WITH_SHIFT if shifted else CELLS[node.op_type.lower()]


@dataclass(frozen=True, slots=True)
class _Constants:
    """The operands 1 to 3 of a node, [directions, …]."""

    context: Context
    node: OnnxNode
    direction: int
    directions: int

    def width(self) -> int:
        """Number of entries of the state; raises Refusal if the node says otherwise."""
        known = self._known(2)
        width = int(known.array.shape[-1]) if known.array.ndim == 3 else 0
        if width < 1 or self.node.integer("hidden_size", width) != width:
            raise self._misfit(2)
        return width

    def matrix(self, index: int, shape: tuple[int, int], width: int) -> Array:
        """Return the stacked matrices of one direction, gates in torch's order."""
        known = self._known(index)
        if known.array.shape != (self.directions, *shape):
            raise self._misfit(index)
        return self._ordered(floats(known.array[self.direction], _WHAT[index]), width)

    def biases(self, size: int, width: int) -> tuple[Array, Array] | None:
        """Return the biases of the input and of the state, in float64, where their sum is exact; None without."""
        if self.context.item(self.node, 3) is None:
            return None
        known = self._known(3)
        if known.array.shape != (self.directions, 2 * size):
            raise self._misfit(3)
        both = floats(known.array[self.direction], _WHAT[3]).astype(np.float64)
        return self._ordered(both[:size], width), self._ordered(both[size:], width)

    def part(self, index: int, array: Array, label: str) -> Known:
        """Return a parameter that is a part of an operand, or the sum of two."""
        after = self.node.integer("linear_before_reset", 0)
        cut = (self.node.op_type, self.directions, after)
        origin = f"{next(filter(None, self.node.outputs))}, operand {index}"
        return self.context.parameters.part(self._known(index), array, f"{label} {self.direction}", cut, origin)

    def _known(self, index: int) -> Known:
        known = self.context.known(self.node, index, _WHAT[index])
        if known is None:
            raise Refusal("LIP102", f"{self.node.op_type} without {_WHAT[index]}")
        return known

    def _misfit(self, index: int) -> Refusal:
        shape = list(self._known(index).array.shape)
        message = f"{_WHAT[index]} of {self.node.op_type} have the shape {shape}, which does not fit the others"
        return Refusal("LIP102", message)

    def _ordered(self, stacked: Array, width: int) -> Array:
        order = _GATES[self.node.op_type]
        return np.concatenate([stacked[gate * width : (gate + 1) * width] for gate in order])
