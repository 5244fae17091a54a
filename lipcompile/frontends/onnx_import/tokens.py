"""Constants put beside a tensor of the example: class tokens, registers, prompts."""

from __future__ import annotations

from lipcompile.diagnostics import Refusal
from lipcompile.frontends.onnx_import.context import Context, shape_of
from lipcompile.frontends.onnx_import.node import OnnxNode
from lipcompile.frontends.onnx_import.values import Known
from lipcompile.graph import Value
from lipcompile.ops.class_token import CLASS_TOKEN, ClassToken


def beside(
    context: Context,
    node: OnnxNode,
    operand: Value,
    known: Known,
    axis: int = 0,
    *,
    last: bool = False,
    suffix: str = "",
) -> Value:
    """Put a constant before a tensor, or behind it, along an axis of the example. Both are without the batch axis.

    A constant that is stored, or written into the graph, is trained; what the file computes of nothing (zeros of
    some shape) is not. Raises Refusal for shapes that do not fit.
    """
    example, shape = shape_of(operand), tuple(known.array.shape)
    fits = len(shape) == len(example) > axis and all(
        own == other for at, (own, other) in enumerate(zip(shape, example, strict=True)) if at != axis
    )
    if not fits or shape[axis] < 1:
        message = f"a constant of shape {list(shape)} does not stand beside {list(example)} along axis {axis}"
        raise Refusal("LIP102", message)
    attributes = ClassToken(shape[axis], axis, last)
    tokens = [("tokens", known)]
    return context.parameters.add(
        CLASS_TOKEN, attributes, operand, tokens, node.name + suffix, frozen=not known.sources
    )
