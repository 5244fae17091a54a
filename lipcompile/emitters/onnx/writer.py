"""An ONNX graph under construction: nodes with fresh names, constants, stored weights.

The batch is axis 0 of every tensor: axis i of an example is axis i + 1 here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from lipcompile.core.graph import Node
from lipcompile.core.record import Shape
from lipcompile.diagnostics import Refusal
from lipcompile.numbers import Scalar

if TYPE_CHECKING:
    from onnx import NodeProto, TensorProto

Array = NDArray[Any]
Rounding = Literal["nearest", "below", "above"]
# The output of a node, from the names of its operands.
Emit = Callable[["Writer", Node, Sequence[str]], str]


def float32(value: Scalar, rounding: Rounding = "nearest") -> np.float32:
    """Return an exact number in float32; raises `Refusal` for one that is open."""
    if not isinstance(value, Fraction):
        raise Refusal(
            "LIP017",
            "ONNX cannot represent parameters without a value",
            "give each parameter a value: --set name=value",
        )
    found: np.float32 = np.float32(float(value))
    exact = Fraction(float(found))
    if rounding == "nearest" or exact == value or (exact < value) == (rounding == "below"):
        return found
    return np.float32(np.nextafter(found, np.float32(-np.inf if rounding == "below" else np.inf)))


def window_attributes(node: Node, padding: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """Return the attributes of an operator with the windows of a convolution or a pool, padded so on each axis."""
    return {
        "kernel_shape": list(node.attributes.kernel),
        "strides": list(node.attributes.stride),
        "pads": [low for low, _ in padding] + [high for _, high in padding],
    }


@dataclass(slots=True)
class Writer:
    """Collects what a graph consists of. `weights` are the values of its parameters.

    training: whether what acts in training alone, dropout, does so in the file. standing_for: tensors by the names
    of the values that nodes read in their place.
    """

    weights: Mapping[str, Array]
    training: bool = False
    nodes: list[NodeProto] = field(default_factory=list)
    stored: dict[str, TensorProto] = field(default_factory=dict)
    standing_for: dict[str, str] = field(default_factory=dict)
    _node: str = ""
    _count: int = 0

    def write(self, node: Node, emit: Emit) -> None:
        """Emit a node of the graph: the operator that ends it makes the tensor that is called like it."""
        self.begin(node.name)
        operands = [self.standing_for.get(name, name) for name in node.inputs]
        made = emit(self, node, operands)
        last = self.nodes[-1] if self.nodes else None
        if last is None or made in operands or list(last.output) != [made]:
            self.op("Identity", made)
            last = self.nodes[-1]
        last.output[0] = node.name
        last.name = node.name

    def begin(self, name: str) -> None:
        """Name what is added from here on after a value of the graph."""
        self._node, self._count = name, 0

    # Operators

    def op(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        """Add an operator and return its output."""
        from onnx import helper  # here, because writers of Python stand beside those that need it

        self._count += 1
        name = f"{self._node}.{self._count}"
        self.nodes.append(helper.make_node(op_type, inputs, [name], name=name, **attributes))
        return name

    def reshape(self, x: str, shape: Shape) -> str:
        """Give the example another shape."""
        return self.op("Reshape", x, self.integers(0, *shape))

    def reduce(self, op_type: str, x: str, axes: Sequence[int], *, keep: bool) -> str:
        """Reduce axes of the example. For the runtimes, no axes are all of them, the batch among them."""
        if not axes:
            return self.op("Abs" if op_type == "ReduceL2" else "Identity", x)
        return self.op(op_type, x, self.integers(*(axis + 1 for axis in axes)), keepdims=int(keep))

    def times(self, x: str, value: Scalar, rounding: Rounding = "nearest") -> str:
        """Multiply by a number."""
        return x if value == 1 else self.op("Mul", x, self.number(value, rounding))

    def part(self, x: str, axis: int, start: int, stop: int) -> str:
        """Take entries of an axis of the example."""
        bounds = (self.integers(start), self.integers(stop), self.integers(axis + 1))
        return self.op("Slice", x, *bounds)

    # Constants

    def integers(self, *values: int) -> str:
        """Return a constant vector of integers."""
        return self.constant(np.array(values, dtype=np.int64))

    def number(self, value: Scalar, rounding: Rounding = "nearest") -> str:
        """Return a constant number: not a stored weight, which training would change."""
        return self.constant(np.array(float32(value, rounding)))

    def constant(self, array: Array) -> str:
        """Return a constant tensor."""
        from onnx import numpy_helper

        value = numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape))
        return self.op("Constant", value=value)

    def weight(self, node: Node, role: str) -> str:
        """Return a stored parameter of a node."""
        from onnx import numpy_helper

        name = node.parameters[role]
        if name not in self.stored:
            array = np.ascontiguousarray(self.weights[name], dtype=np.float32)
            self.stored[name] = numpy_helper.from_array(array.reshape(self.weights[name].shape), name)
        return name
