"""How functions of entries are written: as Python of torch, and as operators of ONNX."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction

from lipcompile.core.graph import Node
from lipcompile.emitters.onnx.writer import Emit, Writer
from lipcompile.emitters.torch.pieces import Expression, nearest
from lipcompile.ops.pointwise.rules import TRUTHS


def _call(node: Node, operands: Sequence[str]) -> str:
    attributes = node.attributes
    number = "" if attributes.number == 0 else f", number={nearest(attributes.number)}"
    return f"functional.pointwise({attributes.function!r}, {', '.join(operands)}{number})"


EXPRESSIONS: Mapping[str, Expression] = {
    "pointwise": _call,
    "noise": lambda node, x: f"functional.noise({x[0]}, self.training)",
}

# As operators of ONNX

_COMPARISONS = {"equal": "Equal", "greater": "Greater", "at_least": "GreaterOrEqual"}
_NAMED = {
    "is_nan": "IsNaN",
    "is_infinite": "IsInf",
    "floor": "Floor",
    "ceil": "Ceil",
    "round": "Round",
    "exp": "Exp",
    "log": "Log",
    "quotient": "Div",
}


def _truncated(writer: Writer, x: str) -> str:
    return writer.op("Mul", writer.op("Sign", x), writer.op("Floor", writer.op("Abs", x)))


def _nodes(writer: Writer, node: Node, x: Sequence[str]) -> str:
    function, number = node.attributes.function, node.attributes.number
    op = writer.op
    special: Mapping[str, Callable[[], str]] = {
        "constant": lambda: op("Expand", writer.number(number), op("Shape", x[0])),
        "power": lambda: op("Pow", x[0], writer.number(number)),
        "select": lambda: op("Where", op("Not", op("Equal", x[0], writer.number(Fraction(0)))), x[1], x[2]),
        "truncated": lambda: _truncated(writer, x[0]),
    }
    if function in special:
        return special[function]()
    operands = [*x, writer.number(number)] if function in _COMPARISONS else x
    made = op(_COMPARISONS.get(function) or _NAMED[function], *operands)
    return op("Cast", made, to=1) if function in TRUTHS else made


def _noise(writer: Writer, node: Node, x: Sequence[str]) -> str:
    """Normal numbers in a file for training, else zeros."""
    if writer.training:
        return writer.op("RandomNormalLike", x[0])
    return writer.op("Expand", writer.number(Fraction(0)), writer.op("Shape", x[0]))


EMITTERS: Mapping[str, Emit] = {"pointwise": _nodes, "noise": _noise}
