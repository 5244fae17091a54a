"""How functions of Python are written: as Python of torch; there are no operators of ONNX for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

from lipcompile.core.graph import Node
from lipcompile.diagnostics import Refusal
from lipcompile.emitters.onnx.writer import Emit, Writer
from lipcompile.emitters.torch.pieces import Expression

EXPRESSIONS: Mapping[str, Expression] = {
    "zeros": lambda node, x: f"functional.zeros({x[0]}, {node.attributes.size})",
    "own_network": lambda node, x: (
        f"functional.own_network(self.own_network, self.training, {node.attributes.size}, {', '.join(x)})"
    ),
}

# As operators of ONNX


def _zeros(writer: Writer, node: Node, x: Sequence[str]) -> str:
    """Zeros in the batch of the operand, which may be tokens."""
    batch = writer.op("Slice", writer.op("Shape", x[0]), writer.integers(0), writer.integers(1))
    shape = writer.op("Concat", batch, writer.integers(*node.shape), axis=0) if node.shape else batch
    return writer.op("Expand", writer.number(Fraction(0)), shape)


def _own(writer: Writer, node: Node, x: Sequence[str]) -> str:
    message = "a network of Python that no rule covers has no operators of ONNX that are known"
    help_line = (
        "load the weights into your module, by lipcompile.load_trained, and export that with torch.onnx.export"
    )
    raise Refusal("LIP017", message, help_line)


EMITTERS: Mapping[str, Emit] = {"zeros": _zeros, "own_network": _own}
