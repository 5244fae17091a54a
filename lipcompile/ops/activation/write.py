"""How activations are written: as Python of torch, and as operators of ONNX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from fractions import Fraction

from lipcompile.core.graph import Node
from lipcompile.core.record import Shape
from lipcompile.emitters.onnx.writer import Emit, Writer, float32
from lipcompile.emitters.torch.pieces import Expression, axis_of, nearest

# As Python


@dataclass(frozen=True, slots=True)
class Written:
    """How one activation is written.

    torch: the expression, where {x} is the operand, and other names are numbers of the node, as nearest doubles.
    operator: the operator of ONNX, empty where none is the same function. numbers: its attributes, each with what
    the op calls it, and its value where a file gives none. version: the operator set that last changed the
    operator, which the importer follows.
    """

    torch: str
    operator: str = ""
    version: int = 0
    numbers: Mapping[str, tuple[str, Fraction]] = field(default_factory=dict)

    def __call__(self, node: Node, operands: Sequence[str]) -> str:
        """Return the expression of a node."""
        given = {one.name: nearest(getattr(node.attributes, one.name)) for one in fields(node.attributes)}
        return self.torch.format(x=operands[0], **given)


_ALPHA = {"alpha": ("alpha", Fraction(1))}
_THRESHOLD = {"lambd": ("threshold", Fraction(1, 2))}
_LINE = {"alpha": ("slope", Fraction(1, 5)), "beta": ("offset", Fraction(1, 2))}
WRITTEN: Mapping[str, Written] = {
    "relu": Written("F.relu({x})", "Relu", 14),
    "leaky_relu": Written("F.leaky_relu({x}, {slope})", "LeakyRelu", 16, {"alpha": ("slope", Fraction(1, 100))}),
    "tanh": Written("torch.tanh({x})", "Tanh", 13),
    "sin": Written("torch.sin({x})", "Sin", 22),
    "cos": Written("torch.cos({x})", "Cos", 22),
    "atan": Written("torch.atan({x})", "Atan", 22),
    "asinh": Written("torch.asinh({x})", "Asinh", 22),
    "erf": Written("torch.erf({x})", "Erf", 13),
    "sigmoid": Written("torch.sigmoid({x})", "Sigmoid", 13),
    "softplus": Written("F.softplus({x})", "Softplus", 22),
    "abs": Written("torch.abs({x})", "Abs", 13),
    "elu": Written("F.elu({x}, {alpha})", "Elu", 22, _ALPHA),
    "celu": Written("F.celu({x}, {alpha})", "Celu", 28, _ALPHA),
    "selu": Written("F.selu({x})", "Selu", 22),
    "silu": Written("F.silu({x})"),
    # F.mish has no finite second derivative far from 0, which audits differentiate through.
    "mish": Written("{x} * torch.tanh(F.softplus({x}))", "Mish", 22),
    "hard_swish": Written("F.hardswish({x})", "HardSwish", 22),
    "hard_sigmoid": Written("torch.clamp({slope} * {x} + {offset}, 0, 1)", "HardSigmoid", 22, _LINE),
    "softsign": Written("F.softsign({x})", "Softsign", 22),
    "hardtanh": Written("torch.clamp({x}, {low}, {high})"),
    "sign": Written("torch.sign({x})", "Sign", 13),
    "hard_shrink": Written("F.hardshrink({x}, {threshold})", "Shrink", 9, _THRESHOLD),
}

_TANH = {"none": "", "tanh": ', approximate="tanh"'}
EXPRESSIONS: Mapping[str, Expression] = {
    **WRITTEN,
    "gelu": lambda node, x: f"F.gelu({x[0]}{_TANH[node.attributes.approximate]})",
    "groupsort": lambda node, x: f"functional.group_sort({x[0]}, {node.attributes.size}, axis={axis_of(node)})",
    "fullsort": lambda node, x: f"functional.full_sort({x[0]}, axis={axis_of(node)})",
}

# As operators of ONNX


def _operator(written: Written) -> Emit:
    """Return the emitter of an operator of one operand, whose attributes are numbers of the node."""

    def emit(writer: Writer, node: Node, x: Sequence[str]) -> str:
        values = {name: getattr(node.attributes, own) for name, (own, _) in written.numbers.items()}
        given = {name: float(float32(value)) for name, value in values.items()}
        return writer.op(written.operator, x[0], **given)

    return emit


# Sorting


def grouped(shape: Shape, axis: int, size: int) -> Shape:
    """Return the shape of an example in which an axis is split into groups; `axis` counts the batch."""
    return (*shape[: axis - 1], shape[axis - 1] // size, size, *shape[axis:])


def _group_sort(writer: Writer, node: Node, x: Sequence[str]) -> str:
    """Sort pairs by their extremes, larger groups by TopK."""
    size, axis, shape = node.attributes.size, axis_of(node) + 1, node.shape
    if size == 1:
        return writer.op("Identity", x[0])
    groups = writer.reshape(x[0], grouped(shape, axis, size))
    if size > 2:
        return writer.reshape(_sorted(writer, groups, axis + 1, size), shape)
    ends = [writer.reduce(op_type, groups, (axis,), keep=True) for op_type in ("ReduceMin", "ReduceMax")]
    return writer.reshape(writer.op("Concat", *ends, axis=axis + 1), shape)


def _full_sort(writer: Writer, node: Node, x: Sequence[str]) -> str:
    axis = axis_of(node) + 1
    return writer.op("Identity", _sorted(writer, x[0], axis, node.shape[axis - 1]))


def _sorted(writer: Writer, x: str, axis: int, size: int) -> str:
    """Sort an axis, smallest first."""
    values = writer.op("TopK", x, writer.integers(size), axis=axis, largest=0, sorted=1)
    writer.nodes[-1].output.append(f"{values}.places")
    return values


EMITTERS: Mapping[str, Emit] = {
    **{name: _operator(written) for name, written in WRITTEN.items() if written.operator},
    "gelu": lambda writer, node, x: writer.op("Gelu", x[0], approximate=node.attributes.approximate),
    "silu": lambda writer, node, x: writer.op("Mul", x[0], writer.op("Sigmoid", x[0])),
    "hardtanh": lambda writer, node, x: writer.op(
        "Clip", x[0], writer.number(node.attributes.low), writer.number(node.attributes.high)
    ),
    "groupsort": _group_sort,
    "fullsort": _full_sort,
}
