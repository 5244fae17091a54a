"""Graph -> ONNX, in standard operators that any runtime computes and that the compiler's importer reads back.

Reflections, local responses of even sizes and scattering are not read back.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from math import pi, prod, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper

from lipcompile.core.graph import Graph, Input, Node, Parameter
from lipcompile.diagnostics import Diagnostic, InputError, Refusal
from lipcompile.emitters.lip_text import loss_text
from lipcompile.emitters.onnx.writer import Emit, Writer
from lipcompile.emitters.torch.expressions import FAMILIES
from lipcompile.numbers import Scalar, text
from lipcompile.numbers.rounding import below
from lipcompile.ops.conv.rules import gathered
from lipcompile.version import __version__

EMITTERS: Mapping[str, Emit] = {op: emit for family in FAMILIES for op, emit in family.EMITTERS.items()}

Array = NDArray[Any]

OPSET = 20
# The file format that came with the operator set.
IR_VERSION = 9
# A protobuf message holds 2 GiB: what is larger lies in a file beside it.
_LARGEST = 2**31 - 2**20


def to_onnx(
    graph: Graph,
    weights: Mapping[str, Array] | None = None,
    *,
    training: bool = False,
    clip_input: bool = False,
    metadata: Mapping[str, str] | None = None,
) -> ModelProto:
    """Return the model in float32, from [batch, *example] to the logits.

    Its metadata declare the bound of the input and the loss. Parts that act only in training are omitted: clips of
    gradients, and dropout, which `training` keeps.

    Args:
        graph: without open repetitions and numbers.
        weights: values by parameter, and constants of layers; without them those that were imported, else a start
            from a fixed seed.
        training: whether dropout drops.
        clip_input: whether examples are clipped to the bound of the input, if it is not trusted, as by the module.
        metadata: further entries.

    Raises:
        InputError: LIP017, ONNX has no words for a node; all such nodes are told.
        ValueError: a weight of another shape than its parameter.
    """
    writer = Writer(complete(graph, weights), training)
    if clip_input and not (graph.input.tokens or graph.input.trusted):
        writer.begin(graph.input.name)
        writer.standing_for[graph.input.name] = clipped(writer, graph.input)
    problems = []
    for node in graph.nodes:
        try:
            if node.op.name not in EMITTERS:
                message = f"no ONNX operators compute the op `{node.op.name}`"
                raise Refusal("LIP017", message, "write the model as .lip instead")
            writer.write(node, EMITTERS[node.op.name])
        except Refusal as refusal:
            told = Diagnostic(refusal.code, refusal.message, refusal.help)
            problems.append(replace(told, node=node.name, op=node.op.name, location=node.location))
    if problems:
        raise InputError(tuple(problems))
    return _model(graph, writer, {**_metadata(graph), **(metadata or {})})


def save(model: ModelProto, path: Path) -> None:
    """Write a model; weights of more than 2 GiB lie in FILE.data beside it. Raises OSError."""
    large = model.ByteSize() > _LARGEST
    onnx.save_model(model, str(path), save_as_external_data=large, location=f"{path.name}.data" if large else None)


def _model(graph: Graph, writer: Writer, metadata: Mapping[str, str]) -> ModelProto:
    source = graph.input
    output = graph.output
    if output == source.name:
        output = f"{source.name}.same"
        made = writer.standing_for.get(source.name, source.name)
        writer.nodes.append(helper.make_node("Identity", [made], [output], name=output))
    kind = TensorProto.INT64 if source.tokens else TensorProto.FLOAT
    ends = [
        helper.make_tensor_value_info(source.name, kind, ["batch", *source.shape]),
        helper.make_tensor_value_info(output, TensorProto.FLOAT, ["batch", *graph.shape(graph.output)]),
    ]
    body = helper.make_graph(writer.nodes, graph.name, ends[:1], ends[1:], list(writer.stored.values()))
    model = helper.make_model(
        body,
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="lipcompile",
        producer_version=__version__,
    )
    helper.set_model_props(model, dict(metadata))
    onnx.checker.check_model(model, full_check=True)
    return model


def _metadata(graph: Graph) -> dict[str, str]:
    found = {}
    if isinstance(graph.input.norm, Fraction):
        found["lipcompile.input_norm"] = text(graph.input.norm)
    if graph.loss is not None:
        found["lipcompile.loss"] = loss_text(graph.loss)
    return found


__all__ = ["IR_VERSION", "OPSET", "save", "to_onnx"]


# The declared domain of a model, as operators in front of it: each example is clipped to the ball


def clipped(writer: Writer, source: Input) -> str:
    """Return the example as the emitted module clips it: x where ‖x‖ < r, x·(r/‖x‖) elsewhere, and zero for an
    example with an entry that is no finite number.

    The norm is taken in float64, in which the squares of no float32 overflow. Where it is no number, so is the
    factor: a comparison with it is false. NaN then becomes 0.
    """
    assert isinstance(source.norm, Fraction)
    radius = writer.constant(np.array(below(source.norm)))
    one, zero = writer.constant(np.array(1.0)), writer.constant(np.array(0, dtype=np.float32))
    entries = writer.op("Cast", source.name, to=TensorProto.DOUBLE)
    squares = writer.op("Mul", entries, entries)
    total = writer.reduce("ReduceSum", squares, range(len(source.shape)), keep=True) if source.shape else squares
    norm = writer.op("Sqrt", total)
    inside = writer.op("Less", norm, radius)
    factor = writer.op("Where", inside, one, writer.op("Div", radius, norm))
    scaled = writer.op("Mul", source.name, writer.op("Cast", factor, to=TensorProto.FLOAT))
    return writer.op("Where", writer.op("IsNaN", scaled), zero, scaled)


# Values of parameters that a graph does not have: a start, as the runtime would make it, from a fixed seed

# Where numbers of their kind start, if their bound allows it.
_START = {"gain": 1.0, "slope": 0.25}


def complete(graph: Graph, given: Mapping[str, Array] | None = None) -> dict[str, Array]:
    """Return a value for every parameter: as given, as imported, or a start inside its constraint.

    Raises:
        ValueError: a given value has another shape than its parameter.
    """
    found = {name: p.initial for name, p in graph.parameters.items() if p.initial is not None} | dict(given or {})
    users = {name: (node, role) for node in reversed(graph.nodes) for role, name in node.parameters.items()}
    for name, parameter in graph.parameters.items():
        if name not in found:
            found[name] = _start(parameter, *users[name])
        if found[name].shape != parameter.shape:
            raise ValueError(f"`{name}` has the shape {list(found[name].shape)}, not {list(parameter.shape)}")
    return found


def _start(parameter: Parameter, node: Node, role: str) -> Array:
    kind, bound = parameter.constraint.kind, _number(parameter.constraint.bound)
    if kind == "ball":
        return np.zeros(parameter.shape)
    if kind == "free":
        return np.full(parameter.shape, pi / 2)
    if kind == "box":
        return np.full(parameter.shape, min(_START.get(role, 0.0), bound))
    random = np.random.default_rng(zlib.crc32(parameter.name.encode())).standard_normal(parameter.shape)
    if kind == "rows":
        return np.asarray(bound * random / np.linalg.norm(random, axis=-1, keepdims=True))
    start = bound / gathered(node.op.name, node.site) * _orthogonal(random)
    rank = min(parameter.shape[0], prod(parameter.shape[1:]))
    return start / sqrt(rank) if kind == "frobenius" else start


def _orthogonal(random: Array) -> Array:
    """Return the nearest matrix with orthonormal rows or columns, in the shape of a kernel."""
    left, _, right = np.linalg.svd(random.reshape(len(random), -1), full_matrices=False)
    return np.asarray((left @ right).reshape(random.shape))


def _number(bound: Scalar) -> float:
    """Return a bound, 1 for one that is open."""
    return float(bound) if isinstance(bound, Fraction) else 1.0
