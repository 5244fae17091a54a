"""A batch axis in front of a model that has none: every operator is told that its axes stand one further on.

Most cases of single operators treat all axes of their input alike. Read with axis 0 as the batch, an operator that
acts on axis 0 mixes examples, and is rightly refused; with an axis of its own for the batch, the same operator can
be compared. The result is the same model for each example, which is all that the comparison needs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.onnx_backend.cases import Array


class NotPresentable(Exception):  # noqa: N818
    """No batch axis can be put in front of this model by changing axes."""


# Operators of single entries, with broadcasting from the right where there are several operands.
ENTRYWISE = frozenset(
    (
        *(
            "Abs",
            "Acos",
            "Acosh",
            "Add",
            "Asin",
            "Asinh",
            "Atan",
            "Atanh",
            "Cast",
            "Ceil",
            "Celu",
            "Clip",
        ),
        *("Cos", "Cosh", "Div", "Dropout", "Elu", "Equal", "Erf", "Exp", "Floor", "Gelu", "Greater"),
        *("GreaterOrEqual", "HardSigmoid", "HardSwish", "Identity", "IsInf", "IsNaN", "LeakyRelu", "Less"),
        *("LessOrEqual", "Log", "Max", "Mean", "Min", "Mish", "Mod", "Mul", "Neg", "Not", "PRelu", "Pow"),
        *(
            "Reciprocal",
            "Relu",
            "Round",
            "Selu",
            "Shrink",
            "Sigmoid",
            "Sign",
            "Sin",
            "Sinh",
            "Softplus",
            "Softsign",
        ),
        *("Sqrt", "Sub", "Sum", "Swish", "Tan", "Tanh", "ThresholdedRelu", "Where", "And", "Or", "Xor", "MatMul"),
    )
)
# Operators with an attribute `axis`, and what it is by default before and from operator set 13 on.
ALONG = {
    **dict.fromkeys(("Softmax", "LogSoftmax", "Hardmax"), (1, -1)),
    **dict.fromkeys(("LayerNormalization", "RMSNormalization", "TopK", "LpNormalization"), (-1, -1)),
    **dict.fromkeys(("Split", "Gather", "ArgMax", "ArgMin"), (0, 0)),
}
REDUCTIONS = frozenset(f"Reduce{kind}" for kind in (
    *("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare"),
))  # fmt: skip
# Operators of the last axes, whatever stands before them, and one that looks at kinds only.
LAST = frozenset(("Trilu", "Det", "CastLike"))


@dataclass(slots=True)
class Batched:
    """Writes the nodes of a model with a batch axis. shapes: of tensors as they were. depends: on the example."""

    version: int
    shapes: Mapping[str, tuple[int, ...]]
    depends: set[str]
    constants: Mapping[str, Array]
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    initializers: list[onnx.TensorProto] = field(default_factory=list)

    def write(self, node: onnx.NodeProto) -> None:
        """Add one node, changed if it sees the example; raises NotPresentable."""
        looked_at = node.input[:1] if node.op_type == "CastLike" else node.input
        if not any(name in self.depends for name in looked_at):
            self.nodes.append(node)
            return
        if node.domain not in ("", "ai.onnx") or any(attribute.HasField("g") for attribute in node.attribute):
            raise NotPresentable(node.op_type)
        changed = onnx.NodeProto()
        changed.CopyFrom(node)
        self._rule(node.op_type)(self, changed)
        if node.op_type != "Shape":
            self.depends |= {name for name in node.output if name}
            self.nodes.append(changed)

    def _rule(self, op_type: str) -> Callable[[Batched, onnx.NodeProto], None]:
        if op_type in ENTRYWISE:
            return _entrywise
        if op_type in ALONG:
            return _along
        if op_type in REDUCTIONS:
            return _axes
        if op_type in LAST:
            return _unchanged
        if op_type not in _RULES:
            raise NotPresentable(op_type)
        return _RULES[op_type]

    # Pieces

    def rank(self, name: str) -> int:
        """Return the number of axes that a tensor has without the batch."""
        return len(self.shapes[name])

    def constant(self, *values: int) -> str:
        """Store a vector of integers."""
        name = f"of_batch_{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(np.array(values, np.int64), name))
        return name

    def add(self, op_type: str, inputs: Sequence[str], **attributes: Any) -> str:
        """Add a node of one output, whose name is returned."""
        name = f"with_batch_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, list(inputs), [name], **attributes))
        return name

    def unsqueezed(self, name: str, axes: Sequence[int]) -> str:
        """Make axes of size 1."""
        if self.version < 13:
            return self.add("Unsqueeze", [name], axes=list(axes))
        return self.add("Unsqueeze", [name, self.constant(*axes)])

    def joined(self, front: int, name: str) -> str:
        """Put a number in front of a vector of integers."""
        return self.add("Concat", [self.constant(front), name], axis=0)

    def integers(self, name: str) -> list[int]:
        """Return a stored vector of integers; raises NotPresentable for one that is computed."""
        if name not in self.constants:
            raise NotPresentable("computed axes")
        return [int(entry) for entry in self.constants[name].reshape(-1)]


def shifted(axis: int) -> int:
    """Return an axis with the batch in front; negative ones count from behind."""
    return axis + 1 if axis >= 0 else axis


def set_attribute(node: onnx.NodeProto, name: str, value: Any) -> None:
    """Give a node an attribute, in the place of what it had."""
    kept = [attribute for attribute in node.attribute if attribute.name != name]
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute(name, value)])


def attribute(node: onnx.NodeProto, name: str, default: Any = None) -> Any:
    """Return the value of an attribute."""
    return next((helper.get_attribute_value(entry) for entry in node.attribute if entry.name == name), default)


def _unchanged(self: Batched, node: onnx.NodeProto) -> None:
    """Leave it as it is."""


def _entrywise(self: Batched, node: onnx.NodeProto) -> None:
    """Bring operands with fewer axes to the largest rank, behind the batch axis."""
    ranks = [self.rank(name) for name in node.input if name]
    most = max(ranks)
    if node.op_type == "MatMul" and min(ranks) < 2:
        raise NotPresentable("MatMul of a vector")
    for index, name in enumerate(node.input):
        missing = most - self.rank(name) if name else 0
        if name in self.depends and missing:
            node.input[index] = self.unsqueezed(name, range(1, 1 + missing))


def _along(self: Batched, node: onnx.NodeProto) -> None:
    if node.op_type == "Gather" and node.input[0] not in self.depends:
        return  # rows of a table: the batch axis of the tokens stays in front
    default = ALONG[node.op_type][self.version >= 13]
    set_attribute(node, "axis", shifted(attribute(node, "axis", default)))


def _axes(self: Batched, node: onnx.NodeProto) -> None:
    """Shift the axes of a reduction, an attribute or an operand; all of them are named where none was."""
    rank, given = self.rank(node.input[0]), attribute(node, "axes")
    as_operand = len(node.input) > 1 and node.input[1]
    axes = self.integers(node.input[1]) if as_operand else list(given or ())
    if not axes and attribute(node, "noop_with_empty_axes", 0):
        return
    new = [shifted(axis) for axis in axes] or list(range(1, rank + 1))
    if self.version >= (13 if node.op_type == "ReduceSum" else 18):
        del node.input[1:]
        node.input.append(self.constant(*new))
    else:
        set_attribute(node, "axes", new)


def _made_axes(self: Batched, node: onnx.NodeProto) -> None:
    """Squeeze and Unsqueeze."""
    as_operand = len(node.input) > 1
    axes = self.integers(node.input[1]) if as_operand else attribute(node, "axes")
    if axes is None:
        raise NotPresentable("Squeeze without axes")
    new = [shifted(axis) for axis in axes]
    if as_operand:
        node.input[1] = self.constant(*new)
    else:
        set_attribute(node, "axes", new)


def _transpose(self: Batched, node: onnx.NodeProto) -> None:
    order = attribute(node, "perm", list(reversed(range(self.rank(node.input[0])))))
    set_attribute(node, "perm", [0, *(axis + 1 for axis in order)])


def _reshape(self: Batched, node: onnx.NodeProto) -> None:
    """A 0 in front keeps the batch."""
    if len(node.input) < 2 or node.input[1] in self.depends:
        raise NotPresentable("Reshape")
    if attribute(node, "allowzero", 0):
        if 0 in self.integers(node.input[1]):
            raise NotPresentable("a size of 0")
        set_attribute(node, "allowzero", 0)
    node.input[1] = self.joined(0, node.input[1])


def _flatten(self: Batched, node: onnx.NodeProto) -> None:
    """A reshape to two axes behind the batch."""
    shape, axis = self.shapes[node.input[0]], attribute(node, "axis", 1)
    sides = [prod(part) for part in (shape[:axis], shape[axis:])]
    node.op_type = "Reshape"
    node.input.append(self.constant(0, *sides))
    del node.attribute[:]


def _copies(self: Batched, node: onnx.NodeProto) -> None:
    """Expand and Tile: once along the batch."""
    if len(node.input) != 2 or self.rank(node.input[1]) != 1:
        raise NotPresentable(node.op_type)
    count = len(self.constants[node.input[1]]) if node.input[1] in self.constants else None
    rank = self.rank(node.input[0])
    if count is None or count > rank:
        raise NotPresentable("a computed shape, or one of more axes")
    if count == rank:
        node.input[1] = self.joined(1, node.input[1])


def _pad(self: Batched, node: onnx.NodeProto) -> None:
    rank = self.rank(node.input[0])
    if len(node.input) > 3 and node.input[3]:
        node.input[3] = self.constant(*(shifted(axis) for axis in self.integers(node.input[3])))
    elif len(node.input) > 1:
        pads = self.integers(node.input[1])
        node.input[1] = self.constant(0, *pads[:rank], 0, *pads[rank:])
    else:
        pads = list(attribute(node, "pads"))
        set_attribute(node, "pads", [0, *pads[:rank], 0, *pads[rank:]])


def _slice(self: Batched, node: onnx.NodeProto) -> None:
    if len(node.input) == 1:
        starts = attribute(node, "starts")
        axes = attribute(node, "axes", list(range(len(starts))))
        set_attribute(node, "axes", [shifted(axis) for axis in axes])
        return
    starts = self.integers(node.input[1])
    named = self.integers(node.input[3]) if len(node.input) > 3 and node.input[3] else range(len(starts))
    rest = list(node.input[4:])
    del node.input[3:]
    node.input.extend([self.constant(*(shifted(axis) for axis in named)), *rest])


def _concat(self: Batched, node: onnx.NodeProto) -> None:
    """Copy constants for each example, as exporters do."""
    axis = attribute(node, "axis", 1)
    set_attribute(node, "axis", shifted(axis))
    tensor = next(name for name in node.input if name in self.depends)
    for index, name in enumerate(node.input):
        if name not in self.depends:
            batch = self.add("Gather", [self.add("Shape", [tensor]), self.constant(0)], axis=0)
            sizes = self.add("Concat", [batch, self.add("Shape", [name])], axis=0)
            node.input[index] = self.add("Expand", [name, sizes])


def _shape(self: Batched, node: onnx.NodeProto) -> None:
    """The sizes behind the batch; this node itself is not written."""
    if node.attribute:
        raise NotPresentable("some of a shape")
    own = self.constant(*range(1, self.rank(node.input[0]) + 1))
    self.nodes.append(
        helper.make_node("Gather", [self.add("Shape", [node.input[0]]), own], list(node.output), axis=0)
    )


def _cumulative(self: Batched, node: onnx.NodeProto) -> None:
    name = node.input[1]
    values = [shifted(axis) for axis in self.integers(name)]
    node.input[1] = (
        self.add("Squeeze", [self.constant(*values)]) if self.rank(name) == 0 else self.constant(*values)
    )


def _einsum(self: Batched, node: onnx.NodeProto) -> None:
    """A letter for the batch in front of the terms that have it."""
    equation = attribute(node, "equation").decode().replace(" ", "")
    left, arrow, right = equation.partition("->")
    if not arrow:
        letters = left.replace(",", "").replace("...", "")
        right = ("..." if "..." in left else "") + "".join(sorted({c for c in letters if letters.count(c) == 1}))
    free = next(letter for letter in "ZYX" if letter not in equation)
    terms = [
        free + term if name in self.depends else term
        for term, name in zip(left.split(","), node.input, strict=True)
    ]
    set_attribute(node, "equation", f"{','.join(terms)}->{free}{right}")


_RULES: Mapping[str, Callable[[Batched, onnx.NodeProto], None]] = {
    "Concat": _concat,
    "CumProd": _cumulative,
    "CumSum": _cumulative,
    "Einsum": _einsum,
    "Expand": _copies,
    "Flatten": _flatten,
    "Pad": _pad,
    "Reshape": _reshape,
    "Shape": _shape,
    "Slice": _slice,
    "Squeeze": _made_axes,
    "Tile": _copies,
    "Transpose": _transpose,
    "Unsqueeze": _made_axes,
}


def intermediates(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Return every tensor of a model at top level, by the reference implementation; raises NotPresentable."""
    from onnx.reference import ReferenceEvaluator

    names = [name for node in model.graph.node for name in node.output if name]
    everything = onnx.ModelProto()
    everything.CopyFrom(model)
    del everything.graph.output[:]
    everything.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in names)
    try:
        with np.errstate(all="ignore"):
            found: Any = ReferenceEvaluator(everything).run(None, dict(feeds))
    except Exception as error:
        raise NotPresentable(f"the reference implementation fails: {error}") from None
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    computed = {name: value for name, value in zip(names, found, strict=True) if isinstance(value, np.ndarray)}
    return {**stored, **feeds, **computed}


