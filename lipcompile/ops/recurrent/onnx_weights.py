"""The weights of RNN, GRU and LSTM: gates in torch's order, a parameter for each matrix that a cell applies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lipcompile.core.diagnostics import Refusal
from lipcompile.frontends.onnx.context import Context
from lipcompile.frontends.onnx.node import OnnxNode
from lipcompile.frontends.onnx.values import Known, floats
from lipcompile.ops.recurrent.cells import CELLS, GRU_RESET_FIRST, GRU_WITH_SHIFT, Cell, Role

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

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
        import numpy as np

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
        import numpy as np

        order = _GATES[self.node.op_type]
        return np.concatenate([stacked[gate * width : (gate + 1) * width] for gate in order])
