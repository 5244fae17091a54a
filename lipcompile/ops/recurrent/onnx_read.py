"""The importer of RNN, GRU and LSTM: unrolled, with weights that all steps share, by `frontends.cells`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from lipcompile.core.diagnostics import Refusal
from lipcompile.core.graph import Value
from lipcompile.frontends.onnx.context import Context, Importer, shape_of
from lipcompile.frontends.onnx.layout import FIRST, Layout, Placed, placed
from lipcompile.frontends.onnx.node import OnnxNode
from lipcompile.frontends.onnx.values import Item
from lipcompile.ops.linear.rules import BIAS, DENSE, BiasShape, Dense
from lipcompile.ops.record import AnyOp
from lipcompile.ops.recurrent.cells import Role, State, Unrolling, unrolled
from lipcompile.ops.recurrent.onnx_weights import Weights, weights

# A step is a dozen nodes, and a bound the sum of what all steps may do: beyond this it would say nothing.
MOST_STEPS = 512
_ACTIVATIONS = {"RNN": ("tanh",), "GRU": ("sigmoid", "tanh"), "LSTM": ("sigmoid", "tanh", "tanh")}
# Whether each direction goes from the last step to the first.
_DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
# Operands behind the weights that must be 0 where they are given.
_ZERO = ((5, "the initial state"), (6, "the initial memory"), (7, "the peephole weights"))


def recurrent(context: Context, node: OnnxNode) -> Sequence[Item | None]:
    """Y, the outputs of all steps and directions; Y_h, the last of each direction; Y_c, its memory, of an LSTM.

    The batch stands behind the steps, and in the results behind the directions, or in front of all (`layout`).
    """
    in_front = bool(node.integer("layout", 0))
    x = _input(context, node, FIRST if in_front else Layout(1))
    _refuse_options(context, node, shape_of(x)[0])
    made = [_direction(context, node, x, index) for index in range(len(_directions(node)))]
    results = (_all, _last, _memory)
    return [
        placed(result(made), FIRST if in_front else Layout(2 if result is _all else 1)) if output else None
        for output, result in zip(node.outputs, results, strict=False)
    ]


# What is refused


def _input(context: Context, node: OnnxNode, expected: Layout) -> Value:
    """Return the sequence [steps, features], whose batch must be where the node takes it to be; raises Refusal."""
    item = context.item(node, 0)
    value, layout = (item.value, item.layout) if isinstance(item, Placed) else (context.tensor(node), FIRST)
    shape = shape_of(value)
    if len(shape) != 2:
        raise Refusal("LIP102", f"{node.op_type} needs sequences [steps, features], not {list(shape)}")
    if layout != expected:
        message = (
            f"{node.op_type} takes axis {expected.axis} for the batch, which it is not: it would mix examples"
        )
        raise Refusal("LIP108", message, "bring the steps to the front, or export it with batch_first=True")
    if shape[0] > MOST_STEPS:
        message = f"{node.op_type} over {shape[0]} steps is not yet supported: it would be unrolled"
        raise Refusal("LIP110", message, f"use at most {MOST_STEPS} steps")
    return value


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
        return self.context.builder.add(op, attributes, operands, name=name)

    def layer(self, role: Role, x: Value, name: str) -> Value:
        """Add a matrix, or what is added to the state; equal roles have the same parameters."""
        tensors = list(self.weights.layers[role].items())
        size = tensors[0][1].array.shape
        op, attributes = (BIAS, BiasShape(tuple(size))) if role == "shift" else (DENSE, Dense(size[0]))
        return self.context.parameters.add(op, attributes, x, tensors, name)


def _direction(context: Context, node: OnnxNode, x: Value, index: int) -> _Direction:
    steps, features = shape_of(x)
    backward, count = _directions(node)[index], len(_directions(node))
    own = weights(context, node, features, index, count)
    maker = _Maker(context, own)
    net = Unrolling(maker.node, maker.layer, node.name + ("_reverse" if index else ""), own.width)
    order = range(steps)[::-1] if backward else range(steps)
    return _Direction(net, unrolled(net, own.cell, x, order), backward)


# Results


def _all(made: Sequence[_Direction]) -> Value:
    """[steps, directions, width]."""
    rows = []
    for one in made:
        outputs = [state.output for state in one.states]
        steps = one.net.joined("_steps", outputs[::-1] if one.backward else outputs)
        rows.append(one.net.reshaped("_direction", steps, (len(outputs), 1, one.net.width)))
    return made[0].net.joined("_all", rows, axis=1)


def _last(made: Sequence[_Direction]) -> Value:
    """[directions, width]."""
    return made[0].net.joined("_last", [one.states[-1].output for one in made])


def _memory(made: Sequence[_Direction]) -> Value:
    """[directions, width]."""
    return made[0].net.joined("_memory", [one.states[-1].memory for one in made])


IMPORTERS: Mapping[str, Importer] = {
    "GRU": recurrent,
    "LSTM": recurrent,
    "RNN": recurrent,
}