def in_front(model: onnx.ModelProto, feeds: Mapping[str, Array], examples: Sequence[str]) -> onnx.ModelProto:
    """Return the model with a batch axis, of open size, in front of these inputs; raises NotPresentable."""
    known = intermediates(model, feeds)
    shapes = {name: array.shape for name, array in known.items()}
    stored = {tensor.name for tensor in model.graph.initializer}
    fixed = stored | {
        name for node in model.graph.node if node.op_type == "Constant" for name in node.output if name
    }
    constants = {name: known[name] for name in fixed if name in known}
    version = next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), 0)
    writer = Batched(version, shapes, set(examples), constants)
    for node in model.graph.node:
        writer.write(node)
    made = onnx.ModelProto()
    made.CopyFrom(model)
    del made.graph.node[:], made.graph.value_info[:]
    made.graph.node.extend(writer.nodes)
    made.graph.initializer.extend(writer.initializers)
    for value in made.graph.input:
        if value.name in examples:
            kind = value.type.tensor_type.elem_type
            sizes = ["batch", *feeds[value.name].shape]
            value.CopyFrom(helper.make_tensor_value_info(value.name, kind, sizes))
    for index, value in enumerate(made.graph.output):
        if value.name not in writer.depends:
            raise NotPresentable("an output that no example changes")
        made.graph.output[index].CopyFrom(helper.make_tensor_value_info(value.name, TensorProto.UNDEFINED, None))
    return made
