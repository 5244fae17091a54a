"""How whitened features are written: as Python of torch, and as operators of ONNX.

Their constants are those of a module, which the compiler does not compute.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from lipcompile.core.graph import Node
from lipcompile.core.record import Shape
from lipcompile.diagnostics import Refusal
from lipcompile.emitters.onnx.writer import Emit, Writer
from lipcompile.emitters.torch.pieces import Layer, Parameters, above, nearest
from lipcompile.ops.scattering.rules import Scattering2d, scattering_shape
from lipcompile.ops.scattering.write import coefficients, mirrored

# As Python


def _scattering(node: Node, parameters: Parameters) -> list[str]:
    own = node.attributes
    sizes = f"{node.site.inputs[0]}", f"{own.scales}", f"{own.angles}"
    numbers = f"floor={above(own.floor)}", f"power={nearest(own.power)}"
    return [*sizes, f"source='{own.source}'", *numbers, f"channels={own.channels}", f"images={own.images}"]


def _patches(node: Node, parameters: Parameters) -> list[str]:
    own = node.attributes
    numbers = f"floor={above(own.floor)}", f"power={nearest(own.power)}"
    return [f"{node.site.inputs[0]}", f"{own.size}", f"{own.stride}", *numbers, f"images={own.images}"]


HOLDERS: Mapping[str, Layer] = {
    "whitened_scattering2d": Layer(lambda _: "WhitenedScattering2d", _scattering),
    "mirrored_scattering2d": Layer(lambda _: "MirroredScattering2d", _scattering),
    "whitened_patches": Layer(lambda _: "WhitenedPatches", _patches),
}

# As operators of ONNX

_SHORTEST = 1e-6  # what shorter features are divided by


def _whitened(writer: Writer, node: Node, entries: str) -> str:
    """W(e - m) at every position of entries [B, E, positions], over the length of the whole."""
    mean, matrix = (_constant(writer, node, name) for name in ("mean", "matrix"))
    found = writer.op("MatMul", matrix, writer.op("Sub", entries, mean))
    length = writer.reduce("ReduceL2", found, (0, 1), keep=True)
    least = writer.constant(np.array(_SHORTEST, dtype=np.float32))
    return writer.reshape(writer.op("Div", found, writer.op("Max", length, least)), node.shape)


def _constant(writer: Writer, node: Node, name: str) -> str:
    if f"{node.name}.{name}" not in writer.weights:
        message = f"the constants of `{node.op.name}` are only in the module"
        raise Refusal("LIP017", message, "use lipcompile export on the module")
    return writer.constant(writer.weights[f"{node.name}.{name}"].astype(np.float32))


def _logarithms(writer: Writer, node: Node, x: str, shape: Shape, *, centred: bool) -> str:
    """Return those of scattering coefficients, as examples of this shape."""
    own, example = node.attributes, node.site.inputs[0]
    found = coefficients(writer, Scattering2d(own.scales, own.angles), x, example, shape, centred=centred)
    kept = writer.op("Max", found, writer.constant(np.array(0, dtype=np.float32)))
    return writer.op("Log", writer.op("Add", kept, writer.number(own.floor, "above")))


def _scattering_nodes(writer: Writer, node: Node, x: Sequence[str]) -> str:
    bank = Scattering2d(node.attributes.scales, node.attributes.angles)
    shape = (node.site.inputs[0][0] * bank.coefficients, prod(node.shape[1:]))
    return _whitened(writer, node, _logarithms(writer, node, x[0], shape, centred=False))


def _mirrored_nodes(writer: Writer, node: Node, x: Sequence[str]) -> str:
    """The entries of an image and of its mirror image, added up, in the left half."""
    bank, example = Scattering2d(node.attributes.scales, node.attributes.angles), node.site.inputs[0]
    channels, height, width = scattering_shape(bank, (example,))
    entries = _logarithms(writer, node, x[0], (channels, height, width), centred=True)
    order = np.add.outer(np.arange(example[0]) * bank.coefficients, mirrored(bank)).ravel()
    turned = writer.op("Gather", entries, writer.integers(*order), axis=1)
    other = writer.op("Gather", turned, writer.integers(*reversed(range(width))), axis=3)
    half = writer.part(writer.op("Add", entries, other), 2, 0, node.shape[2])
    return _whitened(writer, node, writer.reshape(half, (channels, prod(node.shape[1:]))))


def _patches_nodes(writer: Writer, node: Node, x: Sequence[str]) -> str:
    own, entries = node.attributes, node.shape[0]
    kernel = np.eye(entries, dtype=np.float32).reshape(entries, node.site.inputs[0][0], own.size, own.size)
    laid_out = writer.op("Conv", x[0], writer.constant(kernel), strides=[own.stride, own.stride])
    flat = writer.reshape(laid_out, (entries, prod(node.shape[1:])))
    centred = writer.op("Sub", flat, writer.reduce("ReduceMean", flat, (0,), keep=True))
    variance = writer.reduce("ReduceMean", writer.op("Mul", centred, centred), (0,), keep=True)
    contrast = writer.op("Sqrt", writer.op("Add", variance, writer.number(own.floor * own.floor, "above")))
    return _whitened(writer, node, writer.op("Div", centred, contrast))


EMITTERS: Mapping[str, Emit] = {
    "whitened_scattering2d": _scattering_nodes,
    "mirrored_scattering2d": _mirrored_nodes,
    "whitened_patches": _patches_nodes,
}
